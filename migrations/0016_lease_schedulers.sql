-- Which of the processes that serve the same pools does so now.

-- +goose Up

-- One row for each group of schedulers. epoch rises with every change of hands.
-- All times are the database's: the clocks of the machines don't matter.
CREATE TABLE scheduler_leases (
    name       text COLLATE "C" PRIMARY KEY CHECK (name <> '' AND length(name) <= 64),
    holder     text NOT NULL CHECK (holder <> '' AND length(holder) <= 128),
    epoch      bigint NOT NULL CHECK (epoch > 0),
    since      timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);

-- weir_hold_scheduler takes or renews the lease for p_ttl, in one write. It
-- returns the lease's epoch, or NULL where another holds it. Who holds it renews it;
-- once it has expired anybody takes it, in the next epoch.
-- +goose StatementBegin
CREATE FUNCTION weir_hold_scheduler(p_name text, p_holder text, p_ttl interval)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    INSERT INTO scheduler_leases AS l (name, holder, epoch, expires_at)
    VALUES (p_name, p_holder, 1, now() + p_ttl)
    ON CONFLICT (name) DO UPDATE
       SET holder = EXCLUDED.holder,
           epoch = CASE WHEN l.expires_at > now() THEN l.epoch ELSE l.epoch + 1 END,
           since = CASE WHEN l.expires_at > now() THEN l.since ELSE now() END,
           expires_at = EXCLUDED.expires_at
     WHERE l.expires_at <= now() OR l.holder = EXCLUDED.holder
    RETURNING epoch
$$;
-- +goose StatementEnd

-- weir_yield_scheduler gives the lease up at once, if it is still the caller's.
-- +goose StatementBegin
CREATE FUNCTION weir_yield_scheduler(p_name text, p_holder text, p_epoch bigint)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, public, pg_temp
AS $$
    UPDATE scheduler_leases SET expires_at = now()
     WHERE name = p_name AND holder = p_holder AND epoch = p_epoch
$$;
-- +goose StatementEnd

GRANT EXECUTE ON FUNCTION weir_hold_scheduler, weir_yield_scheduler TO weir_worker;
