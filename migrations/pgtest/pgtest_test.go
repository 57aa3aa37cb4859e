package pgtest_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"weir/migrations"
	"weir/migrations/pgserver"
	"weir/migrations/pgtest"
)

func ask[T any](t *testing.T, from interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any,
) T {
	t.Helper()
	var answer T
	if err := from.QueryRow(t.Context(), sql, args...).Scan(&answer); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return answer
}

func TestEachPoolIsItsOwnRoleAndNoSuperuser(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for role, pool := range map[string]*pgxpool.Pool{
		"weir_owner": db.Owner, "weir_app": db.App, "weir_worker": db.Worker,
	} {
		if got := ask[string](t, pool, `SELECT current_user`); got != role {
			t.Errorf("pool of %s is logged in as %s", role, got)
		}
		if ask[bool](t, pool, `
			SELECT rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb
			FROM pg_roles
			WHERE rolname = current_user`) {
			t.Errorf("%s has rights that it hasn't in production", role)
		}
	}
	if !ask[bool](t, db.Admin(t), `SELECT rolsuper FROM pg_roles WHERE rolname = current_user`) {
		t.Error("the administrator is no superuser")
	}
}

func TestDatabaseHasTheWholeSchema(t *testing.T) {
	t.Parallel()
	n, err := migrations.Pending(t.Context(), pgtest.New(t).AppURL)
	if err != nil || n != 0 {
		t.Errorf("pending = %d, %v", n, err)
	}
}

func TestCloneIsAsClosedAsADatabaseThatWasMigrated(t *testing.T) {
	t.Parallel()
	if _, err := pgtest.New(t).App.Exec(t.Context(), `CREATE TEMPORARY TABLE t ()`); err == nil {
		t.Error("the application may make temporary tables")
	}
}

func TestTestsDontSeeEachOther(t *testing.T) {
	t.Parallel()
	one, two := pgtest.New(t), pgtest.New(t)
	if _, err := one.Owner.Exec(t.Context(), `CREATE TABLE mine ()`); err != nil {
		t.Fatal(err)
	}
	if ask[bool](t, two.Owner, `SELECT to_regclass('mine') IS NOT NULL`) {
		t.Error("a table of one test is in the database of another")
	}
}

func TestDatabaseIsDroppedWithTheTestThoughConnectionsAreOpen(t *testing.T) { //nolint:tparallel // it looks at what the inner test left
	t.Parallel()
	outer := pgtest.New(t)
	var name string
	t.Run("inner", func(t *testing.T) {
		db := pgtest.New(t)
		name = ask[string](t, db.App, `SELECT current_database()::text`)
		if _, err := pgx.Connect(t.Context(), db.OwnerURL); err != nil { // never closed
			t.Fatal(err)
		}
	})
	if ask[bool](t, outer.App, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name) {
		t.Errorf("%s is still there", name)
	}
}

// TestHelper runs in a process of its own: it says which server it uses and
// whether a database is there, and waits to be killed if it is told to.
func TestHelper(t *testing.T) { //nolint:paralleltest // not a test in its own right
	mode := os.Getenv("PGTEST_HELPER")
	if mode == "" {
		t.Skip("runs only as a helper of other tests")
	}
	db := pgtest.New(t)
	fmt.Println(ask[string](t, db.Admin(t), `
		SELECT concat_ws(' ', current_database(), current_setting('port'), current_setting('data_directory'),
			EXISTS (SELECT FROM pg_database WHERE datname = $1))`, os.Getenv("PGTEST_LEFT")))
	if mode == "wait" {
		<-t.Context().Done()
	}
}

// helper is a process that runs TestHelper.
type helper struct {
	cmd *exec.Cmd
	out *bufio.Reader
}

func start(t *testing.T, mode string, env ...string) helper {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHelper$")
	cmd.Env = append(append(os.Environ(), "PGTEST_HELPER="+mode), env...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return helper{cmd, bufio.NewReader(out)}
}

type answer struct{ database, port, data, there string }

func (h helper) answer(t *testing.T) answer {
	t.Helper()
	line, err := h.out.ReadString('\n')
	said := strings.Fields(line)
	if err != nil || len(said) != 4 {
		t.Fatalf("helper said %q: %v", line, err)
	}
	return answer{said[0], said[1], said[2], said[3]}
}

func TestWhatAKilledProcessLeftIsDroppedByTheNext(t *testing.T) {
	t.Parallel()
	// Slots of their own, which nobody else can take in between.
	own := []string{"TMPDIR=" + t.TempDir(), "WEIR_TEST_DATABASE_URL="}
	killed := start(t, "wait", own...)
	left := killed.answer(t)
	if err := killed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.cmd.Wait() // reports the kill

	next := start(t, "once", append(own, "PGTEST_LEFT="+left.database)...)
	got := next.answer(t)
	if err := next.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if got.data != left.data || got.there != "f" {
		t.Errorf("the next process has %+v, after %+v", got, left)
	}
}

func TestRunningServerIsUsedAndLeftClean(t *testing.T) {
	t.Parallel()
	server, err := pgserver.Start(t.Context(), pgserver.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	// Two processes at once make one template.
	env := "WEIR_TEST_DATABASE_URL=" + server.URL("postgres")
	for _, h := range []helper{start(t, "once", env), start(t, "once", env)} {
		if got := h.answer(t); got.port != strconv.Itoa(server.Port()) {
			t.Errorf("%+v, want port %d", got, server.Port())
		}
		if err := h.cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context()) //nolint:errcheck // only read
	if left := ask[int](t, conn, `SELECT count(*)::int FROM pg_database WHERE starts_with(datname, 'weir_test_')`); left != 0 {
		t.Errorf("%d databases of ended tests are left", left)
	}
	if n := ask[int](t, conn, `SELECT count(*)::int FROM pg_database WHERE datistemplate AND starts_with(datname, 'weir_template_')`); n != 1 {
		t.Errorf("%d templates, want 1", n)
	}
}
