-- Background runs of responses, and the schema of the job queue.

-- +goose Up

-- The tables in it are the job library's own, made by its own migrations after
-- these (migrations/jobs.go). They hold ids and times, nothing of a tenant's.
-- The worker alone works there, and not in the table that says which
-- migrations were applied, which the application may read as it does ours.
CREATE SCHEMA river;
GRANT USAGE ON SCHEMA river TO weir_worker, weir_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA river GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO weir_worker;
ALTER DEFAULT PRIVILEGES IN SCHEMA river GRANT USAGE, SELECT ON SEQUENCES TO weir_worker;
ALTER DEFAULT PRIVILEGES IN SCHEMA river GRANT EXECUTE ON FUNCTIONS TO weir_worker;

-- A run is the work that a background response still needs: its row is there
-- from the moment in which the caller is told of the response until it has a
-- final status, and no longer.
CREATE TABLE response_runs (
    tenant_id   text COLLATE "C" NOT NULL,
    response_id text COLLATE "C" NOT NULL,
    project_id  text COLLATE "C" NOT NULL,
    key_id      text COLLATE "C" NOT NULL,
    request     bytea NOT NULL, -- sealed: as it was sent
    client_id   text NOT NULL,  -- what the caller calls it
    runner      text,           -- who runs it now; NULL: nobody
    renewed_at  timestamptz,    -- when the runner last said that it lives
    due_at      timestamptz NOT NULL DEFAULT now(), -- when a job is to look at it
    lost        integer NOT NULL DEFAULT 0,         -- runners that vanished
    shown       boolean NOT NULL DEFAULT false,     -- output of it was shown to somebody
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, response_id),
    FOREIGN KEY (tenant_id, response_id) REFERENCES responses (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX response_runs_held ON response_runs (renewed_at) WHERE runner IS NOT NULL;
CREATE INDEX response_runs_due ON response_runs (due_at) WHERE runner IS NULL;

ALTER TABLE response_runs ENABLE ROW LEVEL SECURITY;
ALTER TABLE response_runs FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON response_runs USING (tenant_id = weir_tenant()) WITH CHECK (tenant_id = weir_tenant());
-- What was abandoned is looked for whosever it is.
CREATE POLICY reclaim_read ON response_runs FOR SELECT TO CURRENT_USER USING (true);
CREATE POLICY reclaim_update ON response_runs FOR UPDATE TO CURRENT_USER USING (true) WITH CHECK (true);
GRANT SELECT, DELETE ON response_runs TO weir_app;

-- The functions on runs set the tenant for the transaction that calls them, and
-- each is called in one of its tenant's own.

-- weir_queue_run adds the run of a response that was stored in the same
-- transaction, unless the tenant has as many as it may: then it returns false.
-- +goose StatementBegin
CREATE FUNCTION weir_queue_run(
    p_tenant text, p_response text, p_project text, p_key text, p_request bytea, p_client text, p_most integer
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM set_config('weir.tenant_id', p_tenant, true);
    -- One at a time: a hundred at once must not all find room for one.
    PERFORM pg_advisory_xact_lock(hashtextextended('weir.response_runs.' || p_tenant, 0));
    IF (SELECT count(*) FROM response_runs r WHERE r.tenant_id = p_tenant) >= p_most THEN
        RETURN false;
    END IF;
    INSERT INTO response_runs (tenant_id, response_id, project_id, key_id, request, client_id)
    VALUES (p_tenant, p_response, p_project, p_key, p_request, p_client);
    RETURN true;
END
$$;
-- +goose StatementEnd

-- weir_claim_run gives a run that nobody holds to the runner, and returns what
-- it needs. No row: it is over, or another has it.
-- +goose StatementBegin
CREATE FUNCTION weir_claim_run(p_tenant text, p_response text, p_runner text)
RETURNS TABLE (
    project_id text, key_id text, request bytea, client_id text, lost integer, shown boolean,
    status text, object bytea, created_at timestamptz
)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM set_config('weir.tenant_id', p_tenant, true);
    RETURN QUERY
    UPDATE response_runs r
       SET runner = p_runner, renewed_at = now()
      FROM responses s
     WHERE r.tenant_id = p_tenant AND r.response_id = p_response AND r.runner IS NULL
       AND s.tenant_id = r.tenant_id AND s.id = r.response_id
    RETURNING r.project_id, r.key_id, r.request, r.client_id, r.lost, r.shown, s.status, s.object, s.created_at;
END
$$;
-- +goose StatementEnd

-- weir_hold_run says that the runner lives. False: the run is over, or another's.
-- +goose StatementBegin
CREATE FUNCTION weir_hold_run(p_tenant text, p_response text, p_runner text, p_shown boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM set_config('weir.tenant_id', p_tenant, true);
    UPDATE response_runs r
       SET renewed_at = now(), shown = r.shown OR p_shown
     WHERE r.tenant_id = p_tenant AND r.response_id = p_response AND r.runner = p_runner;
    RETURN FOUND;
END
$$;
-- +goose StatementEnd

-- weir_begin_run moves a response from queued to in_progress for the runner who
-- holds its run. False: it has a final status, or another runner.
-- +goose StatementBegin
CREATE FUNCTION weir_begin_run(p_tenant text, p_response text, p_runner text, p_object bytea) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM set_config('weir.tenant_id', p_tenant, true);
    UPDATE responses s
       SET status = 'in_progress', object = p_object
     WHERE s.tenant_id = p_tenant AND s.id = p_response AND s.status IN ('queued', 'in_progress')
       AND EXISTS (SELECT FROM response_runs r WHERE r.tenant_id = p_tenant AND r.response_id = p_response AND r.runner = p_runner);
    RETURN FOUND;
END
$$;
-- +goose StatementEnd

-- weir_release_run gives a run back, for a job to look at it after a while.
-- +goose StatementBegin
CREATE FUNCTION weir_release_run(p_tenant text, p_response text, p_runner text, p_after interval, p_lost boolean) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM set_config('weir.tenant_id', p_tenant, true);
    UPDATE response_runs r
       SET runner = NULL, renewed_at = NULL, due_at = now() + p_after, lost = r.lost + p_lost::integer
     WHERE r.tenant_id = p_tenant AND r.response_id = p_response AND r.runner = p_runner;
    RETURN FOUND;
END
$$;
-- +goose StatementEnd

-- weir_reclaim_runs takes runs from runners that have not been heard of for
-- p_silence, and finds those whose job never came. The caller makes new jobs for
-- them in the same transaction.
-- +goose StatementBegin
CREATE FUNCTION weir_reclaim_runs(p_silence interval, p_overdue interval, p_most integer)
RETURNS TABLE (tenant_id text, response_id text)
LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    WITH abandoned AS (
        SELECT r.tenant_id, r.response_id
          FROM response_runs r
         WHERE (r.runner IS NOT NULL AND r.renewed_at < now() - p_silence)
            OR (r.runner IS NULL AND r.due_at < now() - p_overdue)
         LIMIT p_most
           FOR UPDATE SKIP LOCKED
    )
    UPDATE response_runs r
       SET lost = r.lost + (r.runner IS NOT NULL)::integer, runner = NULL, renewed_at = NULL, due_at = now()
      FROM abandoned a
     WHERE r.tenant_id = a.tenant_id AND r.response_id = a.response_id
    RETURNING r.tenant_id, r.response_id
$$;
-- +goose StatementEnd

-- weir_keep_response as before; besides, it ends the run of a response that has
-- a final status now, and tells those who wait for it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION weir_keep_response(
    p_tenant text, p_id text, p_project text, p_key text, p_previous text, p_conversation text,
    p_root text, p_turn integer, p_status text, p_model text, p_background boolean, p_streamed boolean,
    p_object bytea, p_created timestamptz, p_expires timestamptz,
    p_outputs boolean[], p_item_ids text[], p_kinds text[], p_contents bytea[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM set_config('weir.tenant_id', p_tenant, true);
    INSERT INTO responses AS r (tenant_id, id, project_id, key_id, previous_id, conversation_id, root, turn,
        status, model, background, streamed, object, created_at, expires_at)
    VALUES (p_tenant, p_id, p_project, p_key, nullif(p_previous, ''), nullif(p_conversation, ''), p_root, p_turn,
        p_status, p_model, p_background, p_streamed, p_object, p_created, p_expires)
    ON CONFLICT (tenant_id, id) DO UPDATE
       SET status = excluded.status, object = excluded.object
     WHERE r.status IN ('queued', 'in_progress');
    IF FOUND THEN
        INSERT INTO response_items (tenant_id, response_id, position, output, item_id, kind, content)
        SELECT p_tenant, p_id, i.ord, i.output, i.item_id, i.kind, i.content
          FROM unnest(p_outputs, p_item_ids, p_kinds, p_contents) WITH ORDINALITY AS i (output, item_id, kind, content, ord)
        ON CONFLICT (tenant_id, response_id, position) DO NOTHING;

        IF p_conversation <> '' AND p_status IN ('completed', 'incomplete') THEN
            PERFORM FROM conversations WHERE tenant_id = p_tenant AND id = p_conversation FOR UPDATE;
            INSERT INTO conversation_items (tenant_id, conversation_id, position, item_id, kind, content)
            SELECT p_tenant, p_conversation, i.ord + (
                       SELECT coalesce(max(l.position), 0) FROM conversation_items l
                        WHERE l.tenant_id = p_tenant AND l.conversation_id = p_conversation),
                   i.item_id, i.kind, i.content
              FROM unnest(p_item_ids, p_kinds, p_contents) WITH ORDINALITY AS i (item_id, kind, content, ord)
             WHERE EXISTS (SELECT FROM conversations WHERE tenant_id = p_tenant AND id = p_conversation);
        END IF;

        IF p_background AND p_status NOT IN ('queued', 'in_progress') THEN
            DELETE FROM response_runs r WHERE r.tenant_id = p_tenant AND r.response_id = p_id;
            PERFORM pg_notify('weir_runs', p_id);
        END IF;
    END IF;
    -- The rest of the transaction acts for other tenants.
    PERFORM set_config('weir.tenant_id', '', true);
END
$$;
-- +goose StatementEnd

-- weir_load_key is weir_find_key for a key whose id is on record: of work that
-- goes on after its request.
-- +goose StatementBegin
CREATE FUNCTION weir_load_key(p_tenant text, p_key text)
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
     WHERE k.tenant_id = p_tenant AND k.id = p_key
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION weir_queue_run, weir_claim_run, weir_hold_run, weir_begin_run, weir_release_run,
    weir_reclaim_runs, weir_load_key FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_queue_run, weir_claim_run, weir_hold_run, weir_begin_run, weir_release_run,
    weir_reclaim_runs, weir_load_key TO weir_worker;
