-- Prices by service tier and by length of the context, and of single tenants.

-- +goose Up

-- A multiplier is in basis points: 5000 is half the price, 0 a tier that the
-- model isn't sold at. What was published before was sold at one price, so those
-- versions say 10000; so does what the previous binary still publishes.
-- long_context is a list of {min_input, input, cached_input, output, reasoning}:
-- rates of the whole request from so many input tokens on. A receipt's
-- price_version, tier and token classes lead to the rates that it was billed at.
ALTER TABLE prices
    ADD COLUMN flex_bp       integer NOT NULL DEFAULT 10000 CHECK (flex_bp >= 0),
    ADD COLUMN priority_bp   integer NOT NULL DEFAULT 10000 CHECK (priority_bp >= 0),
    ADD COLUMN batch_bp      integer NOT NULL DEFAULT 10000 CHECK (batch_bp >= 0),
    ADD COLUMN background_bp integer NOT NULL DEFAULT 10000 CHECK (background_bp >= 0),
    ADD COLUMN long_context  jsonb   NOT NULL DEFAULT '[]' CHECK (jsonb_typeof(long_context) = 'array');

-- What single tenants pay in place of the list's price. A lapsed row ends that:
-- from then on the list's price holds again. Versions are counted together with
-- the list's, so that a receipt's price_version means one row of either.
CREATE TABLE tenant_prices (
    tenant_id         text COLLATE "C" NOT NULL REFERENCES tenants (id),
    model             text NOT NULL CHECK (model <> ''),
    effective_from    timestamptz NOT NULL,
    version           bigint NOT NULL DEFAULT nextval('prices_version_seq') UNIQUE,
    lapsed            boolean NOT NULL,
    input_pico        bigint NOT NULL CHECK (input_pico >= 0),
    cached_input_pico bigint NOT NULL CHECK (cached_input_pico BETWEEN 0 AND input_pico),
    output_pico       bigint NOT NULL CHECK (output_pico >= 0),
    reasoning_pico    bigint NOT NULL CHECK (reasoning_pico >= 0),
    flex_bp           integer NOT NULL CHECK (flex_bp >= 0),
    priority_bp       integer NOT NULL CHECK (priority_bp >= 0),
    batch_bp          integer NOT NULL CHECK (batch_bp >= 0),
    background_bp     integer NOT NULL CHECK (background_bp >= 0),
    long_context      jsonb NOT NULL CHECK (jsonb_typeof(long_context) = 'array'),
    created_at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, model, effective_from)
);

ALTER TABLE tenant_prices ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenant_prices FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON tenant_prices TO weir_app USING (tenant_id = weir_tenant()) WITH CHECK (tenant_id = weir_tenant());
CREATE POLICY functions_read ON tenant_prices FOR SELECT TO CURRENT_USER USING (true);
GRANT SELECT, INSERT ON tenant_prices TO weir_app;
GRANT USAGE ON SEQUENCE prices_version_seq TO weir_app;

-- Prices that wait to be published: of single tenants, or of the list where
-- tenant_id is empty, which only who acts for no tenant may touch. body is a
-- price as the operator wrote it.
CREATE TABLE price_drafts (
    tenant_id  text COLLATE "C" NOT NULL,
    model      text NOT NULL CHECK (model <> ''),
    body       jsonb NOT NULL,
    author     text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, model)
);

ALTER TABLE price_drafts ENABLE ROW LEVEL SECURITY;
ALTER TABLE price_drafts FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON price_drafts TO weir_app
    USING (tenant_id = coalesce(weir_tenant(), '')) WITH CHECK (tenant_id = coalesce(weir_tenant(), ''));
GRANT SELECT, INSERT, UPDATE, DELETE ON price_drafts TO weir_app;

-- weir_tenant_prices lists every tenant's own prices of versions above the given
-- one: a gateway rates requests of all tenants. Nothing is ever removed, and
-- versions are committed in their order, so a reader may go on from the last one.
-- +goose StatementBegin
CREATE FUNCTION weir_tenant_prices(after_version bigint) RETURNS SETOF tenant_prices
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT * FROM tenant_prices WHERE version > after_version
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION weir_tenant_prices FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_tenant_prices TO weir_worker;

-- Receipts that were rated again, and otherwise: each row takes the place of the
-- one before, and of the receipt's own cost. Only what was paid for is corrected, as
-- a new ledger transaction; the receipt itself is never changed.
CREATE TABLE ratings (
    tenant_id     text COLLATE "C" NOT NULL CHECK (tenant_id <> ''),
    request_id    text COLLATE "C" NOT NULL CHECK (request_id <> ''),
    nth           integer NOT NULL CHECK (nth > 0),
    rated_at      timestamptz NOT NULL DEFAULT now(),
    price_version bigint NOT NULL CHECK (price_version > 0),
    cost_nano     bigint NOT NULL CHECK (cost_nano >= 0),
    saved_nano    bigint NOT NULL CHECK (saved_nano >= 0),
    ledger_txn    bigint, -- NULL where the differences of a batch made up for one another
    PRIMARY KEY (tenant_id, request_id, nth)
);
CREATE INDEX ratings_txn ON ratings (tenant_id, ledger_txn);

ALTER TABLE ratings ENABLE ROW LEVEL SECURITY;
ALTER TABLE ratings FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON ratings FOR SELECT TO weir_app USING (tenant_id = weir_tenant());
CREATE POLICY functions_read ON ratings FOR SELECT TO CURRENT_USER USING (true);
CREATE POLICY functions_write ON ratings FOR INSERT TO CURRENT_USER WITH CHECK (true);
GRANT SELECT ON ratings TO weir_app;

-- weir_rerate stores what receipts of a tenant should have cost, and books the
-- difference to what they did as one correction. A receipt counts only where it
-- was paid for and has cost was_nano until now, so a batch may be sent again:
-- what is done already is not done twice. It returns how many it changed, their
-- difference (positive in the tenant's favour) and the transaction.
-- +goose StatementBegin
CREATE FUNCTION weir_rerate(
    p_tenant text, p_requests text[], p_settled timestamptz[], p_was bigint[],
    p_versions bigint[], p_costs bigint[], p_saved bigint[], p_ref text, p_note text,
    OUT changed bigint, OUT amount bigint, OUT txn bigint)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    due text[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('weir.rerate'), hashtext(p_tenant));
    SELECT coalesce(array_agg(g.request_id), '{}'), coalesce(sum(g.was - g.cost), 0)::bigint INTO due, amount
      FROM unnest(p_requests, p_settled, p_was, p_costs) AS g (request_id, settled_at, was, cost)
      JOIN receipts r ON r.tenant_id = p_tenant AND r.settled_at = g.settled_at AND r.request_id = g.request_id
     WHERE r.mode = 'enforce'
       AND g.was = coalesce((
               SELECT l.cost_nano FROM ratings l
                WHERE l.tenant_id = p_tenant AND l.request_id = g.request_id
                ORDER BY l.nth DESC LIMIT 1), r.cost_nano);
    IF amount <> 0 THEN
        txn := weir_adjust(p_tenant, amount, 'adjust', p_ref, p_note);
    END IF;
    INSERT INTO ratings (tenant_id, request_id, nth, price_version, cost_nano, saved_nano, ledger_txn)
    SELECT p_tenant, g.request_id,
           1 + (SELECT count(*) FROM ratings l WHERE l.tenant_id = p_tenant AND l.request_id = g.request_id),
           g.version, g.cost, g.saved, txn
      FROM unnest(p_requests, p_versions, p_costs, p_saved) AS g (request_id, version, cost, saved)
     WHERE g.request_id = ANY (due);
    GET DIAGNOSTICS changed = ROW_COUNT;
END
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION weir_rerate FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_rerate TO weir_worker;
