package migrations_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"weir/migrations"
	"weir/migrations/pgserver"
	"weir/migrations/pgtest"
)

func names(t *testing.T) []string {
	t.Helper()
	found, err := fs.Glob(migrations.Files(), "*.sql")
	if err != nil || len(found) == 0 {
		t.Fatalf("migrations: %v, %v", found, err)
	}
	slices.Sort(found)
	return found
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestUpAppliesEveryFileInOrderAndThenNothing(t *testing.T) {
	t.Parallel()
	db, all := pgtest.NewEmpty(t), names(t)

	pending := func(url string) int {
		t.Helper()
		n, err := migrations.Pending(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if got := pending(db.OwnerURL); got != len(all) {
		t.Errorf("pending in an empty database = %d, want %d", got, len(all))
	}
	got, err := migrations.Up(t.Context(), quiet(), db.OwnerURL)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(all, got); d != "" {
		t.Errorf("applied (-want +got):\n%s", d)
	}
	if got := pending(db.AppURL); got != 0 {
		t.Errorf("the application sees %d pending after all were applied", got)
	}
	if got, err = migrations.Up(t.Context(), quiet(), db.OwnerURL); err != nil || len(got) != 0 {
		t.Errorf("second Up = %v, %v; want nothing", got, err)
	}
}

func TestPendingCountsWhatOneDatabaseLacks(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	last, _, _ := strings.Cut(names(t)[len(names(t))-1], "_")
	if _, err := db.Owner.Exec(t.Context(), `DELETE FROM weir_migrations WHERE version_id = $1::text::bigint`, last); err != nil {
		t.Fatal(err)
	}
	if n, err := migrations.Pending(t.Context(), db.AppURL); err != nil || n != 1 {
		t.Errorf("pending = %d, %v; want 1", n, err)
	}
}

func TestPendingOfANewerDatabaseIsNone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Owner.Exec(t.Context(), `INSERT INTO weir_migrations (version_id, is_applied) VALUES (9999, true)`); err != nil {
		t.Fatal(err)
	}
	if n, err := migrations.Pending(t.Context(), db.AppURL); err != nil || n != 0 {
		t.Errorf("pending = %d, %v; want 0", n, err)
	}
}

func TestRacingReplicasApplyEachFileOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	const replicas = 4
	applied := make([][]string, replicas)
	group, ctx := errgroup.WithContext(t.Context())
	for i := range replicas {
		group.Go(func() (err error) {
			applied[i], err = migrations.Up(ctx, quiet(), db.OwnerURL)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(names(t), slices.Concat(applied...)); d != "" {
		t.Errorf("applied by all together (-want +got):\n%s", d)
	}
}

func TestUpNeverQuotesThePasswordOfItsURL(t *testing.T) {
	t.Parallel()
	for name, url := range map[string]string{
		"malformed": "postgres://weir_owner:hunter2@127.0.0.1:not-a-port/weir",
		"refused":   "postgres://weir_owner:hunter2@127.0.0.1:1/weir",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := migrations.Up(t.Context(), quiet(), url)
			if err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error is %v", err)
			}
			_, err = migrations.Pending(t.Context(), url)
			if err == nil || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// ownServer is for tests that change roles, which belong to a whole server.
func ownServer(t *testing.T) *pgserver.Server {
	t.Helper()
	server, err := pgserver.Start(t.Context(), pgserver.Config{Dir: t.TempDir(), Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(lasting(t)); err != nil {
			t.Error(err)
		}
	})
	return server
}

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(lasting(t)) })
	return conn
}

func TestRolesAreCreatedOnceOrAskedFor(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	admin := connect(t, server.URL("postgres"))
	exec(t, admin, `CREATE ROLE own LOGIN PASSWORD 'own'`)
	exec(t, admin, `CREATE DATABASE one OWNER own`)
	exec(t, admin, `CREATE DATABASE two OWNER own`)
	as := func(database string) string {
		return strings.Replace(server.URL(database), "postgres:"+server.Secret(), "own:own", 1)
	}

	_, err := migrations.Up(t.Context(), quiet(), as("one"))
	if err == nil || !strings.Contains(err.Error(), "weir_app does not exist and own may not create it") {
		t.Errorf("without the roles and the right to create them: %v", err)
	}

	exec(t, admin, `ALTER ROLE own CREATEROLE`)
	group, ctx := errgroup.WithContext(t.Context())
	for _, database := range []string{"one", "two"} {
		group.Go(func() error {
			applied, err := migrations.Up(ctx, quiet(), as(database))
			if err == nil && len(applied) == 0 {
				err = errors.New("nothing was applied")
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Errorf("two databases of one server at once: %v", err)
	}
}
