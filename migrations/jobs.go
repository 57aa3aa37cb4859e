package migrations

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// JobsSchema is where the tables of the job queue are.
const JobsSchema = "river"

// upJobs brings the job queue's tables up to what its library needs. Racing
// callers wait for each other on a lock of the session.
func upJobs(ctx context.Context, log *slog.Logger, ownerURL string) error {
	config, err := pgxpool.ParseConfig(ownerURL)
	if err != nil {
		return fmt.Errorf("owner database URL: %w", err)
	}
	config.MaxConns = 2 // one has the lock
	config.ConnConfig.RuntimeParams["application_name"] = "weir migrate"
	config.ConnConfig.RuntimeParams["lock_timeout"] = lockTimeout
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("migrate jobs: %w", err)
	}
	defer pool.Close()
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '5min'`)
		if err == nil {
			_, err = tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtext('weir.migrate_jobs'))`)
		}
		if err != nil {
			return fmt.Errorf("migrate jobs: %w", err)
		}
		return migrateJobs(ctx, log, pool)
	})
}

func migrateJobs(ctx context.Context, log *slog.Logger, pool *pgxpool.Pool) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Schema: JobsSchema, Logger: quieter(log)})
	if err != nil {
		return fmt.Errorf("migrate jobs: %w", err)
	}
	result, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	if err != nil {
		return fmt.Errorf("migrate jobs: %w", err)
	}
	for _, v := range result.Versions {
		log.InfoContext(ctx, "migration of jobs applied", "version", v.Version, "name", v.Name, "duration", v.Duration)
	}
	if len(result.Versions) == 0 {
		return nil
	}
	// What was applied is written by the owner alone; anyone may look.
	_, err = pool.Exec(ctx, `
		REVOKE ALL ON river.river_migration FROM weir_worker;
		GRANT SELECT ON river.river_migration TO weir_worker, weir_app`)
	if err != nil {
		return fmt.Errorf("migrate jobs: %w", err)
	}
	return nil
}

// pendingJobs counts the job queue's migrations that the database lacks.
func pendingJobs(ctx context.Context, conn *pgx.Conn) (int, error) {
	migrator, err := rivermigrate.New(riverpgxv5.New(nil), &rivermigrate.Config{Schema: JobsSchema, Logger: quieter(nil)})
	if err != nil {
		return 0, err
	}
	var applied []int
	rows, err := conn.Query(ctx, `SELECT version FROM river.river_migration WHERE line = 'main'`)
	if err == nil {
		applied, err = pgx.CollectRows(rows, pgx.RowTo[int])
	}
	if err != nil {
		return 0, fmt.Errorf("count pending migrations of jobs: %w", err)
	}
	there := make(map[int]bool, len(applied))
	for _, v := range applied {
		there[v] = true
	}
	pending := 0
	for _, m := range migrator.AllVersions() {
		if !there[m.Version] {
			pending++
		}
	}
	return pending, nil
}

// quieter has the library say only what goes wrong.
func quieter(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log.With("part", "jobs")
}
