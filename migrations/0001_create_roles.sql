-- The roles that everything after this file grants to.
--
-- weir_app     what the API logs in as: plain grants, and row-level security
--              on every table that has a tenant_id.
-- weir_worker  the data plane: no table grants at all, EXECUTE on functions.
-- the owner    who runs this: owns every object, and serves no request.
--
-- What a later migration owes for a table of tenants:
--
--     ALTER TABLE t ENABLE ROW LEVEL SECURITY;
--     ALTER TABLE t FORCE ROW LEVEL SECURITY;
--     CREATE POLICY tenant ON t USING (tenant_id = weir_tenant());
--     GRANT SELECT, INSERT ON t TO weir_app;
--
-- FORCE binds the owner too, and so every SECURITY DEFINER function (it runs as
-- the owner) and every backfill: without more they see no row of t. A function
-- with a tenant argument therefore carries
--
--     SECURITY DEFINER
--     SET search_path = pg_catalog, public, pg_temp
--     SET weir.tenant_id = ''   -- so that the tenant ends with the call
--
-- and begins with set_config('weir.tenant_id', p_tenant, true). Only what can't
-- know its tenant beforehand (finding a key, a sweep) deserves the other way, a
-- policy for the owner and for what it needs alone:
--
--     CREATE POLICY definer ON t FOR SELECT TO CURRENT_USER USING (true);

-- +goose Up

-- Roles belong to the server, not to the database: another database of this
-- server may create them first, even at this moment, and an owner without
-- CREATEROLE relies on the operator.
-- +goose StatementBegin
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['weir_app', 'weir_worker'] LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = wanted);
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN
                NULL;
            WHEN insufficient_privilege THEN
                RAISE EXCEPTION 'role % does not exist and % may not create it', wanted, current_user
                    USING HINT = format('As an administrator: CREATE ROLE %I NOLOGIN;', wanted);
        END;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- Nothing comes to PUBLIC by default. Temporary tables go too: a table in
-- pg_temp may stand in for the one that a function meant.
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
END
$$;
-- +goose StatementEnd
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

GRANT USAGE ON SCHEMA public TO weir_app, weir_worker;

-- The application may see which migrations were applied: it refuses to serve on
-- an old schema.
GRANT SELECT ON weir_migrations TO weir_app;

-- weir_tenant is the tenant that this transaction acts for, or NULL, which no
-- row equals. (After SET LOCAL the setting is '' for the rest of the session.)
-- Without a SET clause and in this form the planner inlines it.
CREATE FUNCTION weir_tenant() RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN nullif(pg_catalog.current_setting('weir.tenant_id', true), '');

GRANT EXECUTE ON FUNCTION weir_tenant() TO weir_app, weir_worker;
