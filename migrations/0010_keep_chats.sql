-- +goose Up

-- weir_keep_chat stores a chat completion, in the transaction of its receipt.
-- +goose StatementBegin
CREATE FUNCTION weir_keep_chat(
    p_tenant text, p_id text, p_project text, p_model text, p_metadata jsonb,
    p_messages bytea, p_object bytea, p_created timestamptz, p_expires timestamptz
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
BEGIN
    PERFORM set_config('weir.tenant_id', p_tenant, true);
    INSERT INTO chat_completions (tenant_id, id, project_id, model, metadata, messages, object, created_at, expires_at)
    VALUES (p_tenant, p_id, p_project, p_model, p_metadata, p_messages, p_object, p_created, p_expires)
    ON CONFLICT (tenant_id, id) DO NOTHING;
    -- The rest of the transaction acts for other tenants.
    PERFORM set_config('weir.tenant_id', '', true);
END
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION weir_keep_chat FROM PUBLIC;
GRANT EXECUTE ON FUNCTION weir_keep_chat TO weir_worker;
