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
