-- Limits of projects and of a tenant's use of a model; which replicas live; and
-- answers that are kept for a while to be given again.

-- +goose Up

-- A binary that doesn't know these columns limits tenants and keys alone, and
-- writes plans without them. burst is how often the limits may be exceeded while
-- a pool has room: 2 doubles them, 0 and 1 never.
ALTER TABLE plans
    ADD COLUMN model_limits jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(model_limits) = 'object'),
    ADD COLUMN project_limits jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(project_limits) = 'object'),
    ADD COLUMN burst double precision NOT NULL DEFAULT 0 CHECK (burst = 0 OR burst BETWEEN 1 AND 100);
ALTER TABLE tenants
    ADD COLUMN model_limits jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(model_limits) = 'object');
ALTER TABLE projects
    ADD COLUMN limits jsonb NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(limits) = 'object');
GRANT UPDATE (model_limits) ON tenants TO weir_app;
GRANT UPDATE (limits) ON projects TO weir_app;

CREATE TRIGGER notify_limits AFTER UPDATE OF model_limits ON tenants
    FOR EACH ROW EXECUTE FUNCTION weir_notify_auth();
CREATE TRIGGER notify_limits AFTER UPDATE OF limits ON projects
    FOR EACH ROW EXECUTE FUNCTION weir_notify_auth();

-- weir_account_limits is what a key's owner is limited to beside its plan: a
-- function of its own, so that look-ups keep their form.
-- +goose StatementBegin
CREATE FUNCTION weir_account_limits(p_tenant text, p_project text)
RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT jsonb_build_object('models', t.model_limits, 'project', coalesce(j.limits, '{}'))
      FROM tenants t
      LEFT JOIN projects j ON j.tenant_id = t.id AND j.id = p_project
     WHERE t.id = p_tenant
$$;
-- +goose StatementEnd

-- The replicas that serve, by the database's clock. One that stopped is known for
-- a while: what it left is looked for.
CREATE TABLE replicas (
    id         text COLLATE "C" PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now(),
    stopped_at timestamptz
);

-- weir_beat notes that a replica lives and returns how many do: those that were
-- seen within p_dead.
-- +goose StatementBegin
CREATE FUNCTION weir_beat(p_replica text, p_dead interval)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    INSERT INTO replicas (id) VALUES (p_replica)
    ON CONFLICT (id) DO UPDATE SET seen_at = now(), stopped_at = NULL;
    DELETE FROM replicas WHERE seen_at < now() - interval '7 days';
    RETURN (SELECT count(*) FROM replicas WHERE stopped_at IS NULL AND seen_at > now() - p_dead);
END
$$;
-- +goose StatementEnd

-- weir_leave notes that a replica has stopped: from now on it counts no more.
-- +goose StatementBegin
CREATE FUNCTION weir_leave(p_replica text)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    UPDATE replicas SET stopped_at = now() WHERE id = p_replica
$$;
-- +goose StatementEnd

-- weir_dead_replicas lists those that stopped or were not seen for p_dead; the
-- time in which the database was down doesn't count.
-- +goose StatementBegin
CREATE FUNCTION weir_dead_replicas(p_dead interval)
RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    SELECT id FROM replicas
     WHERE stopped_at IS NOT NULL
        OR seen_at < now() - p_dead AND pg_postmaster_start_time() < now() - p_dead
     ORDER BY seen_at
$$;
-- +goose StatementEnd

-- weir_forget_replicas removes those of which nothing is left to be looked for,
-- unless they have come back.
-- +goose StatementBegin
CREATE FUNCTION weir_forget_replicas(p_replicas text[], p_dead interval)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    DELETE FROM replicas
     WHERE id = ANY (p_replicas)
       AND (stopped_at IS NOT NULL OR seen_at < now() - p_dead)
$$;
-- +goose StatementEnd

-- An answer that is given again to a request that repeats another's key. print is
-- a hash of the request. A row begins as running, and is then done (with the
-- answer, sealed), bare (the answer is not kept) or lost (its replica died after
-- the request was settled).
CREATE TABLE kept_answers (
    tenant_id    text COLLATE "C" NOT NULL REFERENCES tenants (id),
    key_hash     bytea NOT NULL CHECK (octet_length(key_hash) = 32),
    print        bytea NOT NULL CHECK (octet_length(print) = 32),
    request_id   text NOT NULL,
    replica      text NOT NULL,
    state        text NOT NULL CHECK (state IN ('running', 'done', 'bare', 'lost')),
    content_type text NOT NULL DEFAULT '',
    body         bytea CHECK ((body IS NOT NULL) = (state = 'done')),
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, key_hash)
);
CREATE INDEX kept_answers_expired ON kept_answers (expires_at);
-- What it holds is sealed, and compresses no more.
ALTER TABLE kept_answers ALTER COLUMN body SET STORAGE EXTERNAL;

ALTER TABLE kept_answers ENABLE ROW LEVEL SECURITY;
ALTER TABLE kept_answers FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON kept_answers USING (tenant_id = weir_tenant()) WITH CHECK (tenant_id = weir_tenant());
CREATE POLICY functions_all ON kept_answers TO CURRENT_USER USING (true) WITH CHECK (true);
GRANT SELECT, DELETE ON kept_answers TO weir_app;

-- weir_claim_answer says what is to become of a request that came with a key:
-- claimed (run it), running (another does), other (the key belongs to another
-- request), done (with the answer), bare or lost. One whose replica died is run
-- again, unless it has a receipt. It may get one, under its old id, until what the
-- replica left is settled: it counts as running until the replica is forgotten, or
-- gone for p_dead, as in weir_dead_replicas, and while the replica that asks can't
-- tell (p_steady).
-- +goose StatementBegin
CREATE FUNCTION weir_claim_answer(
    p_tenant text, p_key bytea, p_print bytea, p_request text, p_replica text, p_life interval,
    p_dead interval, p_steady boolean
) RETURNS TABLE (outcome text, request_id text, content_type text, body bytea)
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    k kept_answers;
    gone boolean;
BEGIN
    INSERT INTO kept_answers (tenant_id, key_hash, print, request_id, replica, state, expires_at)
    VALUES (p_tenant, p_key, p_print, p_request, p_replica, 'running', now() + p_life)
    ON CONFLICT (tenant_id, key_hash) DO NOTHING;
    IF FOUND THEN
        RETURN QUERY SELECT 'claimed', p_request, '', NULL::bytea;
        RETURN;
    END IF;
    SELECT * INTO k FROM kept_answers a WHERE a.tenant_id = p_tenant AND a.key_hash = p_key FOR UPDATE;
    IF NOT FOUND THEN -- it ended in between; the caller comes again
        RETURN QUERY SELECT 'running', '', '', NULL::bytea;
        RETURN;
    END IF;
    IF k.expires_at > now() THEN
        IF k.print <> p_print THEN
            RETURN QUERY SELECT 'other', k.request_id, '', NULL::bytea;
            RETURN;
        END IF;
        gone := p_steady AND NOT EXISTS (
            SELECT FROM replicas r
             WHERE r.id = k.replica
               AND greatest(coalesce(r.stopped_at, r.seen_at), pg_postmaster_start_time()) >= now() - p_dead
        );
        IF k.state = 'running' AND gone AND EXISTS (
            SELECT FROM receipt_ids i WHERE i.tenant_id = p_tenant AND i.request_id = k.request_id
        ) THEN
            UPDATE kept_answers a SET state = 'lost' WHERE a.tenant_id = p_tenant AND a.key_hash = p_key;
            k.state := 'lost';
        END IF;
        IF k.state <> 'running' OR NOT gone THEN
            RETURN QUERY SELECT k.state, k.request_id, k.content_type, k.body;
            RETURN;
        END IF;
    END IF;
    UPDATE kept_answers a
       SET print = p_print, request_id = p_request, replica = p_replica, state = 'running',
           content_type = '', body = NULL, created_at = now(), expires_at = now() + p_life
     WHERE a.tenant_id = p_tenant AND a.key_hash = p_key;
    RETURN QUERY SELECT 'claimed', p_request, '', NULL::bytea;
END
$$;
-- +goose StatementEnd

-- weir_keep_answer ends a claim with its answer; NULL keeps that there was one,
-- and the answer may follow.
-- +goose StatementBegin
CREATE FUNCTION weir_keep_answer(p_tenant text, p_key bytea, p_request text, p_type text, p_body bytea)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    UPDATE kept_answers
       SET state = CASE WHEN p_body IS NULL THEN 'bare' ELSE 'done' END, content_type = p_type, body = p_body
     WHERE tenant_id = p_tenant AND key_hash = p_key AND request_id = p_request
       AND (state = 'running' OR state = 'bare' AND p_body IS NOT NULL)
$$;
-- +goose StatementEnd

-- weir_drop_answer ends a claim whose request failed: it may be tried again.
-- +goose StatementBegin
CREATE FUNCTION weir_drop_answer(p_tenant text, p_key bytea, p_request text)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    DELETE FROM kept_answers
     WHERE tenant_id = p_tenant AND key_hash = p_key AND request_id = p_request AND state = 'running'
$$;
-- +goose StatementEnd

-- weir_expire_answers removes at most so many answers that have expired, and
-- empties the oldest of tenants that have more than p_bytes. It returns how many
-- it removed.
-- +goose StatementBegin
CREATE FUNCTION weir_expire_answers(p_most integer, p_bytes bigint)
RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    removed integer;
BEGIN
    DELETE FROM kept_answers a
     USING (SELECT e.tenant_id, e.key_hash FROM kept_answers e WHERE e.expires_at <= now()
             ORDER BY e.expires_at LIMIT p_most FOR UPDATE SKIP LOCKED) gone
     WHERE a.tenant_id = gone.tenant_id AND a.key_hash = gone.key_hash;
    GET DIAGNOSTICS removed = ROW_COUNT;
    UPDATE kept_answers a
       SET state = 'bare', body = NULL
      FROM (SELECT o.tenant_id, o.key_hash,
                   sum(octet_length(o.body)) OVER (PARTITION BY o.tenant_id ORDER BY o.created_at DESC, o.key_hash) AS bytes
              FROM kept_answers o WHERE o.state = 'done') over_bound
     WHERE over_bound.bytes > p_bytes AND a.state = 'done'
       AND a.tenant_id = over_bound.tenant_id AND a.key_hash = over_bound.key_hash;
    RETURN removed;
END
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION weir_account_limits, weir_beat, weir_leave, weir_dead_replicas, weir_forget_replicas,
    weir_claim_answer, weir_keep_answer, weir_drop_answer, weir_expire_answers FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_account_limits, weir_beat, weir_leave, weir_dead_replicas, weir_forget_replicas,
    weir_claim_answer, weir_keep_answer, weir_drop_answer, weir_expire_answers TO weir_worker;
