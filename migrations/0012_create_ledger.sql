-- Money that is spent before it is billed: wallets, the parts of them that
-- replicas hold, the ledger behind them, credit, and hourly sums of usage.
--
-- Whatever locks several rows takes them in one order: hours (by key), wallets
-- by (tenant_id, node), chunks by (tenant_id, node, replica); lots and chunks
-- change their money only under the lock of their wallet.

-- +goose Up

-- NULL takes the default of the installation.
ALTER TABLE tenants
    ADD COLUMN billing_mode text CHECK (billing_mode IN ('off', 'shadow', 'enforce')),
    ADD COLUMN billing_kind text NOT NULL DEFAULT 'prepaid' CHECK (billing_kind IN ('prepaid', 'postpaid'));
GRANT UPDATE (billing_mode, billing_kind) ON tenants TO weir_app;

DROP TRIGGER notify_auth ON tenants;
CREATE TRIGGER notify_auth AFTER UPDATE OF plan, fairness_id, suspended_at, billing_mode, billing_kind OR DELETE ON tenants
    FOR EACH ROW EXECUTE FUNCTION weir_notify_auth();

-- ledger_txn leads to the transaction that booked the receipt, which is of the
-- same moment; NULL where nothing was booked. The rules are not checked against
-- receipts that are there already: those have the defaults.
ALTER TABLE receipts
    ADD COLUMN saved_nano bigint NOT NULL DEFAULT 0,
    ADD COLUMN mode       text NOT NULL DEFAULT 'off',
    ADD COLUMN settled_by text NOT NULL DEFAULT 'gateway',
    ADD COLUMN ledger_txn bigint;
ALTER TABLE receipts
    ADD CONSTRAINT receipts_money CHECK (saved_nano >= 0 AND mode IN ('off', 'shadow', 'enforce')
        AND settled_by IN ('gateway', 'sweeper')) NOT VALID;

-- Finds receipts of a period without regard to the tenant, for a few bytes.
CREATE INDEX receipts_settled ON receipts USING brin (settled_at) WITH (pages_per_range = 32, autosummarize = on);

-- A wallet is what a node may spend: a tenant, or as a cap of its own a project
-- or a key (node is its id). balance_nano of a tenant's is the sum of what the
-- ledger has on the tenant's accounts. It may fall to -credit_limit_nano. What
-- replicas hold of it (chunks) is still in it: a hold costs nothing yet.
--
-- There are no foreign keys to tenants: like receipts, what was billed
-- outlives whom it was billed to.
CREATE TABLE wallets (
    tenant_id         text COLLATE "C" NOT NULL CHECK (tenant_id <> ''),
    node              text COLLATE "C" NOT NULL CHECK (node <> ''),
    scope             text NOT NULL CHECK (scope IN ('tenant', 'project', 'key')),
    balance_nano      bigint NOT NULL DEFAULT 0,
    credit_limit_nano bigint NOT NULL DEFAULT 0 CHECK (credit_limit_nano >= 0),
    created_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, node),
    CHECK ((scope = 'tenant') = (node = tenant_id))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

-- A chunk is the part of a wallet that one replica holds, to admit requests
-- without asking. A replica has at most one of a wallet: drawing again adds to
-- it. left_nano is what was drawn, less what was settled from it and given back.
-- What wallets reserve is the sum of their chunks, by construction.
CREATE TABLE chunks (
    tenant_id  text COLLATE "C" NOT NULL,
    id         bigint GENERATED ALWAYS AS IDENTITY,
    node       text COLLATE "C" NOT NULL,
    replica    text COLLATE "C" NOT NULL CHECK (replica <> ''),
    left_nano  bigint NOT NULL CHECK (left_nano >= 0),
    created_at timestamptz NOT NULL DEFAULT now(),
    renewed_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, node, replica),
    FOREIGN KEY (tenant_id, node) REFERENCES wallets (tenant_id, node) ON DELETE CASCADE
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
-- No index has a column that settling or renewing changes: those updates stay
-- on their page.
CREATE UNIQUE INDEX chunks_of_replica ON chunks (replica, id);

-- Credit: what a tenant was given or paid. Usage burns the open lots in the
-- order of priority, expiry, id. A lot opens when it takes effect, and its
-- transaction is booked then; remaining_nano is the sum of its entries.
CREATE TABLE credit_lots (
    tenant_id      text COLLATE "C" NOT NULL CHECK (tenant_id <> ''),
    id             bigint GENERATED ALWAYS AS IDENTITY,
    kind           text NOT NULL CHECK (kind IN ('free', 'promo', 'paid')),
    priority       smallint NOT NULL,
    amount_nano    bigint NOT NULL CHECK (amount_nano > 0),
    remaining_nano bigint NOT NULL DEFAULT 0 CHECK (remaining_nano BETWEEN 0 AND amount_nano),
    open           boolean NOT NULL DEFAULT false,
    effective_at   timestamptz NOT NULL DEFAULT now(),
    expires_at     timestamptz,
    ref            text NOT NULL CHECK (ref <> ''),
    note           text NOT NULL DEFAULT '',
    ledger_txn     bigint, -- NULL until it takes effect
    created_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, ref),
    CHECK (open = (remaining_nano > 0)),
    CHECK (expires_at > effective_at)
) WITH (fillfactor = 50);
CREATE INDEX credit_lots_open ON credit_lots (tenant_id) WHERE open;
CREATE INDEX credit_lots_expiry ON credit_lots (expires_at) WHERE open;
CREATE INDEX credit_lots_to_come ON credit_lots (effective_at) WHERE ledger_txn IS NULL;

-- The ledger, double entry. Amounts are signed so that a positive one is in the
-- tenant's favour on the tenant's accounts, and the amounts of a transaction
-- sum to zero. Rows are never changed: a correction is a new transaction, which
-- says what it reverses.
--
--   tenant:cash, tenant:promo   credit, by lot; never below zero
--   tenant:receivable           what the tenant owes, as a negative number
--   revenue:usage               what usage earned
--   stripe:clearing             payments, as a negative number, until they arrive
--   promo:granted, expired      credit that was given; paid credit that lapsed
--   writeoff, rounding          debts forgiven; remainders of invoices
CREATE TABLE ledger_transactions (
    tenant_id text COLLATE "C" NOT NULL CHECK (tenant_id <> ''),
    id        bigint GENERATED BY DEFAULT AS IDENTITY,
    kind      text NOT NULL CHECK (kind IN
        ('usage', 'topup', 'grant', 'adjust', 'refund', 'writeoff', 'expire', 'reverse')),
    booked_at timestamptz NOT NULL DEFAULT now(),
    ref       text CHECK (ref <> ''),
    note      text NOT NULL DEFAULT '',
    reverses  bigint,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, reverses) REFERENCES ledger_transactions (tenant_id, id)
);
CREATE INDEX ledger_transactions_booked ON ledger_transactions USING brin (booked_at) WITH (pages_per_range = 32, autosummarize = on);
CREATE UNIQUE INDEX ledger_transactions_ref ON ledger_transactions (tenant_id, ref) WHERE ref IS NOT NULL;
CREATE UNIQUE INDEX ledger_transactions_reversed ON ledger_transactions (tenant_id, reverses) WHERE reverses IS NOT NULL;

-- All entries of a transaction are inserted by one statement, which fails if
-- they don't sum to zero. (No foreign key to the transaction: the functions
-- below are the only writers, and it would cost a look-up for each entry.)
CREATE TABLE ledger_entries (
    tenant_id   text COLLATE "C" NOT NULL CHECK (tenant_id <> ''),
    txn         bigint NOT NULL,
    account     text COLLATE "C" NOT NULL CHECK (account IN
        ('tenant:cash', 'tenant:promo', 'tenant:receivable', 'revenue:usage', 'stripe:clearing',
         'promo:granted', 'expired', 'writeoff', 'rounding')),
    lot         bigint NOT NULL DEFAULT 0, -- 0: none
    amount_nano bigint NOT NULL,
    PRIMARY KEY (tenant_id, txn, account, lot)
);

-- +goose StatementBegin
CREATE FUNCTION weir_check_entries() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    crooked record;
BEGIN
    SELECT e.tenant_id, e.txn, sum(e.amount_nano) AS off INTO crooked
      FROM entries e
     GROUP BY e.tenant_id, e.txn
    HAVING sum(e.amount_nano) <> 0
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'entries of transaction % of % sum to %, not to zero', crooked.txn, crooked.tenant_id, crooked.off
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER check_entries AFTER INSERT ON ledger_entries
    REFERENCING NEW TABLE AS entries
    FOR EACH STATEMENT EXECUTE FUNCTION weir_check_entries();

-- Not even a superuser rewrites the ledger by mistake.
-- +goose StatementBegin
CREATE FUNCTION weir_refuse_change() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: book a correction', TG_TABLE_NAME USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_entries
    FOR EACH STATEMENT EXECUTE FUNCTION weir_refuse_change();
CREATE TRIGGER refuse_change BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_transactions
    FOR EACH STATEMENT EXECUTE FUNCTION weir_refuse_change();

-- Hourly sums of what receipts say, by the hour (UTC) of settling: a closed hour
-- never changes. Receipts of mode off are not in it.
CREATE TABLE usage_hours (
    tenant_id      text COLLATE "C" NOT NULL CHECK (tenant_id <> ''),
    hour           timestamptz NOT NULL,
    project_id     text COLLATE "C" NOT NULL,
    key_id         text COLLATE "C" NOT NULL,
    model          text COLLATE "C" NOT NULL,
    tier           text COLLATE "C" NOT NULL,
    requests       bigint NOT NULL,
    input_uncached bigint NOT NULL,
    input_cached   bigint NOT NULL,
    output         bigint NOT NULL,
    reasoning      bigint NOT NULL,
    cost_nano      bigint NOT NULL,
    saved_nano     bigint NOT NULL,
    PRIMARY KEY (tenant_id, hour, project_id, key_id, model, tier)
) WITH (fillfactor = 80);

-- A tenant reads its own; nobody writes but the functions below, as the owner.
-- +goose StatementBegin
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['wallets', 'chunks', 'credit_lots', 'ledger_transactions', 'ledger_entries', 'usage_hours'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY own_tenant ON %I FOR SELECT TO weir_app USING (tenant_id = weir_tenant())', name);
        EXECUTE format('GRANT SELECT ON %I TO weir_app', name);
        EXECUTE format('CREATE POLICY functions_read ON %I FOR SELECT TO CURRENT_USER USING (true)', name);
        EXECUTE format('CREATE POLICY functions_write ON %I FOR INSERT TO CURRENT_USER WITH CHECK (true)', name);
        CONTINUE WHEN name LIKE 'ledger%';
        EXECUTE format('CREATE POLICY functions_update ON %I FOR UPDATE TO CURRENT_USER USING (true) WITH CHECK (true)', name);
        CONTINUE WHEN name = 'credit_lots';
        EXECUTE format('CREATE POLICY functions_delete ON %I FOR DELETE TO CURRENT_USER USING (true)', name);
    END LOOP;
END
$$;
-- +goose StatementEnd

-- What weir_settle_money takes: weir_receipt, and what money needs. chunks are
-- those that the request's hold was drawn from, at most one of each node.
CREATE TYPE weir_receipt_money AS (
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
    chunks            bigint[]
);

-- weir_burn takes costs[i] from the credit of payers[i], in the order in which
-- lots burn, and books it as txns[i]: what no lot covers goes to the receivable,
-- all of it to the account against. The caller has locked the wallets, and
-- changes their balances. A payer stands in it once. only_kind burns nothing else.
-- +goose StatementBegin
CREATE FUNCTION weir_burn(payers text[], costs bigint[], txns bigint[], against text, only_kind text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql -- which keeps its plans, as LANGUAGE sql doesn't
AS $$
#variable_conflict use_column
BEGIN
    WITH due AS (
        SELECT * FROM unnest(payers, costs, txns) AS d (tenant_id, cost, txn)
    ), queue AS (
        SELECT l.tenant_id, l.id, l.remaining_nano, d.cost, d.txn,
               sum(l.remaining_nano) OVER (PARTITION BY l.tenant_id ORDER BY l.priority, l.expires_at NULLS LAST, l.id)
                   - l.remaining_nano AS before
          FROM due d
         CROSS JOIN LATERAL ( -- each tenant's by index, never all lots
               SELECT * FROM credit_lots l
                WHERE l.tenant_id = d.tenant_id AND l.open AND (only_kind IS NULL OR l.kind = only_kind)
               OFFSET 0) l
    ), burnt AS (
        UPDATE credit_lots l
           SET remaining_nano = l.remaining_nano - least(q.remaining_nano, q.cost - q.before)::bigint,
               open = q.remaining_nano > q.cost - q.before
          FROM queue q
         WHERE q.before < q.cost AND l.tenant_id = q.tenant_id AND l.id = q.id
        RETURNING l.tenant_id, q.txn, l.kind, l.id AS lot, least(q.remaining_nano, q.cost - q.before)::bigint AS taken
    )
    INSERT INTO ledger_entries (tenant_id, txn, account, lot, amount_nano)
    SELECT tenant_id, txn, CASE kind WHEN 'paid' THEN 'tenant:cash' ELSE 'tenant:promo' END, lot, -taken
      FROM burnt
    UNION ALL
    SELECT d.tenant_id, d.txn, 'tenant:receivable', 0, coalesce(b.taken, 0) - d.cost
      FROM due d
      LEFT JOIN (SELECT tenant_id, sum(taken)::bigint AS taken FROM burnt GROUP BY tenant_id) b ON b.tenant_id = d.tenant_id
     WHERE coalesce(b.taken, 0) < d.cost
    UNION ALL
    SELECT tenant_id, txn, against, 0, cost FROM due;
END
$$;
-- +goose StatementEnd

-- weir_settle_money stores receipts of any tenants, as weir_settle does: it
-- returns the request ids that were new, leaves what is stored already, and what
-- it returned is on disk once the transaction has committed. In the same
-- transaction it sums up usage by the hour (mode shadow and enforce), and books
-- what receipts of mode enforce cost: one ledger transaction for each tenant of
-- the batch, against its credit and the wallets of the tenant, the project and
-- the key. A chunk that is gone leaves the balance to be debited all the same.
--
-- overspent_nano is by how much tenants fell below what they may owe because of
-- this batch. Holds keep it at zero.
-- +goose StatementBegin
CREATE FUNCTION weir_settle_money(batch weir_receipt_money[], OUT stored text[], OUT overspent_nano bigint)
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
    fresh  weir_receipt_money[] := batch;
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
        started_at, queue_us, ttft_us, duration_us, outcome, saved_nano, mode, settled_by, ledger_txn)
    SELECT
        r.tenant_id, now(), request_id, client_request_id, project_id, key_id,
        operation, model, pool, endpoint, attempts, stream, band, priority, tier,
        input_uncached, input_cached, output, reasoning, usage_source, price_version, cost_nano,
        started_at, queue_us, ttft_us, duration_us, outcome, saved_nano, mode, settled_by,
        CASE WHEN mode = 'enforce' AND cost_nano > 0 THEN t.id END
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

-- weir_draw sets money of every one of the nodes aside for the replica, all or
-- none, and answers a row for each node: the replica's chunk of it, and the
-- amount that it has grown by. The amount is the same at each: p_least, and up
-- to p_want as far as 1/256 of what is left beyond allows, so that what
-- replicas hold unused is a small part of any balance.
--
-- A project or a key without a wallet has no cap: chunk is 0 then, and no money
-- is behind it. A tenant without a wallet has nothing. When one of the nodes
-- can't afford p_least there is one row, which names it (the first of the list),
-- with chunk NULL and what it has left that nobody holds. Where other replicas
-- hold some of that node's money, they are asked on the channel weir_recall, by
-- tenant and node, to give back what they don't use.
--
-- Until p_ttl from the call the chunk is the replica's: it renews it in time, or
-- doesn't use it any more. A replica's name is of one life of a process.
-- +goose StatementBegin
CREATE FUNCTION weir_draw(p_tenant text, p_nodes text[], p_least bigint, p_want bigint, p_replica text, p_ttl interval)
RETURNS TABLE (node text, chunk bigint, amount bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    spot   record;
    spare  bigint := 9223372036854775807;
    amount bigint;
BEGIN
    IF p_least <= 0 OR p_want < p_least THEN
        RAISE EXCEPTION 'draw of % to %', p_least, p_want USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM FROM wallets w
      WHERE w.tenant_id = p_tenant AND w.node = ANY (p_nodes)
      ORDER BY w.node
        FOR NO KEY UPDATE;

    FOR spot IN
        SELECT n.node, w.balance_nano + w.credit_limit_nano
                   - (SELECT coalesce(sum(c.left_nano), 0) FROM chunks c WHERE c.tenant_id = p_tenant AND c.node = n.node) AS free
          FROM unnest(p_nodes) WITH ORDINALITY AS n (node, place)
          LEFT JOIN wallets w ON w.tenant_id = p_tenant AND w.node = n.node
         ORDER BY n.place
    LOOP
        CONTINUE WHEN spot.free IS NULL AND spot.node <> p_tenant;
        IF coalesce(spot.free, 0) < p_least THEN
            IF EXISTS (SELECT FROM chunks c
                        WHERE c.tenant_id = p_tenant AND c.node = spot.node AND c.replica <> p_replica AND c.left_nano > 0) THEN
                PERFORM pg_notify('weir_recall', p_tenant || ' ' || spot.node);
            END IF;
            RETURN QUERY SELECT spot.node, NULL::bigint, greatest(spot.free, 0)::bigint;
            RETURN;
        END IF;
        spare := least(spare, spot.free - p_least);
    END LOOP;

    amount := p_least + least(p_want - p_least, spare / 256);
    RETURN QUERY
        WITH drawn AS (
            INSERT INTO chunks AS c (tenant_id, node, replica, left_nano, renewed_at, expires_at)
            SELECT w.tenant_id, w.node, p_replica, amount, now(), now() + p_ttl
              FROM wallets w
             WHERE w.tenant_id = p_tenant AND w.node = ANY (p_nodes)
             ORDER BY w.node
            ON CONFLICT (tenant_id, node, replica) DO UPDATE SET
                left_nano = c.left_nano + EXCLUDED.left_nano,
                renewed_at = EXCLUDED.renewed_at,
                expires_at = greatest(c.expires_at, EXCLUDED.expires_at)
            RETURNING c.node, c.id
        )
        SELECT n.node, coalesce(d.id, 0), amount
          FROM unnest(p_nodes) WITH ORDINALITY AS n (node, place)
          LEFT JOIN drawn d ON d.node = n.node
         ORDER BY n.place;
END
$$;
-- +goose StatementEnd

-- weir_renew_chunks gives the replica's chunks another p_ttl from the call, and
-- returns those that are still there: the others are closed, and not the
-- replica's any more.
-- +goose StatementBegin
CREATE FUNCTION weir_renew_chunks(p_replica text, p_ids bigint[], p_ttl interval) RETURNS bigint[]
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    WITH locked AS (
        SELECT c.tenant_id, c.id
          FROM chunks c
         WHERE c.replica = p_replica AND c.id = ANY (p_ids)
         ORDER BY c.tenant_id, c.node, c.replica
           FOR NO KEY UPDATE
    ), renewed AS (
        UPDATE chunks c
           SET renewed_at = now(), expires_at = now() + p_ttl
          FROM locked l
         WHERE c.tenant_id = l.tenant_id AND c.id = l.id
        RETURNING c.id
    )
    SELECT coalesce(array_agg(id), '{}') FROM renewed
$$;
-- +goose StatementEnd

-- weir_return_chunks gives back what the replica's chunks hold beyond keep[i],
-- and closes those of which nothing is kept. keep counts all that may yet be
-- settled from the chunk: what requests hold, and receipts that wait in the
-- spool. The arrays run in parallel.
-- +goose StatementBegin
CREATE FUNCTION weir_return_chunks(p_replica text, p_ids bigint[], p_keep bigint[]) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM FROM wallets w
      WHERE (w.tenant_id, w.node) IN (
            SELECT c.tenant_id, c.node FROM chunks c WHERE c.replica = p_replica AND c.id = ANY (p_ids))
      ORDER BY w.tenant_id, w.node
        FOR NO KEY UPDATE;
    PERFORM FROM chunks c
      WHERE c.replica = p_replica AND c.id = ANY (p_ids)
      ORDER BY c.tenant_id, c.node, c.replica
        FOR UPDATE;
    DELETE FROM chunks c
     USING unnest(p_ids, p_keep) AS k (id, keep)
     WHERE c.replica = p_replica AND c.id = k.id AND k.keep <= 0;
    UPDATE chunks c
       SET left_nano = k.keep
      FROM unnest(p_ids, p_keep) AS k (id, keep)
     WHERE c.replica = p_replica AND c.id = k.id AND k.keep > 0 AND k.keep < c.left_nano;
END
$$;
-- +goose StatementEnd

-- weir_dead_chunks are the chunks that were not renewed for p_grace beyond their
-- time. Time in which this server was down doesn't count: nobody could renew.
-- +goose StatementBegin
CREATE FUNCTION weir_dead_chunks(p_grace interval, p_max integer)
RETURNS TABLE (tenant text, node text, chunk bigint, replica text, left_nano bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT c.tenant_id, c.node, c.id, c.replica, c.left_nano
      FROM chunks c
     WHERE greatest(c.expires_at, pg_postmaster_start_time() + (c.expires_at - c.renewed_at)) + p_grace < clock_timestamp()
     ORDER BY c.tenant_id, c.node, c.replica
     LIMIT p_max
$$;
-- +goose StatementEnd

-- weir_close_dead_chunks closes dead chunks, of one replica and tenant where
-- they are given, and returns them: what was left is the wallet's again. Before
-- it is called the requests of that replica are settled from what is known of
-- them, since afterwards nothing is set aside for them.
-- +goose StatementBegin
CREATE FUNCTION weir_close_dead_chunks(p_grace interval, p_max integer, p_replica text DEFAULT NULL, p_tenant text DEFAULT NULL)
RETURNS TABLE (tenant text, node text, chunk bigint, replica text, left_nano bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    tenants text[];
    ids     bigint[];
BEGIN
    SELECT array_agg(d.tenant), array_agg(d.chunk) INTO tenants, ids
      FROM weir_dead_chunks(p_grace, 2147483647) d
     WHERE d.replica = coalesce(p_replica, d.replica) AND d.tenant = coalesce(p_tenant, d.tenant);
    PERFORM FROM wallets w
      WHERE (w.tenant_id, w.node) IN (
            SELECT c.tenant_id, c.node
              FROM unnest(tenants[:p_max], ids[:p_max]) AS d (tenant_id, id)
              JOIN chunks c ON c.tenant_id = d.tenant_id AND c.id = d.id)
      ORDER BY w.tenant_id, w.node
        FOR NO KEY UPDATE;
    RETURN QUERY
        -- One that was renewed meanwhile lives.
        DELETE FROM chunks c
         USING unnest(tenants[:p_max], ids[:p_max]) AS d (tenant_id, id)
         WHERE c.tenant_id = d.tenant_id AND c.id = d.id
           AND greatest(c.expires_at, pg_postmaster_start_time() + (c.expires_at - c.renewed_at)) + p_grace < clock_timestamp()
        RETURNING c.tenant_id, c.node, c.id, c.replica, c.left_nano;
END
$$;
-- +goose StatementEnd

-- weir_open_wallet makes the tenant's wallet where there is none, and locks it
-- until the transaction ends.
-- +goose StatementBegin
CREATE FUNCTION weir_open_wallet(p_tenant text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    LOOP
        PERFORM FROM wallets w WHERE w.tenant_id = p_tenant AND w.node = p_tenant FOR NO KEY UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO wallets (tenant_id, node, scope) VALUES (p_tenant, p_tenant, 'tenant') ON CONFLICT DO NOTHING;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- weir_owed is what a tenant whose wallet is locked owes beyond its credit.
-- +goose StatementBegin
CREATE FUNCTION weir_owed(p_tenant text) RETURNS bigint
LANGUAGE sql
AS $$
    SELECT greatest(0, (SELECT coalesce(sum(l.remaining_nano), 0) FROM credit_lots l WHERE l.tenant_id = p_tenant AND l.open)
                       - w.balance_nano)::bigint
      FROM wallets w
     WHERE w.tenant_id = p_tenant AND w.node = p_tenant
$$;
-- +goose StatementEnd

-- weir_free is what nobody holds of the balance of a tenant whose wallet is
-- locked.
-- +goose StatementBegin
CREATE FUNCTION weir_free(p_tenant text) RETURNS bigint
LANGUAGE sql
AS $$
    SELECT (w.balance_nano + w.credit_limit_nano
            - (SELECT coalesce(sum(c.left_nano), 0) FROM chunks c WHERE c.tenant_id = p_tenant AND c.node = p_tenant))::bigint
      FROM wallets w
     WHERE w.tenant_id = p_tenant AND w.node = p_tenant
$$;
-- +goose StatementEnd

-- weir_refundable is what of a tenant's paid credit may be paid back: its wallet
-- is locked.
-- +goose StatementBegin
CREATE FUNCTION weir_refundable(p_tenant text) RETURNS bigint
LANGUAGE sql
AS $$
    SELECT least(weir_free(p_tenant), coalesce(sum(l.remaining_nano), 0))::bigint
      FROM credit_lots l
     WHERE l.tenant_id = p_tenant AND l.open AND l.kind = 'paid'
$$;
-- +goose StatementEnd

-- weir_book_lot lets a lot take effect, against an account. What the tenant
-- owes is paid first from paid credit. The wallet is locked.
-- +goose StatementBegin
CREATE FUNCTION weir_book_lot(p_tenant text, p_lot bigint, p_kind text, against text) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    lot  credit_lots;
    pays bigint := 0;
    txn  bigint := nextval('ledger_transactions_id_seq');
BEGIN
    SELECT * INTO STRICT lot FROM credit_lots l WHERE l.tenant_id = p_tenant AND l.id = p_lot;
    IF lot.kind = 'paid' THEN
        pays := least(lot.amount_nano, weir_owed(p_tenant));
    END IF;
    INSERT INTO ledger_transactions (tenant_id, id, kind, ref, note) VALUES (p_tenant, txn, p_kind, lot.ref, lot.note);
    INSERT INTO ledger_entries (tenant_id, txn, account, lot, amount_nano)
    SELECT p_tenant, txn, e.account, e.lot, e.amount
      FROM (VALUES (CASE lot.kind WHEN 'paid' THEN 'tenant:cash' ELSE 'tenant:promo' END, lot.id, lot.amount_nano - pays),
                   ('tenant:receivable', 0, pays),
                   (against, 0, -lot.amount_nano)) AS e (account, lot, amount)
     WHERE e.amount <> 0;
    UPDATE credit_lots l
       SET remaining_nano = l.amount_nano - pays, open = l.amount_nano > pays, ledger_txn = txn
     WHERE l.tenant_id = p_tenant AND l.id = p_lot;
    UPDATE wallets w SET balance_nano = w.balance_nano + lot.amount_nano
     WHERE w.tenant_id = p_tenant AND w.node = p_tenant;
    RETURN txn;
END
$$;
-- +goose StatementEnd

-- weir_credit gives a tenant credit: paid (booked against stripe:clearing),
-- promo or free. It is idempotent by ref: the same again changes nothing, and
-- another amount or kind under the ref is an error. txn is NULL as long as the
-- credit has not taken effect (weir_turn_lots).
-- +goose StatementBegin
CREATE FUNCTION weir_credit(
    p_tenant text, p_kind text, p_amount bigint, p_ref text, p_note text DEFAULT '',
    p_effective timestamptz DEFAULT NULL, p_expires timestamptz DEFAULT NULL,
    OUT lot bigint, OUT txn bigint, OUT created boolean)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    old credit_lots;
BEGIN
    PERFORM weir_open_wallet(p_tenant);
    SELECT * INTO old FROM credit_lots l WHERE l.tenant_id = p_tenant AND l.ref = p_ref;
    created := NOT FOUND;
    IF NOT created THEN
        IF old.kind <> p_kind OR old.amount_nano <> p_amount THEN
            RAISE EXCEPTION 'credit % of % was another: % of % nano-USD', p_ref, p_tenant, old.kind, old.amount_nano
                USING ERRCODE = 'unique_violation';
        END IF;
        lot := old.id;
        txn := old.ledger_txn;
        RETURN;
    END IF;
    INSERT INTO credit_lots AS l (tenant_id, kind, priority, amount_nano, effective_at, expires_at, ref, note)
    VALUES (p_tenant, p_kind, CASE p_kind WHEN 'free' THEN 10 WHEN 'promo' THEN 20 ELSE 30 END,
            p_amount, coalesce(p_effective, now()), p_expires, p_ref, p_note)
    RETURNING l.id INTO lot;
    IF coalesce(p_effective, now()) <= now() THEN
        txn := weir_book_lot(p_tenant, lot, CASE p_kind WHEN 'paid' THEN 'topup' ELSE 'grant' END,
                             CASE p_kind WHEN 'paid' THEN 'stripe:clearing' ELSE 'promo:granted' END);
    END IF;
END
$$;
-- +goose StatementEnd

-- weir_adjust books a correction, idempotent by ref, and returns its
-- transaction. A positive amount is in the tenant's favour.
--
--   adjust    what usage should have cost: a positive one lowers what the tenant
--             owes, the rest becomes paid credit; a negative one burns credit
--   refund    a negative amount of paid credit that was paid back
--   writeoff  a positive amount of what the tenant owes that is forgiven
-- +goose StatementBegin
CREATE FUNCTION weir_adjust(p_tenant text, p_amount bigint, p_kind text, p_ref text, p_note text DEFAULT '')
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    txn    bigint;
    booked bigint;
    lot    bigint;
BEGIN
    PERFORM weir_open_wallet(p_tenant);
    SELECT t.id, (SELECT sum(e.amount_nano) FROM ledger_entries e
                   WHERE e.tenant_id = p_tenant AND e.txn = t.id AND e.account LIKE 'tenant:%')
      INTO txn, booked
      FROM ledger_transactions t
     WHERE t.tenant_id = p_tenant AND t.ref = p_ref;
    IF FOUND THEN
        IF booked <> p_amount THEN
            RAISE EXCEPTION 'correction % of % was another: % nano-USD', p_ref, p_tenant, booked
                USING ERRCODE = 'unique_violation';
        END IF;
        RETURN txn;
    END IF;
    IF NOT coalesce(CASE p_kind
            WHEN 'adjust' THEN p_amount <> 0
            WHEN 'refund' THEN p_amount < 0 AND -p_amount <= weir_refundable(p_tenant)
            WHEN 'writeoff' THEN p_amount > 0 AND p_amount <= weir_owed(p_tenant)
        END, false) THEN
        RAISE EXCEPTION 'no % of % nano-USD can be booked', p_kind, p_amount USING ERRCODE = 'invalid_parameter_value';
    END IF;

    IF p_kind = 'adjust' AND p_amount > 0 THEN
        INSERT INTO credit_lots AS l (tenant_id, kind, priority, amount_nano, ref, note)
        VALUES (p_tenant, 'paid', 30, p_amount, p_ref, p_note)
        RETURNING l.id INTO lot;
        RETURN weir_book_lot(p_tenant, lot, p_kind, 'revenue:usage');
    END IF;

    txn := nextval('ledger_transactions_id_seq');
    INSERT INTO ledger_transactions (tenant_id, id, kind, ref, note) VALUES (p_tenant, txn, p_kind, p_ref, p_note);
    CASE p_kind
        WHEN 'adjust' THEN PERFORM weir_burn(ARRAY[p_tenant], ARRAY[-p_amount], ARRAY[txn], 'revenue:usage');
        WHEN 'refund' THEN PERFORM weir_burn(ARRAY[p_tenant], ARRAY[-p_amount], ARRAY[txn], 'stripe:clearing', 'paid');
        ELSE
            INSERT INTO ledger_entries (tenant_id, txn, account, amount_nano)
            VALUES (p_tenant, txn, 'tenant:receivable', p_amount), (p_tenant, txn, 'writeoff', -p_amount);
    END CASE;
    UPDATE wallets w SET balance_nano = w.balance_nano + p_amount WHERE w.tenant_id = p_tenant AND w.node = p_tenant;
    RETURN txn;
END
$$;
-- +goose StatementEnd

-- weir_reverse books the opposite of a transaction, which is named in it, and
-- returns its own. A transaction is reversed once: again returns the same. Credit
-- comes back to the lots that it was taken from; of a lot that was used
-- meanwhile the tenant owes the rest, and what it owes no more becomes credit.
-- +goose StatementBegin
CREATE FUNCTION weir_reverse(p_tenant text, p_txn bigint, p_note text DEFAULT '') RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    reversal  bigint;
    spare     bigint;
    spare_lot bigint := 0;
    change    bigint;
BEGIN
    PERFORM weir_open_wallet(p_tenant);
    SELECT t.id INTO reversal FROM ledger_transactions t WHERE t.tenant_id = p_tenant AND t.reverses = p_txn;
    IF FOUND THEN
        RETURN reversal;
    END IF;
    PERFORM FROM ledger_transactions t WHERE t.tenant_id = p_tenant AND t.id = p_txn AND t.kind <> 'reverse';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'transaction % of % can''t be reversed', p_txn, p_tenant USING ERRCODE = 'invalid_parameter_value';
    END IF;
    reversal := nextval('ledger_transactions_id_seq');
    INSERT INTO ledger_transactions (tenant_id, id, kind, note, reverses) VALUES (p_tenant, reversal, 'reverse', p_note, p_txn);

    -- What comes to the receivable beyond what is owed there.
    SELECT sum(CASE WHEN e.account = 'tenant:receivable' THEN -e.amount_nano
                    ELSE least(0, l.remaining_nano - e.amount_nano) END) - weir_owed(p_tenant)
      INTO spare
      FROM ledger_entries e
      LEFT JOIN credit_lots l ON l.tenant_id = e.tenant_id AND l.id = e.lot
     WHERE e.tenant_id = p_tenant AND e.txn = p_txn AND e.account LIKE 'tenant:%';
    spare := greatest(spare, 0);
    IF spare > 0 THEN
        INSERT INTO credit_lots AS l (tenant_id, kind, priority, amount_nano, remaining_nano, open, ref, note, ledger_txn)
        VALUES (p_tenant, 'paid', 30, spare, spare, true, 'reverse:' || p_txn, p_note, reversal)
        RETURNING l.id INTO spare_lot;
    END IF;

    WITH back AS (
        SELECT e.account, e.lot, -e.amount_nano AS amount, greatest(-e.amount_nano, -l.remaining_nano) AS from_lot
          FROM ledger_entries e
          LEFT JOIN credit_lots l ON l.tenant_id = e.tenant_id AND l.id = e.lot
         WHERE e.tenant_id = p_tenant AND e.txn = p_txn
    ), lots AS (
        UPDATE credit_lots l
           SET remaining_nano = l.remaining_nano + b.from_lot, open = l.remaining_nano + b.from_lot > 0
          FROM back b
         WHERE l.tenant_id = p_tenant AND l.id = b.lot
    ), entries AS (
        SELECT account, b.lot, coalesce(from_lot, amount) AS amount FROM back b
        UNION ALL
        SELECT 'tenant:receivable', 0, amount - from_lot FROM back WHERE from_lot IS NOT NULL
        UNION ALL
        VALUES ('tenant:receivable', 0, -spare), ('tenant:cash', spare_lot, spare)
    ), booked AS (
        INSERT INTO ledger_entries (tenant_id, txn, account, lot, amount_nano)
        SELECT p_tenant, reversal, e.account, e.lot, sum(e.amount)::bigint
          FROM entries e GROUP BY e.account, e.lot HAVING sum(e.amount) <> 0
        RETURNING account, amount_nano
    )
    SELECT coalesce(sum(amount_nano), 0) INTO change FROM booked WHERE account LIKE 'tenant:%';
    UPDATE wallets w SET balance_nano = w.balance_nano + change WHERE w.tenant_id = p_tenant AND w.node = p_tenant;
    RETURN reversal;
END
$$;
-- +goose StatementEnd

-- weir_turn_lots lets at most p_max lots take effect or expire, and says how
-- many did. What a hold may still need doesn't expire yet.
-- +goose StatementBegin
CREATE FUNCTION weir_turn_lots(p_max integer, OUT opened integer, OUT expired integer)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    due   record;
    taken bigint;
    txn   bigint;
BEGIN
    opened := 0;
    expired := 0;
    FOR due IN
        SELECT l.tenant_id, l.id, l.kind, l.ledger_txn IS NULL AS opens
          FROM credit_lots l
         WHERE l.ledger_txn IS NULL AND l.effective_at <= now() OR l.open AND l.expires_at <= now()
         ORDER BY l.tenant_id, l.id
         LIMIT p_max
    LOOP
        PERFORM weir_open_wallet(due.tenant_id);
        IF due.opens THEN
            -- Another may have been here while the lock was waited for.
            CONTINUE WHEN (SELECT l.ledger_txn FROM credit_lots l WHERE l.tenant_id = due.tenant_id AND l.id = due.id) IS NOT NULL;
            PERFORM weir_book_lot(due.tenant_id, due.id, CASE due.kind WHEN 'paid' THEN 'topup' ELSE 'grant' END,
                                  CASE due.kind WHEN 'paid' THEN 'stripe:clearing' ELSE 'promo:granted' END);
            opened := opened + 1;
            CONTINUE;
        END IF;
        SELECT CASE WHEN EXISTS (SELECT FROM chunks c WHERE c.tenant_id = due.tenant_id AND c.node = due.tenant_id AND c.left_nano > 0)
                    THEN least(l.remaining_nano, weir_free(due.tenant_id))
                    ELSE l.remaining_nano
               END INTO taken
          FROM credit_lots l WHERE l.tenant_id = due.tenant_id AND l.id = due.id;
        CONTINUE WHEN taken <= 0;
        txn := nextval('ledger_transactions_id_seq');
        INSERT INTO ledger_transactions (tenant_id, id, kind, note) VALUES (due.tenant_id, txn, 'expire', 'credit ' || due.id);
        INSERT INTO ledger_entries (tenant_id, txn, account, lot, amount_nano)
        VALUES (due.tenant_id, txn, CASE due.kind WHEN 'paid' THEN 'tenant:cash' ELSE 'tenant:promo' END, due.id, -taken),
               (due.tenant_id, txn, CASE due.kind WHEN 'paid' THEN 'expired' ELSE 'promo:granted' END, 0, taken);
        UPDATE credit_lots l SET remaining_nano = l.remaining_nano - taken, open = l.remaining_nano > taken
         WHERE l.tenant_id = due.tenant_id AND l.id = due.id;
        UPDATE wallets w SET balance_nano = w.balance_nano - taken
         WHERE w.tenant_id = due.tenant_id AND w.node = due.tenant_id;
        expired := expired + 1;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- weir_set_credit_limit sets what the tenant may owe.
-- +goose StatementBegin
CREATE FUNCTION weir_set_credit_limit(p_tenant text, p_limit bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM weir_open_wallet(p_tenant);
    UPDATE wallets w SET credit_limit_nano = p_limit WHERE w.tenant_id = p_tenant AND w.node = p_tenant;
END
$$;
-- +goose StatementEnd

-- weir_allot caps what a project or a key may spend: p_add NULL sets what is
-- left to p_set, otherwise it is added to. Returns what is left. weir_lift_cap
-- removes the cap.
-- +goose StatementBegin
CREATE FUNCTION weir_allot(p_tenant text, p_node text, p_scope text, p_set bigint, p_add bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    INSERT INTO wallets AS w (tenant_id, node, scope, balance_nano)
    VALUES (p_tenant, p_node, p_scope, coalesce(p_set, 0) + coalesce(p_add, 0))
    ON CONFLICT (tenant_id, node) DO UPDATE
       SET balance_nano = coalesce(p_set, w.balance_nano) + coalesce(p_add, 0)
     WHERE w.scope = p_scope AND w.scope <> 'tenant'
    RETURNING balance_nano
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION weir_lift_cap(p_tenant text, p_node text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    DELETE FROM wallets w WHERE w.tenant_id = p_tenant AND w.node = p_node AND w.scope <> 'tenant';
    RETURN FOUND;
END
$$;
-- +goose StatementEnd

-- weir_list_wallets is the operator's list, by tenant and node, those after the
-- given pair.
-- +goose StatementBegin
CREATE FUNCTION weir_list_wallets(p_after_tenant text, p_after_node text, p_max integer)
RETURNS TABLE (tenant text, node text, scope text, balance_nano bigint, credit_limit_nano bigint, held_nano bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT w.tenant_id, w.node, w.scope, w.balance_nano, w.credit_limit_nano,
           (SELECT coalesce(sum(c.left_nano), 0)::bigint FROM chunks c WHERE c.tenant_id = w.tenant_id AND c.node = w.node)
      FROM wallets w
     WHERE (w.tenant_id, w.node) > (p_after_tenant, p_after_node)
     ORDER BY w.tenant_id, w.node
     LIMIT p_max
$$;
-- +goose StatementEnd

-- weir_sum_hours sums receipts up as usage_hours does.
-- +goose StatementBegin
CREATE FUNCTION weir_sum_hours(p_from timestamptz, p_to timestamptz) RETURNS SETOF usage_hours
LANGUAGE sql STABLE
AS $$
    SELECT r.tenant_id, date_trunc('hour', r.settled_at, 'UTC'), r.project_id, r.key_id, r.model, r.tier,
           count(*), sum(r.input_uncached)::bigint, sum(r.input_cached)::bigint, sum(r.output)::bigint,
           sum(r.reasoning)::bigint, sum(r.cost_nano)::bigint, sum(r.saved_nano)::bigint
      FROM receipts r
     WHERE r.settled_at >= date_trunc('hour', p_from, 'UTC') AND r.settled_at < date_trunc('hour', p_to, 'UTC')
       AND r.mode <> 'off'
     GROUP BY 1, 2, 3, 4, 5, 6
$$;
-- +goose StatementEnd

-- weir_crooked_hours are the hours of a period of which the sums are not those
-- of the receipts, with what they differ by in cost.
-- +goose StatementBegin
CREATE FUNCTION weir_crooked_hours(p_from timestamptz, p_to timestamptz)
RETURNS TABLE (tenant text, subject text, expected_nano bigint, found_nano bigint)
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(r.tenant_id, h.tenant_id),
           concat_ws(' ', to_char(coalesce(r.hour, h.hour) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:00'),
                     coalesce(r.key_id, h.key_id), coalesce(r.model, h.model)),
           coalesce(r.cost_nano, 0), coalesce(h.cost_nano, 0)
      FROM weir_sum_hours(p_from, p_to) r
      FULL JOIN (SELECT * FROM usage_hours h
                  WHERE h.hour >= date_trunc('hour', p_from, 'UTC') AND h.hour < date_trunc('hour', p_to, 'UTC')) h
             ON (h.tenant_id, h.hour, h.project_id, h.key_id, h.model, h.tier)
              = (r.tenant_id, r.hour, r.project_id, r.key_id, r.model, r.tier)
     WHERE r IS DISTINCT FROM h
$$;
-- +goose StatementEnd

-- weir_rebuild_hours makes the sums of the hours of [p_from, p_to)
-- again from their receipts, and returns how many rows differed. Settling of
-- what isn't of mode off waits meanwhile: rebuild an hour at a time.
-- +goose StatementBegin
CREATE FUNCTION weir_rebuild_hours(p_from timestamptz, p_to timestamptz) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    differing bigint;
BEGIN
    LOCK TABLE usage_hours IN SHARE ROW EXCLUSIVE MODE;
    SELECT count(*) INTO differing FROM weir_crooked_hours(p_from, p_to);
    IF differing > 0 THEN
        DELETE FROM usage_hours h
         WHERE h.hour >= date_trunc('hour', p_from, 'UTC') AND h.hour < date_trunc('hour', p_to, 'UTC');
        INSERT INTO usage_hours SELECT * FROM weir_sum_hours(p_from, p_to);
    END IF;
    RETURN differing;
END
$$;
-- +goose StatementEnd

-- weir_check_ledger looks for what breaks the ledger's rules, and returns up to
-- p_max faults of each rule. Balances and credit are checked over all time,
-- receipts, their transactions and hours for the period. It looks at one moment:
-- what is being settled is in all of it or in none.
-- +goose StatementBegin
CREATE FUNCTION weir_check_ledger(p_from timestamptz, p_to timestamptz, p_max integer)
RETURNS TABLE (rule text, tenant text, subject text, expected_nano bigint, found_nano bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    -- The entries of each transaction sum to zero.
    (SELECT 'entries', e.tenant_id, 'transaction ' || e.txn, 0::bigint, sum(e.amount_nano)::bigint
       FROM ledger_entries e
      GROUP BY e.tenant_id, e.txn
     HAVING sum(e.amount_nano) <> 0
      LIMIT p_max)
    UNION ALL
    -- A balance is what the ledger has on the tenant's accounts.
    (SELECT 'balance', coalesce(w.tenant_id, e.tenant_id), 'wallet', coalesce(e.sum, 0), coalesce(w.balance_nano, 0)
       FROM (SELECT * FROM wallets w WHERE w.scope = 'tenant') w
       FULL JOIN (SELECT e.tenant_id, sum(e.amount_nano)::bigint AS sum
                    FROM ledger_entries e
                   WHERE e.account LIKE 'tenant:%'
                   GROUP BY e.tenant_id) e ON e.tenant_id = w.tenant_id
      WHERE coalesce(e.sum, 0) <> coalesce(w.balance_nano, 0)
      LIMIT p_max)
    UNION ALL
    -- What remains of a lot is the sum of its entries.
    (SELECT 'credit', l.tenant_id, 'credit ' || l.id, coalesce(e.sum, 0), l.remaining_nano
       FROM credit_lots l
       LEFT JOIN (SELECT e.tenant_id, e.lot, sum(e.amount_nano)::bigint AS sum
                    FROM ledger_entries e
                   WHERE e.lot > 0
                   GROUP BY e.tenant_id, e.lot) e ON e.tenant_id = l.tenant_id AND e.lot = l.id
      WHERE coalesce(e.sum, 0) <> l.remaining_nano
      LIMIT p_max)
    UNION ALL
    -- Nobody is owed on the account of what is owed to us.
    (SELECT 'receivable', e.tenant_id, 'tenant:receivable', 0::bigint, sum(e.amount_nano)::bigint
       FROM ledger_entries e
      WHERE e.account = 'tenant:receivable'
      GROUP BY e.tenant_id
     HAVING sum(e.amount_nano) > 0
      LIMIT p_max)
    UNION ALL
    -- No more is set aside than there is.
    (SELECT 'held', w.tenant_id, w.node, w.balance_nano + w.credit_limit_nano, c.sum
       FROM wallets w
       JOIN (SELECT c.tenant_id, c.node, sum(c.left_nano)::bigint AS sum FROM chunks c GROUP BY c.tenant_id, c.node) c
              ON c.tenant_id = w.tenant_id AND c.node = w.node
      WHERE w.scope = 'tenant' AND c.sum > greatest(w.balance_nano + w.credit_limit_nano, 0)
      LIMIT p_max)
    UNION ALL
    -- A usage transaction earns what its receipts cost, and no receipt that
    -- is to be booked lacks one.
    (SELECT 'usage', coalesce(t.tenant_id, r.tenant_id), 'transaction ' || coalesce(t.id, r.ledger_txn, 0),
            coalesce(r.sum, 0), coalesce(t.sum, 0)
       FROM (SELECT t.tenant_id, t.id, t.booked_at, sum(e.amount_nano)::bigint AS sum
               FROM ledger_transactions t
               JOIN ledger_entries e ON e.tenant_id = t.tenant_id AND e.txn = t.id AND e.account = 'revenue:usage'
              WHERE t.kind = 'usage' AND t.booked_at >= p_from AND t.booked_at < p_to
              GROUP BY t.tenant_id, t.id) t
       FULL JOIN (SELECT r.tenant_id, r.ledger_txn, r.settled_at, sum(r.cost_nano)::bigint AS sum
                    FROM receipts r
                   WHERE r.settled_at >= p_from AND r.settled_at < p_to AND r.mode = 'enforce' AND r.cost_nano > 0
                   GROUP BY r.tenant_id, r.ledger_txn, r.settled_at) r
              ON r.tenant_id = t.tenant_id AND r.ledger_txn = t.id AND r.settled_at = t.booked_at
      WHERE t.sum IS DISTINCT FROM r.sum
      LIMIT p_max)
    UNION ALL
    -- Each receipt is the one of its request.
    (SELECT 'receipts', coalesce(r.tenant_id, i.tenant_id), coalesce(r.request_id, i.request_id),
            coalesce(r.cost_nano, 0), 0::bigint
       FROM (SELECT * FROM receipts r WHERE r.settled_at >= p_from AND r.settled_at < p_to) r
       FULL JOIN (SELECT * FROM receipt_ids i WHERE i.settled_at >= p_from AND i.settled_at < p_to) i
              ON i.tenant_id = r.tenant_id AND i.request_id = r.request_id AND i.settled_at = r.settled_at
      WHERE i.request_id IS NULL OR r.request_id IS NULL
      LIMIT p_max)
    UNION ALL
    -- The sums of the hours are those of the receipts.
    (SELECT 'hours', h.* FROM weir_crooked_hours(p_from, p_to) h LIMIT p_max)
$$;
-- +goose StatementEnd

-- weir_make_receipt_partitions makes the partitions of this month and the three
-- to come, by UTC, and moves there what the default partition holds for them.
-- It returns how many rows stay in the default partition: any is a fault of a
-- clock. It may be called at any time, by several at once.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION weir_make_receipt_partitions() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    this_month timestamp := date_trunc('month', now() AT TIME ZONE 'UTC');
    opens      timestamptz;
    closes     timestamptz;
    part       text;
    stray      bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('weir.receipt_partitions'));
    FOR ahead IN 0..3 LOOP
        opens := (this_month + make_interval(months => ahead)) AT TIME ZONE 'UTC';
        closes := (this_month + make_interval(months => ahead + 1)) AT TIME ZONE 'UTC';
        part := 'receipts_' || to_char(opens AT TIME ZONE 'UTC', 'YYYY_MM');
        CONTINUE WHEN to_regclass('public.' || part) IS NOT NULL;

        -- Attaching a filled table needs a weaker lock on the parent than
        -- creating a partition in place. What would be stored in the default
        -- partition waits: a row that came after the move would be in the way.
        LOCK TABLE public.receipts_default IN SHARE ROW EXCLUSIVE MODE;
        EXECUTE format('CREATE TABLE public.%I (LIKE public.receipts INCLUDING ALL)', part);
        EXECUTE format(
            'WITH moved AS (DELETE FROM public.receipts_default WHERE settled_at >= %L AND settled_at < %L RETURNING *)
             INSERT INTO public.%I SELECT * FROM moved', opens, closes, part);
        EXECUTE format('ALTER TABLE public.%I ENABLE ROW LEVEL SECURITY', part);
        EXECUTE format('ALTER TABLE public.%I FORCE ROW LEVEL SECURITY', part);
        EXECUTE format('ALTER TABLE public.receipts ATTACH PARTITION public.%I FOR VALUES FROM (%L) TO (%L)',
            part, opens, closes);
    END LOOP;
    SELECT count(*) INTO stray FROM receipts_default;
    RETURN stray;
END
$$;
-- +goose StatementEnd

REVOKE ALL ON TYPE weir_receipt_money FROM PUBLIC;
GRANT USAGE ON TYPE weir_receipt_money TO weir_worker;
REVOKE ALL ON FUNCTION weir_settle_money, weir_draw, weir_renew_chunks, weir_return_chunks, weir_dead_chunks,
    weir_close_dead_chunks, weir_credit, weir_adjust, weir_reverse, weir_turn_lots, weir_set_credit_limit, weir_allot,
    weir_lift_cap, weir_list_wallets, weir_rebuild_hours, weir_check_ledger, weir_sum_hours, weir_crooked_hours, weir_burn, weir_open_wallet, weir_owed, weir_free, weir_refundable, weir_book_lot,
    weir_check_entries, weir_refuse_change FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_settle_money, weir_draw, weir_renew_chunks, weir_return_chunks, weir_dead_chunks,
    weir_close_dead_chunks, weir_credit, weir_adjust, weir_reverse, weir_turn_lots, weir_set_credit_limit, weir_allot,
    weir_lift_cap, weir_list_wallets, weir_rebuild_hours, weir_check_ledger TO weir_worker;
