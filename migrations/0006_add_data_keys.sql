-- What tenants' content is sealed with. A data key is random and stands here
-- wrapped: sealed under a master key that lives outside the database. To
-- destroy a tenant's data keys is to erase its content, wherever copies lie.

-- +goose Up
CREATE TABLE data_keys (
    tenant_id  text COLLATE "C" NOT NULL REFERENCES tenants (id),
    version    integer NOT NULL CHECK (version > 0),
    wrapped    bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, version)
);

ALTER TABLE data_keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE data_keys FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON data_keys USING (tenant_id = weir_tenant()) WITH CHECK (tenant_id = weir_tenant());
GRANT SELECT, INSERT, DELETE ON data_keys TO weir_app;
