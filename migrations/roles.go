package migrations

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// RolesError says all that is wrong with the database's roles, and what to do
// about each.
type RolesError struct {
	Problems []string
}

func (e *RolesError) Error() string {
	return "the database's roles don't keep tenants apart (docs/database.md):\n- " +
		strings.Join(e.Problems, "\n- ")
}

// A rule is a query for what breaks it, names in its first column, and what to
// tell the operator of each.
type rule struct {
	query  string
	advice string // has one %s, and two where the query has two columns
}

// ownTables are the relations outside of the system's schemas.
const ownTables = `
	FROM pg_class c
	JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'`

// hasTenant holds for relations whose rows belong to tenants.
const hasTenant = `
	(c.relname = 'tenants' OR EXISTS (
		SELECT FROM pg_attribute a
		WHERE a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped
	))`

// readable holds for relations of which this login may read anything.
const readable = `
	(has_table_privilege(c.oid, 'SELECT') OR has_any_column_privilege(c.oid, 'SELECT'))`

// above is first for each login: a superuser breaks the other rules as well, in
// ways that aren't worth a line each.
func above() rule {
	return rule{
		`SELECT current_user::text, r.rolname::text
		FROM pg_roles r
		JOIN pg_roles me ON me.rolname = current_user
		WHERE (r.rolsuper OR r.rolbypassrls)
		  AND CASE WHEN me.rolsuper THEN r.oid = me.oid ELSE pg_has_role(r.oid, 'MEMBER') END`,
		"role %[1]s passes by row-level security: ALTER ROLE %[2]s NOSUPERUSER NOBYPASSRLS, or REVOKE %[2]s FROM %[1]s",
	}
}

// commonRules bind both logins.
func commonRules() []rule {
	return []rule{
		{
			`SELECT DISTINCT current_user::text, pg_get_userbyid(c.relowner)::text` + ownTables + `
			  AND c.relkind IN ('r', 'p') AND pg_has_role(c.relowner, 'MEMBER')`,
			"role %[1]s can act as %[2]s, who owns tables: give it a login of its own, or REVOKE %[2]s FROM %[1]s",
		},
		{
			`SELECT current_user::text WHERE has_schema_privilege('public', 'CREATE')`,
			"role %s may create objects: REVOKE CREATE ON SCHEMA public FROM it and from PUBLIC",
		},
	}
}

// tableRules bind the tables, and are asked as the application.
func tableRules() []rule {
	return []rule{
		{ // A partition that nobody may touch is guarded by its parent.
			`SELECT c.oid::regclass::text` + ownTables + `
			  AND c.relkind IN ('r', 'p') AND ` + hasTenant + `
			  AND NOT (c.relrowsecurity AND c.relforcerowsecurity)
			  AND (NOT c.relispartition OR ` + readable + `)
			ORDER BY 1`,
			"row-level security isn't enforced on %[1]s: ALTER TABLE %[1]s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
		},
		{ // A view reads as its owner, unless told otherwise; a materialized one always has.
			`SELECT c.oid::regclass::text` + ownTables + `
			  AND c.relkind IN ('v', 'm') AND ` + hasTenant + ` AND ` + readable + `
			  AND NOT coalesce('security_invoker=true' = ANY (c.reloptions), false)
			ORDER BY 1`,
			"view %s shows every tenant's rows: make it WITH (security_invoker = true), or revoke it",
		},
	}
}

func appRules() []rule {
	return []rule{{
		`SELECT current_user::text
		WHERE to_regrole('weir_app') IS NULL OR NOT pg_has_role(to_regrole('weir_app'), 'USAGE')`,
		"role %[1]s lacks the application's grants: run the migrations, then log in as weir_app or GRANT weir_app TO %[1]s",
	}}
}

func workerRules() []rule {
	return []rule{
		{
			`SELECT current_user::text
			WHERE to_regrole('weir_worker') IS NULL OR NOT pg_has_role(to_regrole('weir_worker'), 'USAGE')`,
			"role %[1]s lacks the worker's grants: run the migrations, then log in as weir_worker or GRANT weir_worker TO %[1]s",
		},
		{
			`SELECT current_user::text, c.oid::regclass::text` + ownTables + `
			  AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname <> '` + JobsSchema + `'
			  AND (has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
			    OR has_any_column_privilege(c.oid, 'SELECT, INSERT, UPDATE, REFERENCES'))
			ORDER BY 2`,
			"role %[1]s has rights on %[2]s, and is to reach tables through functions alone: REVOKE ALL ON %[2]s FROM it, its roles and PUBLIC",
		},
	}
}

// CheckRoles looks whether the database keeps tenants apart as the code
// believes: the application's login is bound by row-level security, which is
// forced on every table of tenants, and the worker's login reaches no table but
// those of the job queue. A
// *RolesError lists everything that is wrong; other errors mean that the
// database could not be asked.
func CheckRoles(ctx context.Context, app, worker *pgxpool.Pool) error {
	wrong := &RolesError{}
	if err := check(ctx, app, wrong, append(commonRules(), appRules()...), tableRules()); err != nil {
		return fmt.Errorf("check the application's role: %w", err)
	}
	if err := check(ctx, worker, wrong, append(commonRules(), workerRules()...), nil); err != nil {
		return fmt.Errorf("check the worker's role: %w", err)
	}
	if len(wrong.Problems) > 0 {
		return wrong
	}
	return nil
}

// check adds what is wrong with one login: its own rules, unless it is above
// them all, and those that hold whoever asks.
func check(ctx context.Context, login *pgxpool.Pool, wrong *RolesError, own, always []rule) error {
	unbound, err := ask(ctx, login, above())
	if err != nil {
		return err
	}
	wrong.Problems = append(wrong.Problems, unbound...)
	rules := always
	if len(unbound) == 0 {
		rules = append(own, always...)
	}
	for _, r := range rules {
		problems, err := ask(ctx, login, r)
		if err != nil {
			return err
		}
		wrong.Problems = append(wrong.Problems, problems...)
	}
	return nil
}

func ask(ctx context.Context, login *pgxpool.Pool, r rule) ([]string, error) {
	rows, err := login.Query(ctx, r.query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		names, err := row.Values()
		return fmt.Sprintf(r.advice, names...), err
	})
}
