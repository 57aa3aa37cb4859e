-- What a plan promises of each pool's capacity and speed: tokens in work at once,
-- and the wanted time to first token. 0 promises nothing. A binary that doesn't
-- know the columns writes plans without these promises.

-- +goose Up
ALTER TABLE plans
    ADD COLUMN reserved_tokens integer NOT NULL DEFAULT 0 CHECK (reserved_tokens >= 0),
    ADD COLUMN ttft_ms integer NOT NULL DEFAULT 0 CHECK (ttft_ms >= 0);
