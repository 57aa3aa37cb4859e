-- What becomes of a plan's requests while the scheduler that replicas share doesn't
-- answer: refused (''), or placed by the replica itself where the pool lists its
-- endpoints. A binary that doesn't know the column refuses them.

-- +goose Up
ALTER TABLE plans
    ADD COLUMN when_no_scheduler text NOT NULL DEFAULT '' CHECK (when_no_scheduler IN ('', 'embedded'));
