-- Where a plan's requests may be served: the regions of pools (none: all), and how
-- well pools must keep tenants apart. A binary that doesn't know the columns
-- serves such plans everywhere: replace all replicas before plans use them.

-- +goose Up
ALTER TABLE plans
    ADD COLUMN regions text[] NOT NULL DEFAULT '{}',
    ADD COLUMN isolation text NOT NULL DEFAULT '' CHECK (isolation IN ('', 'verified', 'single-tenant'));
