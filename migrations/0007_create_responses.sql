-- What the Responses API keeps. Content is sealed with the tenant's data key
-- before it comes here. An item is stored once, with the response or the
-- conversation that it came with; a chain is found by following previous_id.

-- +goose Up

CREATE TABLE conversations (
    tenant_id  text COLLATE "C" NOT NULL REFERENCES tenants (id),
    id         text COLLATE "C" NOT NULL,
    project_id text COLLATE "C" NOT NULL,
    metadata   bytea NOT NULL, -- sealed
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, id)
);

CREATE TABLE conversation_items (
    tenant_id       text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C" NOT NULL,
    position        bigint NOT NULL,
    item_id         text COLLATE "C" NOT NULL,
    kind            text NOT NULL,
    content         bytea NOT NULL, -- sealed
    PRIMARY KEY (tenant_id, conversation_id, position),
    FOREIGN KEY (tenant_id, conversation_id) REFERENCES conversations (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX conversation_items_by_id ON conversation_items (tenant_id, item_id);

-- A deleted response is a row that nobody may read: its items live until no
-- other goes on from it. There is no foreign key to the previous response for
-- the same reason that there is one sweep: it removes leaves alone.
CREATE TABLE responses (
    tenant_id       text COLLATE "C" NOT NULL REFERENCES tenants (id),
    id              text COLLATE "C" NOT NULL,
    project_id      text COLLATE "C" NOT NULL,
    key_id          text COLLATE "C" NOT NULL,
    previous_id     text COLLATE "C",
    conversation_id text COLLATE "C",
    root            text COLLATE "C" NOT NULL,
    turn            integer NOT NULL CHECK (turn > 0),
    status          text NOT NULL CHECK (status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')),
    model           text NOT NULL,
    background      boolean NOT NULL,
    streamed        boolean NOT NULL,
    object          bytea NOT NULL, -- sealed
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz,
    deleted_at      timestamptz,
    PRIMARY KEY (tenant_id, id)
);
CREATE INDEX responses_children ON responses (tenant_id, previous_id) WHERE previous_id IS NOT NULL;
CREATE INDEX responses_expiry ON responses (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX responses_deleted ON responses (deleted_at) WHERE deleted_at IS NOT NULL;

CREATE TABLE response_items (
    tenant_id   text COLLATE "C" NOT NULL,
    response_id text COLLATE "C" NOT NULL,
    position    integer NOT NULL,
    output      boolean NOT NULL, -- made by the model, not given to it
    item_id     text COLLATE "C" NOT NULL,
    kind        text NOT NULL,
    content     bytea NOT NULL, -- sealed
    PRIMARY KEY (tenant_id, response_id, position),
    FOREIGN KEY (tenant_id, response_id) REFERENCES responses (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX response_items_by_id ON response_items (tenant_id, item_id);

-- Chat completions that were asked for with store.
CREATE TABLE chat_completions (
    tenant_id  text COLLATE "C" NOT NULL REFERENCES tenants (id),
    id         text COLLATE "C" NOT NULL,
    project_id text COLLATE "C" NOT NULL,
    model      text NOT NULL,
    metadata   jsonb NOT NULL DEFAULT '{}',
    messages   bytea NOT NULL, -- sealed: what the model was given
    object     bytea NOT NULL, -- sealed
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    PRIMARY KEY (tenant_id, id)
);
CREATE INDEX chat_completions_newest ON chat_completions (tenant_id, project_id, created_at, id);
CREATE INDEX chat_completions_expiry ON chat_completions (expires_at) WHERE expires_at IS NOT NULL;

ALTER TABLE conversations ENABLE ROW LEVEL SECURITY;
ALTER TABLE conversations FORCE ROW LEVEL SECURITY;
ALTER TABLE conversation_items ENABLE ROW LEVEL SECURITY;
ALTER TABLE conversation_items FORCE ROW LEVEL SECURITY;
ALTER TABLE responses ENABLE ROW LEVEL SECURITY;
ALTER TABLE responses FORCE ROW LEVEL SECURITY;
ALTER TABLE response_items ENABLE ROW LEVEL SECURITY;
ALTER TABLE response_items FORCE ROW LEVEL SECURITY;
ALTER TABLE chat_completions ENABLE ROW LEVEL SECURITY;
ALTER TABLE chat_completions FORCE ROW LEVEL SECURITY;

CREATE POLICY own_tenant ON conversations USING (tenant_id = weir_tenant()) WITH CHECK (tenant_id = weir_tenant());
CREATE POLICY own_tenant ON conversation_items USING (tenant_id = weir_tenant()) WITH CHECK (tenant_id = weir_tenant());
CREATE POLICY own_tenant ON responses USING (tenant_id = weir_tenant()) WITH CHECK (tenant_id = weir_tenant());
CREATE POLICY own_tenant ON response_items USING (tenant_id = weir_tenant()) WITH CHECK (tenant_id = weir_tenant());
CREATE POLICY own_tenant ON chat_completions USING (tenant_id = weir_tenant()) WITH CHECK (tenant_id = weir_tenant());

-- The sweep looks for what has expired, whosever it is.
CREATE POLICY sweep_read ON responses FOR SELECT TO CURRENT_USER USING (true);
CREATE POLICY sweep_delete ON responses FOR DELETE TO CURRENT_USER USING (true);
CREATE POLICY sweep_read ON chat_completions FOR SELECT TO CURRENT_USER USING (true);
CREATE POLICY sweep_delete ON chat_completions FOR DELETE TO CURRENT_USER USING (true);

GRANT SELECT, INSERT, UPDATE (metadata), DELETE ON conversations TO weir_app;
GRANT SELECT, INSERT, DELETE ON conversation_items TO weir_app;
GRANT SELECT, INSERT, UPDATE (status, object, deleted_at) ON responses TO weir_app;
GRANT SELECT, INSERT ON response_items TO weir_app;
GRANT SELECT, INSERT, UPDATE (metadata, object), DELETE ON chat_completions TO weir_app;

-- weir_keep_response stores a response as it ended, in the transaction of its
-- receipt. One that is there already (a background run) takes the new state,
-- unless it has a final one: that stays. The arrays are its items. What was said
-- in a conversation is added to it, unless the response failed or the
-- conversation is gone meanwhile; the conversation's row is locked, so that two
-- answers that end at once don't share a position.
-- +goose StatementBegin
CREATE FUNCTION weir_keep_response(
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
    END IF;
    -- The rest of the transaction acts for other tenants.
    PERFORM set_config('weir.tenant_id', '', true);
END
$$;
-- +goose StatementEnd

-- weir_sweep_responses removes a batch of responses that have expired or were
-- deleted, and from which no response goes on; the items go with them. A chain
-- is thus taken down from its end. It returns how many it removed: less than
-- the batch means that none are left for now. Two at once don't meet: the
-- second removes nothing.
-- +goose StatementBegin
CREATE FUNCTION weir_sweep_responses(p_batch integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
DECLARE
    swept integer;
    more  integer;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('weir.sweep_responses')) THEN
        RETURN 0;
    END IF;
    DELETE FROM responses d
     USING (SELECT r.tenant_id, r.id
              FROM responses r
             WHERE (r.expires_at < now() OR r.deleted_at IS NOT NULL)
               AND NOT EXISTS (SELECT FROM responses c WHERE c.tenant_id = r.tenant_id AND c.previous_id = r.id)
             LIMIT p_batch) AS gone
     WHERE d.tenant_id = gone.tenant_id AND d.id = gone.id;
    GET DIAGNOSTICS swept = ROW_COUNT;
    DELETE FROM chat_completions d
     USING (SELECT c.tenant_id, c.id FROM chat_completions c WHERE c.expires_at < now() LIMIT p_batch) AS gone
     WHERE d.tenant_id = gone.tenant_id AND d.id = gone.id;
    GET DIAGNOSTICS more = ROW_COUNT;
    RETURN greatest(swept, more);
END
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION weir_keep_response, weir_sweep_responses FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_keep_response, weir_sweep_responses TO weir_worker;
