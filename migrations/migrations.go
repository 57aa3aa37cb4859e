// Package migrations holds the database schema and brings a database up to it.
// Files are forward-only and safe while the previous binary still runs.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed *.sql
var files embed.FS

// historyTable is where goose records what it applied.
const historyTable = "weir_migrations"

// A migration that can't get its table lock at once would queue there, and
// everybody behind it; better that it fails and is run again.
const lockTimeout = "15s"

// Files returns the migrations as they are built into the binary.
func Files() fs.FS { return files }

// Up applies what the database lacks and returns the file names of what it
// applied, in order; the job queue's own tables come after them. The URL is the owner's and must lead to Postgres itself:
// the lock that lets racing callers apply everything once belongs to a session,
// which a transaction pooler doesn't keep. A failing file is rolled back; those
// before it stay.
func Up(ctx context.Context, log *slog.Logger, ownerURL string) ([]string, error) {
	config, err := pgx.ParseConfig(ownerURL)
	if err != nil {
		return nil, fmt.Errorf("owner database URL: %w", err)
	}
	config.RuntimeParams["application_name"] = "weir migrate"
	config.RuntimeParams["lock_timeout"] = lockTimeout

	db := stdlib.OpenDB(*config)
	provider, err := newProvider(db)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	results, err := provider.Up(ctx)

	// goose hands over what went well before a failure inside the error.
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results = partial.Applied
	}
	var applied []string
	for _, r := range results {
		name := path.Base(r.Source.Path)
		log.InfoContext(ctx, "migration applied", "name", name, "duration", r.Duration)
		applied = append(applied, name)
	}
	if err != nil {
		err = fmt.Errorf("migrate: %w", err)
	}
	if err = errors.Join(err, provider.Close()); err != nil {
		return applied, err
	}
	return applied, upJobs(ctx, log, ownerURL)
}

func newProvider(db *sql.DB) (*goose.Provider, error) {
	// Ask for the lock every second, for five minutes.
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName(historyTable),
		goose.WithSessionLocker(locker),
		goose.WithDisableGlobalRegistry(true),
	)
}

// Pending counts the migrations of this binary that the database lacks. It
// changes nothing and the application's URL suffices. A database that is newer
// than the binary has none pending.
func Pending(ctx context.Context, url string) (int, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, fmt.Errorf("count pending migrations: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing was written

	known, err := versions()
	if err != nil {
		return 0, err
	}
	var fresh bool
	if err := conn.QueryRow(ctx, `SELECT to_regclass($1) IS NULL`, historyTable).Scan(&fresh); err != nil {
		return 0, fmt.Errorf("count pending migrations: %w", err)
	}
	if fresh {
		return len(known), nil
	}
	var pending int
	err = conn.QueryRow(ctx, `
		SELECT count(*)
		FROM unnest($1::bigint[]) AS v
		WHERE NOT EXISTS (
			SELECT FROM `+historyTable+` WHERE version_id = v AND is_applied
		)`, known).Scan(&pending)
	if err != nil {
		return 0, fmt.Errorf("count pending migrations: %w", err)
	}
	if pending > 0 {
		return pending, nil
	}
	return pendingJobs(ctx, conn)
}

func versions() ([]int64, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, err
	}
	known := make([]int64, len(names))
	for i, name := range names {
		if known[i], err = goose.NumericComponent(name); err != nil {
			return nil, fmt.Errorf("migration %s: %w", name, err)
		}
	}
	return known, nil
}
