-- In which memory of its engine a receipt's cached input lay.

-- +goose Up

-- Parts of input_cached; the rest came from the accelerator's own memory. NULL, both
-- of them, where the engine didn't say, and for the receipts that are there already.
ALTER TABLE receipts
    ADD COLUMN cached_host    bigint,
    ADD COLUMN cached_storage bigint;
ALTER TABLE receipts
    ADD CONSTRAINT receipts_tiers CHECK ((cached_host IS NULL) = (cached_storage IS NULL)
        AND cached_host >= 0 AND cached_storage >= 0 AND cached_host <= input_cached - cached_storage) NOT VALID;

-- What weir_settle_tiered takes: weir_receipt_money, and the tiers.
CREATE TYPE weir_receipt_tiered AS (
    tenant_id         text,
    request_id        text,
    client_request_id text,
    project_id        text,
    key_id            text,
    operation         text,
    model             text,
    pool              text,
    endpoint          text,
    attempts          integer,
    stream            boolean,
    band              text,
    priority          integer,
    tier              text,
    input_uncached    bigint,
    input_cached      bigint,
    output            bigint,
    reasoning         bigint,
    usage_source      text,
    price_version     bigint,
    cost_nano         bigint,
    started_at        timestamptz,
    queue_us          bigint,
    ttft_us           bigint,
    duration_us       bigint,
    outcome           text,
    saved_nano        bigint,
    mode              text,
    settled_by        text,
    chunks            bigint[],
    cached_host       bigint,
    cached_storage    bigint
);

-- weir_settle_tiered stores receipts of any tenants and books them, as
-- weir_settle_money did: it returns the request ids that were new, leaves what is
-- stored already, and what it returned is on disk once the transaction has
-- committed. overspent_nano is by how much tenants fell below what they may owe.
-- +goose StatementBegin
CREATE FUNCTION weir_settle_tiered(batch weir_receipt_tiered[], OUT stored text[], OUT overspent_nano bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
-- The right plan is the same for any batch: the keys of its rows, by index.
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET enable_mergejoin = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    fresh  weir_receipt_tiered[] := batch;
    payers text[];
    costs  bigint[];
    txns   bigint[];
BEGIN
    overspent_nano := 0;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    WITH inserted AS (
        INSERT INTO receipt_ids (tenant_id, request_id, settled_at)
        SELECT tenant_id, request_id, now() FROM unnest(batch)
        ON CONFLICT DO NOTHING
        RETURNING tenant_id, request_id
    )
    SELECT coalesce(array_agg(request_id), '{}'), array_agg(tenant_id) INTO stored, payers FROM inserted;
    IF cardinality(stored) < cardinality(batch) THEN
        SELECT coalesce(array_agg(b), '{}') INTO fresh
          FROM unnest(batch) AS b
         WHERE (b.tenant_id, b.request_id) IN (SELECT * FROM unnest(payers, stored));
    END IF;

    SELECT array_agg(p.tenant_id), array_agg(p.cost),
           array_agg(nextval('ledger_transactions_id_seq'))
      INTO payers, costs, txns
      FROM (SELECT tenant_id, sum(cost_nano)::bigint AS cost
              FROM unnest(fresh)
             WHERE mode = 'enforce' AND cost_nano > 0
             GROUP BY tenant_id) p;

    INSERT INTO receipts (
        tenant_id, settled_at, request_id, client_request_id, project_id, key_id,
        operation, model, pool, endpoint, attempts, stream, band, priority, tier,
        input_uncached, input_cached, output, reasoning, usage_source, price_version, cost_nano,
        started_at, queue_us, ttft_us, duration_us, outcome, saved_nano, mode, settled_by, ledger_txn,
        cached_host, cached_storage)
    SELECT
        r.tenant_id, now(), request_id, client_request_id, project_id, key_id,
        operation, model, pool, endpoint, attempts, stream, band, priority, tier,
        input_uncached, input_cached, output, reasoning, usage_source, price_version, cost_nano,
        started_at, queue_us, ttft_us, duration_us, outcome, saved_nano, mode, settled_by,
        CASE WHEN mode = 'enforce' AND cost_nano > 0 THEN t.id END,
        cached_host, cached_storage
    FROM unnest(fresh) AS r
    LEFT JOIN unnest(payers, txns) AS t (tenant_id, id) ON t.tenant_id = r.tenant_id;

    IF NOT EXISTS (SELECT FROM unnest(fresh) WHERE mode <> 'off') THEN
        RETURN;
    END IF;

    INSERT INTO usage_hours AS h (tenant_id, hour, project_id, key_id, model, tier,
        requests, input_uncached, input_cached, output, reasoning, cost_nano, saved_nano)
    SELECT tenant_id, date_trunc('hour', now(), 'UTC'), project_id, key_id, model, tier,
           count(*), sum(input_uncached), sum(input_cached), sum(output), sum(reasoning), sum(cost_nano), sum(saved_nano)
      FROM unnest(fresh)
     WHERE mode <> 'off'
     GROUP BY tenant_id, project_id, key_id, model, tier
     ORDER BY tenant_id, project_id, key_id, model, tier
    ON CONFLICT (tenant_id, hour, project_id, key_id, model, tier) DO UPDATE SET
        requests = h.requests + EXCLUDED.requests,
        input_uncached = h.input_uncached + EXCLUDED.input_uncached,
        input_cached = h.input_cached + EXCLUDED.input_cached,
        output = h.output + EXCLUDED.output,
        reasoning = h.reasoning + EXCLUDED.reasoning,
        cost_nano = h.cost_nano + EXCLUDED.cost_nano,
        saved_nano = h.saved_nano + EXCLUDED.saved_nano;
    IF payers IS NULL THEN
        RETURN;
    END IF;

    -- A tenant without a wallet had nothing to spend; what it used all the same
    -- it owes.
    INSERT INTO wallets (tenant_id, node, scope)
    SELECT p, p, 'tenant' FROM unnest(payers) AS p
     WHERE NOT EXISTS (SELECT FROM wallets w WHERE w.tenant_id = p AND w.node = p)
     ORDER BY p COLLATE "C"
    ON CONFLICT DO NOTHING;

    WITH debits AS (
        SELECT r.tenant_id, n.node, sum(r.cost_nano)::bigint AS cost
          FROM unnest(fresh) AS r
         CROSS JOIN LATERAL (VALUES (r.tenant_id), (r.project_id), (r.key_id)) AS n (node)
         WHERE r.mode = 'enforce' AND r.cost_nano > 0
         GROUP BY r.tenant_id, n.node
    ), locked AS (
        SELECT w.tenant_id, w.node, d.cost
          FROM debits d
          JOIN wallets w ON w.tenant_id = d.tenant_id AND w.node = d.node
         ORDER BY w.tenant_id, w.node
           FOR NO KEY UPDATE OF w
    ), debited AS (
        UPDATE wallets w
           SET balance_nano = w.balance_nano - l.cost
          FROM locked l
         WHERE w.tenant_id = l.tenant_id AND w.node = l.node
        RETURNING w.scope, l.cost, w.balance_nano + w.credit_limit_nano AS left_nano
    )
    SELECT coalesce(sum(least(cost, -left_nano)) FILTER (WHERE scope = 'tenant' AND left_nano < 0), 0)
      INTO overspent_nano
      FROM debited;

    WITH used AS (
        SELECT r.tenant_id, c.id, sum(r.cost_nano)::bigint AS cost
          FROM unnest(fresh) AS r
         CROSS JOIN LATERAL unnest(r.chunks) AS c (id)
         WHERE r.mode = 'enforce' AND r.cost_nano > 0
         GROUP BY r.tenant_id, c.id
    ), locked AS (
        SELECT c.tenant_id, c.id, u.cost
          FROM used u
          JOIN chunks c ON c.tenant_id = u.tenant_id AND c.id = u.id
         ORDER BY c.tenant_id, c.node, c.replica
           FOR NO KEY UPDATE OF c
    )
    UPDATE chunks c
       SET left_nano = greatest(c.left_nano - l.cost, 0)
      FROM locked l
     WHERE c.tenant_id = l.tenant_id AND c.id = l.id;

    INSERT INTO ledger_transactions (tenant_id, id, kind)
    SELECT tenant_id, id, 'usage' FROM unnest(payers, txns) AS t (tenant_id, id);
    PERFORM weir_burn(payers, costs, txns, 'revenue:usage');
END
$$;
-- +goose StatementEnd

-- The previous binary's receipts say nothing of tiers.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION weir_settle_money(batch weir_receipt_money[], OUT stored text[], OUT overspent_nano bigint)
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT t.stored, t.overspent_nano
      FROM weir_settle_tiered(ARRAY(
           SELECT ROW(b.*, NULL::bigint, NULL::bigint)::weir_receipt_tiered FROM unnest(batch) AS b)) AS t
$$;
-- +goose StatementEnd

REVOKE ALL ON TYPE weir_receipt_tiered FROM PUBLIC;
GRANT USAGE ON TYPE weir_receipt_tiered TO weir_worker;
REVOKE ALL ON FUNCTION weir_settle_tiered FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_settle_tiered TO weir_worker;
