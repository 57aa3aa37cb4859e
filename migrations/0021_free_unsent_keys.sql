-- A request with a key of its caller's that no model server had when its replica
-- died may be run again, though the sweeper wrote it a receipt.

-- +goose Up

-- weir_claim_answer says what is to become of a request that came with a key:
-- claimed (run it), running (another does), other (the key belongs to another
-- request), done (with the answer), bare or lost. One whose replica died is run
-- again, unless it has a receipt that says more than that no model server had it.
-- It may get one, under its old id, until what the
-- replica left is settled: it counts as running until the replica is forgotten, or
-- gone for p_dead, as in weir_dead_replicas, and while the replica that asks can't
-- tell (p_steady).
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION weir_claim_answer(
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
            SELECT FROM receipt_ids i
             WHERE i.tenant_id = p_tenant AND i.request_id = k.request_id
               AND NOT EXISTS (
                   SELECT FROM receipts r
                    WHERE r.tenant_id = i.tenant_id AND r.settled_at = i.settled_at AND r.request_id = i.request_id
                      AND r.outcome = 'orphaned' AND r.attempts = 0)
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
