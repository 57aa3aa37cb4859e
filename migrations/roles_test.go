package migrations_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"weir/migrations"
	"weir/migrations/pgtest"
)

// lasting is a context for clean-up: the test's own has ended by then.
func lasting(t *testing.T) context.Context {
	t.Helper()
	return context.WithoutCancel(t.Context())
}

// login makes a role with its own pool, both gone with the test. Roles belong
// to the whole server: a test must not change the ones that others use.
func login(t *testing.T, db *pgtest.DB, admin *pgx.Conn, attributes string) *pgxpool.Pool {
	t.Helper()
	name, password := "weir_test_"+strings.ToLower(rand.Text()), rand.Text()
	exec(t, admin, `CREATE ROLE `+name+` LOGIN PASSWORD '`+password+`' `+attributes)
	u, err := url.Parse(db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, password)
	pool, err := pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool.Close()
		for _, sql := range []string{`DROP OWNED BY ` + name, `DROP ROLE ` + name} {
			if _, err := admin.Exec(lasting(t), sql); err != nil {
				t.Error(err)
			}
		}
	})
	return pool
}

func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestTheRolesAsPreparedAndMigratedPass(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := migrations.CheckRoles(t.Context(), db.App, db.Worker); err != nil {
		t.Error(err)
	}
}

func TestLoginsThatAreMembersOfTheRolesPass(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	admin := db.Admin(t)
	app := login(t, db, admin, `IN ROLE weir_app`)
	worker := login(t, db, admin, `IN ROLE weir_worker`)
	if err := migrations.CheckRoles(t.Context(), app, worker); err != nil {
		t.Error(err)
	}
}

func TestCheckRolesNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		app      string   // attributes of a login for the application; empty: weir_app
		worker   string   // the same for the worker
		database []string // statements
		want     []string // each in a problem of its own, and no other problems
	}{
		{
			name: "an application that is a superuser",
			app:  `SUPERUSER`, want: []string{"passes by row-level security"},
		},
		{
			name: "an application with BYPASSRLS",
			app:  `BYPASSRLS IN ROLE weir_app`, want: []string{"passes by row-level security"},
		},
		{
			name: "an application that may become the owner",
			app:  `IN ROLE weir_app, weir_owner`, want: []string{"can act as weir_owner", "may create objects"},
		},
		{
			name: "an application without the application's grants",
			app:  `CONNECTION LIMIT 9`, want: []string{"lacks the application's grants"},
		},
		{
			name:     "a schema that is open to all",
			database: []string{`GRANT CREATE ON SCHEMA public TO PUBLIC`},
			want:     []string{"role weir_app may create objects", "role weir_worker may create objects"},
		},
		{
			name:     "a table whose row-level security isn't forced",
			database: []string{`ALTER TABLE keys NO FORCE ROW LEVEL SECURITY`},
			want:     []string{"enforced on keys:"},
		},
		{
			name: "tables whose row-level security is off, the table of tenants too",
			database: []string{
				`ALTER TABLE tenants DISABLE ROW LEVEL SECURITY`, `ALTER TABLE projects DISABLE ROW LEVEL SECURITY`,
			},
			want: []string{"enforced on projects:", "enforced on tenants:"},
		},
		{
			name: "a partition that can be read past its parent's policy",
			database: []string{
				`ALTER TABLE receipts_default DISABLE ROW LEVEL SECURITY`, `GRANT SELECT ON receipts_default TO weir_app`,
			},
			want: []string{"enforced on receipts_default:"},
		},
		{
			name:     "a partition without a policy of its own that nobody may read is no problem",
			database: []string{`ALTER TABLE receipts_default DISABLE ROW LEVEL SECURITY`},
		},
		{
			name: "a view that reads as its owner",
			database: []string{
				`CREATE VIEW open AS SELECT tenant_id, name FROM projects`, `GRANT SELECT ON open TO weir_app`,
			},
			want: []string{"view open shows every tenant's rows"},
		},
		{
			name: "a view that reads as its caller is no problem",
			database: []string{
				`CREATE VIEW closed WITH (security_invoker = true) AS SELECT tenant_id, name FROM projects`,
				`GRANT SELECT ON closed TO weir_app`,
			},
		},
		{
			name:   "a worker with BYPASSRLS",
			worker: `BYPASSRLS IN ROLE weir_worker`, want: []string{"passes by row-level security"},
		},
		{
			name:     "a worker that may read a column",
			database: []string{`GRANT SELECT (name) ON projects TO weir_worker`},
			want:     []string{"role weir_worker has rights on projects"},
		},
		{
			name:     "a table that everybody may fill",
			database: []string{`GRANT INSERT ON audit TO PUBLIC`},
			want:     []string{"role weir_worker has rights on audit"},
		},
		{
			name:   "a worker without the worker's grants",
			worker: `CONNECTION LIMIT 9`, want: []string{"lacks the worker's grants"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			admin := db.Admin(t)
			app, worker := db.App, db.Worker
			if tt.app != "" {
				app = login(t, db, admin, tt.app)
			}
			if tt.worker != "" {
				worker = login(t, db, admin, tt.worker)
			}
			for _, sql := range tt.database {
				exec(t, admin, sql)
			}
			expectProblems(t, migrations.CheckRoles(t.Context(), app, worker), tt.want)
		})
	}
}

func expectProblems(t *testing.T, err error, want []string) {
	t.Helper()
	if len(want) == 0 {
		if err != nil {
			t.Errorf("unexpected: %v", err)
		}
		return
	}
	var wrong *migrations.RolesError
	if !errors.As(err, &wrong) {
		t.Fatalf("got %v, want a RolesError", err)
	}
	if len(wrong.Problems) != len(want) {
		t.Fatalf("got %d problems, want %d:\n%v", len(wrong.Problems), len(want), wrong)
	}
	for i, part := range want {
		if !strings.Contains(wrong.Problems[i], part) {
			t.Errorf("problem %d is %q, want one with %q", i, wrong.Problems[i], part)
		}
		if !strings.Contains(err.Error(), wrong.Problems[i]) {
			t.Errorf("the error's text lacks %q", wrong.Problems[i])
		}
	}
}

func TestOneLoginForBothIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var wrong *migrations.RolesError
	if err := migrations.CheckRoles(t.Context(), db.App, db.App); !errors.As(err, &wrong) {
		t.Errorf("got %v, want a RolesError", err)
	}
}

func TestPrepareGivesTheSameLoginsAgainAndTakesBackOtherRights(t *testing.T) {
	t.Parallel()
	server := ownServer(t)
	prepare := func() migrations.Logins {
		t.Helper()
		logins, err := migrations.Prepare(t.Context(), server.URL("postgres"), "weir", server.Secret())
		if err != nil {
			t.Fatal(err)
		}
		return logins
	}
	first := prepare()
	if _, err := migrations.Up(t.Context(), quiet(), first.Owner); err != nil {
		t.Fatal(err)
	}
	exec(t, connect(t, server.URL("postgres")), `ALTER ROLE weir_app SUPERUSER`)
	if again := prepare(); again != first {
		t.Error("the second time gave other logins")
	}
	var pools [2]*pgxpool.Pool
	for i, url := range []string{first.App, first.Worker} {
		pool, err := pgxpool.New(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		pools[i] = pool
	}
	if err := migrations.CheckRoles(t.Context(), pools[0], pools[1]); err != nil {
		t.Error(err)
	}
}
