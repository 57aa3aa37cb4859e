-- What tokens cost, and the record of what was used. Prices are global; receipts
-- belong to a tenant, which row-level security enforces. Money is integer:
-- pico-USD per token in prices, nano-USD in receipts.

-- +goose Up

-- The price book. A published version is never edited or removed, so a receipt's
-- price_version leads to its rates for ever. pico-USD per token is the same
-- number as micro-USD per million tokens.
CREATE TABLE prices (
    version           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    model             text NOT NULL CHECK (model <> ''),
    effective_from    timestamptz NOT NULL,
    input_pico        bigint NOT NULL CHECK (input_pico >= 0),
    cached_input_pico bigint NOT NULL CHECK (cached_input_pico BETWEEN 0 AND input_pico),
    output_pico       bigint NOT NULL CHECK (output_pico >= 0),
    reasoning_pico    bigint NOT NULL CHECK (reasoning_pico >= 0),
    created_at        timestamptz NOT NULL DEFAULT now(),
    UNIQUE (model, effective_from)
);

GRANT SELECT, INSERT ON prices TO weir_app;

-- One row for each exchange that reached an engine. settled_at is the moment of
-- storing: a closed month gets no more rows, whenever a request began. There
-- are no foreign keys: receipts outlive what they name, and each would cost a
-- look-up and a lock on a shared row for every request.
CREATE TABLE receipts (
    tenant_id         text COLLATE "C" NOT NULL CHECK (tenant_id <> ''),
    settled_at        timestamptz NOT NULL,
    request_id        text COLLATE "C" NOT NULL CHECK (request_id <> ''),
    client_request_id text NOT NULL,
    project_id        text NOT NULL,
    key_id            text NOT NULL,
    operation         text NOT NULL,
    model             text NOT NULL,
    pool              text NOT NULL,
    endpoint          text NOT NULL,
    attempts          integer NOT NULL CHECK (attempts >= 0),
    stream            boolean NOT NULL,
    band              text NOT NULL,
    priority          integer NOT NULL,
    tier              text NOT NULL,
    input_uncached    bigint NOT NULL CHECK (input_uncached >= 0),
    input_cached      bigint NOT NULL CHECK (input_cached >= 0),
    output            bigint NOT NULL CHECK (output >= 0),
    reasoning         bigint NOT NULL CHECK (reasoning >= 0),
    usage_source      text NOT NULL CHECK (usage_source IN ('upstream_final', 'upstream_partial', 'gateway_count', 'none')),
    price_version     bigint NOT NULL CHECK (price_version >= 0),
    cost_nano         bigint NOT NULL CHECK (cost_nano >= 0),
    started_at        timestamptz NOT NULL,
    queue_us          bigint NOT NULL CHECK (queue_us >= 0),
    ttft_us           bigint NOT NULL CHECK (ttft_us >= 0),
    duration_us       bigint NOT NULL CHECK (duration_us >= 0),
    outcome           text NOT NULL CHECK (outcome <> ''),
    PRIMARY KEY (tenant_id, settled_at, request_id)
) PARTITION BY RANGE (settled_at);

-- Takes what no month's partition takes, so that a settle never fails for want
-- of one. It should stay empty.
CREATE TABLE receipts_default PARTITION OF receipts DEFAULT;

-- Makes a request id unique over all partitions, and leads from it to the row.
CREATE TABLE receipt_ids (
    tenant_id  text COLLATE "C" NOT NULL,
    request_id text COLLATE "C" NOT NULL,
    settled_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, request_id)
);

-- Partitions are granted to nobody: a policy on the parent guards only what
-- goes through the parent.
ALTER TABLE receipts ENABLE ROW LEVEL SECURITY;
ALTER TABLE receipts FORCE ROW LEVEL SECURITY;
ALTER TABLE receipts_default ENABLE ROW LEVEL SECURITY;
ALTER TABLE receipts_default FORCE ROW LEVEL SECURITY;
ALTER TABLE receipt_ids ENABLE ROW LEVEL SECURITY;
ALTER TABLE receipt_ids FORCE ROW LEVEL SECURITY;

CREATE POLICY own_tenant ON receipts FOR SELECT TO weir_app USING (tenant_id = weir_tenant());
CREATE POLICY own_tenant ON receipt_ids FOR SELECT TO weir_app USING (tenant_id = weir_tenant());
GRANT SELECT ON receipts, receipt_ids TO weir_app;

-- The functions below run as the owner and write for many tenants at once; they
-- read back what they wrote, and empty the default partition.
CREATE POLICY functions_read ON receipts FOR SELECT TO CURRENT_USER USING (true);
CREATE POLICY functions_write ON receipts FOR INSERT TO CURRENT_USER WITH CHECK (true);
CREATE POLICY functions_read ON receipt_ids FOR SELECT TO CURRENT_USER USING (true);
CREATE POLICY functions_write ON receipt_ids FOR INSERT TO CURRENT_USER WITH CHECK (true);
CREATE POLICY functions_move ON receipts_default TO CURRENT_USER USING (true) WITH CHECK (true);

-- What weir_settle takes: an array of these is far cheaper to send and to unnest
-- than an array for each column. A column that receipts gets later goes to the
-- end of a new type with a function of its own, so that the previous binary
-- goes on settling.
CREATE TYPE weir_receipt AS (
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
    outcome           text
);

-- weir_settle stores receipts of any tenants and returns the request ids that
-- were new. A receipt that is already stored is left as it is, so a batch may be
-- sent again; it may stand in one batch only once. When the transaction has
-- committed the receipts are on disk, even where the server's default is an
-- asynchronous commit.
-- +goose StatementBegin
CREATE FUNCTION weir_settle(batch weir_receipt[]) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    stored text[];
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest(batch)
    ), fresh AS (
        INSERT INTO receipt_ids (tenant_id, request_id, settled_at)
        SELECT tenant_id, request_id, now()
        FROM given
        ON CONFLICT DO NOTHING
        RETURNING tenant_id, request_id
    ), written AS (
        INSERT INTO receipts (
            tenant_id, settled_at, request_id, client_request_id, project_id, key_id,
            operation, model, pool, endpoint, attempts, stream, band, priority, tier,
            input_uncached, input_cached, output, reasoning, usage_source, price_version, cost_nano,
            started_at, queue_us, ttft_us, duration_us, outcome)
        SELECT
            tenant_id, now(), request_id, client_request_id, project_id, key_id,
            operation, model, pool, endpoint, attempts, stream, band, priority, tier,
            input_uncached, input_cached, output, reasoning, usage_source, price_version, cost_nano,
            started_at, queue_us, ttft_us, duration_us, outcome
        FROM given
        WHERE (tenant_id, request_id) IN (SELECT tenant_id, request_id FROM fresh)
    )
    SELECT coalesce(array_agg(request_id), '{}') INTO stored FROM fresh;
    RETURN stored;
END
$$;
-- +goose StatementEnd

-- weir_make_receipt_partitions makes the partitions of this month and the three
-- to come, by UTC, and moves there what the default partition holds for them.
-- It returns how many rows stay in the default partition: any is a fault of a
-- clock. It may be called at any time, by several at once.
-- +goose StatementBegin
CREATE FUNCTION weir_make_receipt_partitions() RETURNS bigint
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
        -- creating a partition in place: settles go on meanwhile.
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

REVOKE ALL ON TYPE weir_receipt FROM PUBLIC;
GRANT USAGE ON TYPE weir_receipt TO weir_worker;
REVOKE ALL ON FUNCTION weir_settle, weir_make_receipt_partitions FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_settle, weir_make_receipt_partitions TO weir_worker;

SELECT weir_make_receipt_partitions();
