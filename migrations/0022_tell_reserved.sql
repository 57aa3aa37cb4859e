-- What a wallet's refusal is due to: credit that is spent, or credit that
-- exchanges under way hold.

-- +goose Up

-- weir_reserved is how much of a wallet replicas hold for exchanges.
-- +goose StatementBegin
CREATE FUNCTION weir_reserved(p_tenant text, p_node text) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT coalesce(sum(c.left_nano), 0)::bigint FROM chunks c WHERE c.tenant_id = p_tenant AND c.node = p_node
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION weir_reserved FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_reserved TO weir_worker;
