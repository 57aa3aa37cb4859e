-- What admission has to know of a key's money: how its tenant pays, and which
-- wallets its requests are paid from.

-- +goose Up

-- weir_key_billing says how the use of a key is paid for: the tenant's billing
-- mode (null: the installation's) and the wallets that it spends, in the order
-- tenant, project, key. A project or a key that has no wallet has no cap and is
-- not named; the tenant is, whether or not it has anything to spend. It is a
-- function of its own, so that look-ups keep their form.
-- +goose StatementBegin
CREATE FUNCTION weir_key_billing(p_tenant text, p_project text, p_key text)
RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT jsonb_build_object(
        'mode', coalesce(t.billing_mode, ''),
        'nodes', jsonb_build_array(t.id)
            || coalesce((SELECT jsonb_agg(w.node ORDER BY w.scope DESC) -- project before key
                           FROM wallets w
                          WHERE w.tenant_id = t.id AND w.node IN (p_project, p_key)
                            AND w.scope IN ('project', 'key')), '[]'))
      FROM tenants t
     WHERE t.id = p_tenant
$$;
-- +goose StatementEnd

-- A cap that is set or lifted changes what keys spend from: replicas look their
-- keys up again. (Its amount doesn't: every draw reads it.)
-- +goose StatementBegin
CREATE FUNCTION weir_notify_caps() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    wallet wallets := CASE TG_OP WHEN 'INSERT' THEN NEW ELSE OLD END;
BEGIN
    IF wallet.scope <> 'tenant' THEN
        PERFORM pg_notify('weir_auth', wallet.node);
    END IF;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
REVOKE ALL ON FUNCTION weir_notify_caps() FROM PUBLIC;

CREATE TRIGGER notify_caps AFTER INSERT OR DELETE ON wallets
    FOR EACH ROW EXECUTE FUNCTION weir_notify_caps();

REVOKE ALL ON FUNCTION weir_key_billing FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_key_billing TO weir_worker;
