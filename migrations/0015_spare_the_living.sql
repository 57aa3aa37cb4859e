-- A replica that says that it lives is not robbed, however long it could not
-- renew what it holds; and an exchange that was settled in its replica's absence
-- is known as such.

-- +goose Up

-- weir_chunk_is_dead reports that a chunk was not renewed for p_grace beyond its
-- time, and that its replica has not been seen for as long either. Time in which
-- this server was down doesn't count.
-- +goose StatementBegin
CREATE FUNCTION weir_chunk_is_dead(c chunks, p_grace interval) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT greatest(c.expires_at, pg_postmaster_start_time() + (c.expires_at - c.renewed_at)) + p_grace < clock_timestamp()
       AND NOT EXISTS (SELECT FROM replicas r
                        WHERE r.id = c.replica AND r.stopped_at IS NULL AND r.seen_at + p_grace > clock_timestamp())
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION weir_dead_chunks(p_grace interval, p_max integer)
RETURNS TABLE (tenant text, node text, chunk bigint, replica text, left_nano bigint)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT c.tenant_id, c.node, c.id, c.replica, c.left_nano
      FROM chunks c
     WHERE weir_chunk_is_dead(c, p_grace)
     ORDER BY c.tenant_id, c.node, c.replica
     LIMIT p_max
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION weir_close_dead_chunks(p_grace interval, p_max integer, p_replica text DEFAULT NULL, p_tenant text DEFAULT NULL)
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
         WHERE c.tenant_id = d.tenant_id AND c.id = d.id AND weir_chunk_is_dead(c, p_grace)
        RETURNING c.tenant_id, c.node, c.id, c.replica, c.left_nano;
END
$$;
-- +goose StatementEnd

-- weir_swept returns which of the requests have a receipt that the sweeper wrote.
-- +goose StatementBegin
CREATE FUNCTION weir_swept(p_tenants text[], p_requests text[]) RETURNS text[]
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT coalesce(array_agg(r.request_id), '{}')
      FROM unnest(p_tenants, p_requests) AS asked (tenant_id, request_id)
      JOIN receipt_ids i USING (tenant_id, request_id)
      JOIN receipts r USING (tenant_id, request_id, settled_at)
     WHERE r.settled_by = 'sweeper'
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION weir_chunk_is_dead, weir_swept FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_swept TO weir_worker;
