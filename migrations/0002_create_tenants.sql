-- Who may call, and what each key may do. Plans are global; every other table
-- belongs to a tenant, which row-level security enforces.

-- +goose Up

-- Plans are named by tenants; a plan in use can't be removed. The columns are
-- named as the members of the plan's JSON form, so a row reads as one.
CREATE TABLE plans (
    name           text PRIMARY KEY,
    bands          jsonb NOT NULL CHECK (jsonb_typeof(bands) = 'object'),
    weight         integer NOT NULL CHECK (weight > 0),
    fairness       text NOT NULL CHECK (fairness IN ('tenant', 'project')),
    limits         jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(limits) = 'object'),
    key_limits     jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(key_limits) = 'object'),
    retention_days integer NOT NULL DEFAULT 0 CHECK (retention_days >= 0)
);

-- fairness_id is random: what a scheduler is told names no customer.
CREATE TABLE tenants (
    id           text PRIMARY KEY,
    name         text NOT NULL,
    plan         text NOT NULL REFERENCES plans (name),
    fairness_id  text NOT NULL UNIQUE,
    created_at   timestamptz NOT NULL DEFAULT now(),
    suspended_at timestamptz
);

CREATE TABLE projects (
    tenant_id   text NOT NULL REFERENCES tenants (id),
    id          text NOT NULL,
    name        text NOT NULL,
    fairness_id text NOT NULL UNIQUE,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, id)
);

-- A key is stored as an HMAC of its secret: a stolen table opens nothing.
-- Administration keys act on the tenant, inference keys inside one project.
CREATE TABLE keys (
    tenant_id      text NOT NULL REFERENCES tenants (id),
    id             text NOT NULL,
    project_id     text,
    kind           text NOT NULL CHECK (kind IN ('sk', 'sa', 'adm')),
    hash           bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    pepper_version integer NOT NULL,
    display_start  text NOT NULL,
    display_end    text NOT NULL,
    name           text NOT NULL,
    scopes         text[] NOT NULL DEFAULT '{}',
    models         text[] NOT NULL DEFAULT '{}',
    cidrs          cidr[] NOT NULL DEFAULT '{}',
    limits         jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(limits) = 'object'),
    created_by     text NOT NULL,
    created_at     timestamptz NOT NULL DEFAULT now(),
    expires_at     timestamptz,
    revoked_at     timestamptz,
    last_used_at   timestamptz,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, project_id) REFERENCES projects (tenant_id, id),
    CHECK ((kind = 'adm') = (project_id IS NULL))
);
CREATE INDEX keys_newest ON keys (tenant_id, created_at DESC, id DESC);

-- Who changed what. Nobody but the owner may change or remove an entry.
CREATE TABLE audit (
    tenant_id text NOT NULL REFERENCES tenants (id),
    id        text NOT NULL,
    at        timestamptz NOT NULL DEFAULT now(),
    actor     text NOT NULL,
    action    text NOT NULL,
    target    text NOT NULL,
    detail    jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (tenant_id, id)
);
CREATE INDEX audit_newest ON audit (tenant_id, at DESC);

ALTER TABLE tenants ENABLE ROW LEVEL SECURITY;
ALTER TABLE tenants FORCE ROW LEVEL SECURITY;
ALTER TABLE projects ENABLE ROW LEVEL SECURITY;
ALTER TABLE projects FORCE ROW LEVEL SECURITY;
ALTER TABLE keys ENABLE ROW LEVEL SECURITY;
ALTER TABLE keys FORCE ROW LEVEL SECURITY;
ALTER TABLE audit ENABLE ROW LEVEL SECURITY;
ALTER TABLE audit FORCE ROW LEVEL SECURITY;

CREATE POLICY own_tenant ON tenants USING (id = weir_tenant()) WITH CHECK (id = weir_tenant());
CREATE POLICY own_tenant ON projects USING (tenant_id = weir_tenant()) WITH CHECK (tenant_id = weir_tenant());
CREATE POLICY own_tenant ON keys USING (tenant_id = weir_tenant()) WITH CHECK (tenant_id = weir_tenant());
CREATE POLICY own_tenant ON audit USING (tenant_id = weir_tenant()) WITH CHECK (tenant_id = weir_tenant());

-- The functions below run as the owner, who is bound by FORCE as well unless a
-- superuser. A look-up by hash can't name its tenant first, so the owner may
-- read these three tables, and note the use of a key, whatever the tenant.
CREATE POLICY functions_read ON tenants FOR SELECT TO CURRENT_USER USING (true);
CREATE POLICY functions_read ON projects FOR SELECT TO CURRENT_USER USING (true);
CREATE POLICY functions_read ON keys FOR SELECT TO CURRENT_USER USING (true);
CREATE POLICY functions_touch ON keys FOR UPDATE TO CURRENT_USER USING (true) WITH CHECK (true);

GRANT SELECT, INSERT, UPDATE, DELETE ON plans TO weir_app;
GRANT SELECT, INSERT, UPDATE (name, plan, fairness_id, suspended_at) ON tenants TO weir_app;
GRANT SELECT, INSERT, UPDATE (name, fairness_id) ON projects TO weir_app;
-- All but the hash: the application can store one, never read it back.
GRANT SELECT (tenant_id, id, project_id, kind, pepper_version, display_start, display_end, name, scopes, models,
              cidrs, limits, created_by, created_at, expires_at, revoked_at, last_used_at),
      INSERT,
      UPDATE (name, scopes, models, cidrs, limits, expires_at, revoked_at)
   ON keys TO weir_app;
GRANT SELECT, INSERT ON audit TO weir_app;

-- weir_auth tells every replica, in the transaction of the change itself, what
-- it must no longer believe: an id (key_, ten_, prj_) or "plan:" and its name.
-- +goose StatementBegin
CREATE FUNCTION weir_notify_auth() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM pg_notify('weir_auth', CASE TG_TABLE_NAME
        WHEN 'plans' THEN 'plan:' || (to_jsonb(OLD) ->> 'name')
        ELSE to_jsonb(OLD) ->> 'id'
    END);
    RETURN NULL;
END
$$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION weir_notify_auth() FROM PUBLIC;

CREATE TRIGGER notify_auth AFTER UPDATE OR DELETE ON plans
    FOR EACH ROW EXECUTE FUNCTION weir_notify_auth();
CREATE TRIGGER notify_auth AFTER UPDATE OF plan, fairness_id, suspended_at OR DELETE ON tenants
    FOR EACH ROW EXECUTE FUNCTION weir_notify_auth();
CREATE TRIGGER notify_auth AFTER UPDATE OF fairness_id OR DELETE ON projects
    FOR EACH ROW EXECUTE FUNCTION weir_notify_auth();
-- Not last_used_at, which says nothing about what the key may do.
CREATE TRIGGER notify_auth
    AFTER UPDATE OF project_id, kind, hash, pepper_version, scopes, models, cidrs, limits, expires_at, revoked_at
    OR DELETE ON keys
    FOR EACH ROW EXECUTE FUNCTION weir_notify_auth();

-- weir_find_key answers a presented secret with all that is known of its key,
-- also when the key is revoked, expired or its tenant suspended. At most one
-- row: hashes holds the same secret under each live pepper.
-- +goose StatementBegin
CREATE FUNCTION weir_find_key(hashes bytea[])
RETURNS TABLE (
    tenant_id text, project_id text, key_id text, kind text, hash bytea, pepper_version integer,
    scopes text[], models text[], cidrs cidr[], limits jsonb, expires_at timestamptz,
    revoked boolean, suspended boolean, tenant_fairness_id text, project_fairness_id text, plan jsonb
)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT k.tenant_id, k.project_id, k.id, k.kind, k.hash, k.pepper_version,
           k.scopes, k.models, k.cidrs, k.limits, k.expires_at,
           k.revoked_at IS NOT NULL, t.suspended_at IS NOT NULL, t.fairness_id, j.fairness_id, to_jsonb(p)
      FROM keys k
      JOIN tenants t ON t.id = k.tenant_id
      JOIN plans p ON p.name = t.plan
      LEFT JOIN projects j ON j.tenant_id = k.tenant_id AND j.id = k.project_id
     WHERE k.hash = ANY (hashes)
     LIMIT 1
$$;
-- +goose StatementEnd

-- weir_live_keys says which of the given keys may still be used. The arrays run
-- in parallel.
-- +goose StatementBegin
CREATE FUNCTION weir_live_keys(tenant_ids text[], key_ids text[])
RETURNS TABLE (key_id text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT k.id
      FROM unnest(tenant_ids, key_ids) AS asked (tenant_id, id)
      JOIN keys k ON k.tenant_id = asked.tenant_id AND k.id = asked.id
      JOIN tenants t ON t.id = k.tenant_id
     WHERE k.revoked_at IS NULL
       AND (k.expires_at IS NULL OR k.expires_at > now())
       AND t.suspended_at IS NULL
$$;
-- +goose StatementEnd

-- weir_touch_keys notes when keys were last used; it never moves a time back.
-- The arrays run in parallel.
-- +goose StatementBegin
CREATE FUNCTION weir_touch_keys(tenant_ids text[], key_ids text[], used_at timestamptz[])
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    UPDATE keys k
       SET last_used_at = used.at
      FROM unnest(tenant_ids, key_ids, used_at) AS used (tenant_id, id, at)
     WHERE k.tenant_id = used.tenant_id
       AND k.id = used.id
       AND (k.last_used_at IS NULL OR k.last_used_at < used.at)
$$;
-- +goose StatementEnd

-- weir_list_tenants is the operator's list: oldest first, those after the given
-- tenant ('' for the first page).
-- +goose StatementBegin
CREATE FUNCTION weir_list_tenants(after_id text, max_rows integer)
RETURNS TABLE (id text, name text, plan text, fairness_id text, created_at timestamptz, suspended_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT t.id, t.name, t.plan, t.fairness_id, t.created_at, t.suspended_at
      FROM tenants t
     WHERE after_id = ''
        OR (t.created_at, t.id) > (SELECT a.created_at, a.id FROM tenants a WHERE a.id = after_id)
     ORDER BY t.created_at, t.id
     LIMIT max_rows
$$;
-- +goose StatementEnd

-- weir_tenant_of_key finds whose key an operator means; NULL when nobody's.
-- +goose StatementBegin
CREATE FUNCTION weir_tenant_of_key(wanted_id text)
RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT k.tenant_id FROM keys k WHERE k.id = wanted_id
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION weir_find_key(bytea[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION weir_live_keys(text[], text[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION weir_touch_keys(text[], text[], timestamptz[]) FROM PUBLIC;
REVOKE ALL ON FUNCTION weir_list_tenants(text, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION weir_tenant_of_key(text) FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_find_key(bytea[]) TO weir_worker;
GRANT EXECUTE ON FUNCTION weir_live_keys(text[], text[]) TO weir_worker;
GRANT EXECUTE ON FUNCTION weir_touch_keys(text[], text[], timestamptz[]) TO weir_worker;
GRANT EXECUTE ON FUNCTION weir_list_tenants(text, integer) TO weir_worker;
GRANT EXECUTE ON FUNCTION weir_tenant_of_key(text) TO weir_worker;
