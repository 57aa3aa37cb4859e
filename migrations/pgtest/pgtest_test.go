package pgtest_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"weir/migrations/pgtest"
)

func TestEachPoolIsItsOwnRoleAndNoSuperuser(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for role, pool := range map[string]*pgxpool.Pool{
		"weir_owner": db.Owner, "weir_app": db.App, "weir_worker": db.Worker,
	} {
		var name string
		var above bool
		err := pool.QueryRow(t.Context(), `
			SELECT rolname, rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb
			FROM pg_roles
			WHERE rolname = current_user`).Scan(&name, &above)
		if err != nil {
			t.Fatal(err)
		}
		if name != role || above {
			t.Errorf("pool of %s: logged in as %s, privileged %v", role, name, above)
		}
	}
}
