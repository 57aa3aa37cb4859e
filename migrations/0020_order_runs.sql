-- Background runs of a tenant are taken up in their order, whichever of its jobs
-- comes first, so that the queue can say where each stands.

-- +goose Up

CREATE INDEX response_runs_waiting ON response_runs (tenant_id, created_at, response_id) WHERE runner IS NULL;

-- weir_take_run gives the runner the first of the tenant's runs that is due and
-- that nobody holds, and returns what it needs. No row: there is none. The
-- tenant is set for the transaction.
-- +goose StatementBegin
CREATE FUNCTION weir_take_run(p_tenant text, p_runner text)
RETURNS TABLE (
    response_id text, project_id text, key_id text, request bytea, client_id text, lost integer, shown boolean,
    status text, object bytea, created_at timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM set_config('weir.tenant_id', p_tenant, true);
    RETURN QUERY
    WITH next AS (
        SELECT w.response_id
          FROM response_runs w
         WHERE w.tenant_id = p_tenant AND w.runner IS NULL AND w.due_at <= now()
         ORDER BY w.created_at, w.response_id
         LIMIT 1
           FOR UPDATE SKIP LOCKED
    )
    UPDATE response_runs r
       SET runner = p_runner, renewed_at = now()
      FROM next, responses s
     WHERE r.tenant_id = p_tenant AND r.response_id = next.response_id
       AND s.tenant_id = r.tenant_id AND s.id = r.response_id
    RETURNING r.response_id, r.project_id, r.key_id, r.request, r.client_id, r.lost, r.shown, s.status, s.object, s.created_at;
END
$$;
-- +goose StatementEnd

-- weir_next_run_in returns how long it takes until the first run of the tenant
-- is due that nobody holds; NULL where none waits.
-- +goose StatementBegin
CREATE FUNCTION weir_next_run_in(p_tenant text) RETURNS interval
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT CASE WHEN count(*) > 0 THEN greatest(min(r.due_at) - now(), interval '0') END
      FROM response_runs r
     WHERE r.tenant_id = p_tenant AND r.runner IS NULL
$$;
-- +goose StatementEnd

-- weir_defer_runs says of a tenant's waiting runs that they wait because others
-- of it are made: that they are not taken up is no sign of a job that was lost.
-- +goose StatementBegin
CREATE FUNCTION weir_defer_runs(p_tenant text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM set_config('weir.tenant_id', p_tenant, true);
    UPDATE response_runs r
       SET due_at = now()
     WHERE (r.tenant_id, r.response_id) IN (
            SELECT w.tenant_id, w.response_id
              FROM response_runs w
             WHERE w.tenant_id = p_tenant AND w.runner IS NULL AND w.due_at < now() - interval '1 minute'
             ORDER BY w.response_id
               FOR UPDATE SKIP LOCKED);
END
$$;
-- +goose StatementEnd

-- weir_requeue_run gives a run back whose output nobody may see any more: it
-- will be made as if nobody had begun it.
-- +goose StatementBegin
CREATE FUNCTION weir_requeue_run(p_tenant text, p_response text, p_runner text, p_after interval, p_object bytea) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM set_config('weir.tenant_id', p_tenant, true);
    UPDATE responses s
       SET status = 'queued', object = p_object
     WHERE s.tenant_id = p_tenant AND s.id = p_response AND s.status IN ('queued', 'in_progress')
       AND EXISTS (SELECT FROM response_runs r WHERE r.tenant_id = p_tenant AND r.response_id = p_response AND r.runner = p_runner);
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE response_runs r
       SET runner = NULL, renewed_at = NULL, due_at = now() + p_after, shown = false
     WHERE r.tenant_id = p_tenant AND r.response_id = p_response AND r.runner = p_runner;
    RETURN FOUND;
END
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION weir_take_run, weir_next_run_in, weir_defer_runs, weir_requeue_run FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_take_run, weir_next_run_in, weir_defer_runs, weir_requeue_run TO weir_worker;
