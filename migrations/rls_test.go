package migrations_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"weir/migrations/pgtest"
)

// samples has one statement for every table whose rows belong to tenants, in
// the order of their references. $1 is the tenant, $2 makes the row unlike the
// tenant's others. A new table of tenants needs a new sample here.
func samples() []sample {
	return []sample{
		{"tenants", `
			INSERT INTO tenants (id, name, plan, fairness_id)
			VALUES ($1, $1, 'sample', $1 || $2)`},
		{"projects", `
			INSERT INTO projects (tenant_id, id, name, fairness_id)
			VALUES ($1, 'prj_' || $1 || $2, 'sample', 'project' || $1 || $2)`},
		{"keys", `
			INSERT INTO keys (tenant_id, id, project_id, kind, hash, pepper_version, display_start, display_end, name, created_by)
			VALUES ($1, 'key_' || $1 || $2, 'prj_' || $1 || '1', 'sk', sha256(convert_to($1 || $2, 'UTF8')), 1, '', '', 'sample', 'sample')`},
		{"audit", `
			INSERT INTO audit (tenant_id, id, actor, action, target)
			VALUES ($1, $1 || $2, 'sample', 'sample', 'sample')`},
		{"data_keys", `
			INSERT INTO data_keys (tenant_id, version, wrapped)
			VALUES ($1, $2::text::integer, 'sample')`},
		{"conversations", `
			INSERT INTO conversations (tenant_id, id, project_id, metadata)
			VALUES ($1, 'conv_' || $1 || $2, '', '')`},
		{"conversation_items", `
			INSERT INTO conversation_items (tenant_id, conversation_id, position, item_id, kind, content)
			VALUES ($1, 'conv_' || $1 || '1', $2::text::bigint, 'msg_1', 'message', '')`},
		{"responses", `
			INSERT INTO responses (tenant_id, id, project_id, key_id, root, turn, status, model, background, streamed, object, created_at)
			VALUES ($1, 'resp_' || $1 || $2, '', '', '', 1, 'completed', '', false, true, '', now())`},
		{"response_items", `
			INSERT INTO response_items (tenant_id, response_id, position, output, item_id, kind, content)
			VALUES ($1, 'resp_' || $1 || '1', $2::text::integer, false, 'msg_1', 'message', '')`},
		{"response_runs", `
			INSERT INTO response_runs (tenant_id, response_id, project_id, key_id, request, client_id)
			VALUES ($1, 'resp_' || $1 || $2, '', '', '', '')`},
		{"chat_completions", `
			INSERT INTO chat_completions (tenant_id, id, project_id, model, messages, object, created_at)
			VALUES ($1, 'chatcmpl_' || $1 || $2, '', '', '', '', now())`},
		{"tenant_prices", `
			INSERT INTO tenant_prices (tenant_id, model, effective_from, lapsed, input_pico, cached_input_pico, output_pico, reasoning_pico,
				flex_bp, priority_bp, batch_bp, background_bp, long_context)
			VALUES ($1, 'sample' || $2, now(), false, 1, 1, 1, 1, 0, 0, 0, 0, '[]')`},
		{"ratings", `
			INSERT INTO ratings (tenant_id, request_id, nth, price_version, cost_nano, saved_nano)
			VALUES ($1, 'req_' || $1 || $2, 1, 1, 0, 0)`},
		{"wallets", `
			INSERT INTO wallets (tenant_id, node, scope)
			VALUES ($1, 'key_' || $1 || $2, 'key')`},
		{"chunks", `
			INSERT INTO chunks (tenant_id, node, replica, left_nano, renewed_at, expires_at)
			VALUES ($1, 'key_' || $1 || '1', $2, 0, now(), now())`},
		{"credit_lots", `
			INSERT INTO credit_lots (tenant_id, kind, priority, amount_nano, ref)
			VALUES ($1, 'paid', 1, 1, 'sample' || $2)`},
		{"ledger_transactions", `
			INSERT INTO ledger_transactions (tenant_id, id, kind)
			VALUES ($1, $2::text::bigint, 'usage')`},
		{"ledger_entries", `
			INSERT INTO ledger_entries (tenant_id, txn, account, amount_nano)
			VALUES ($1, $2::text::bigint, 'rounding', 0)`},
		{"usage_hours", `
			INSERT INTO usage_hours (tenant_id, hour, project_id, key_id, model, tier,
				requests, input_uncached, input_cached, output, reasoning, cost_nano, saved_nano)
			VALUES ($1, now(), '', '', $2, '', 0, 0, 0, 0, 0, 0, 0)`},
		{"kept_answers", `
			INSERT INTO kept_answers (tenant_id, key_hash, print, request_id, replica, state, expires_at)
			VALUES ($1, sha256(convert_to($1 || $2, 'UTF8')), sha256(''), 'req_1', 'rep_1', 'running', now())`},
		{"price_drafts", `
			INSERT INTO price_drafts (tenant_id, model, body, author)
			VALUES ($1, 'sample' || $2, '{}', 'sample')`},
		{"receipt_ids", `
			INSERT INTO receipt_ids (tenant_id, request_id, settled_at)
			VALUES ($1, 'req_' || $1 || $2, now())`},
		{"receipts", `
			INSERT INTO receipts (tenant_id, settled_at, request_id, client_request_id, project_id, key_id,
				operation, model, pool, endpoint, attempts, stream, band, priority, tier,
				input_uncached, input_cached, output, reasoning, usage_source, price_version, cost_nano,
				started_at, queue_us, ttft_us, duration_us, outcome)
			VALUES ($1, now(), 'req_' || $1 || $2, '', '', '', '', '', '', '', 1, false, '', 0, '',
				0, 0, 0, 0, 'none', 0, 0, now(), 0, 0, 0, 'completed')`},
	}
}

type sample struct{ table, insert string }

// The two tenants that try to meet.
const (
	tenantA = "ten_a"
	tenantB = "ten_b"
)

// Postgres' codes. A missing grant and a policy's check answer the same one.
const (
	insufficientPrivilege = "42501"
	foreignKeyViolation   = "23503"
	uniqueViolation       = "23505"
)

// tenantTable is a table whose rows belong to tenants, as the catalogue of the
// database describes it.
type tenantTable struct {
	Name       string
	Column     string // that holds the tenant
	KeyFirst   string // first column of the primary key
	Updatable  string // a column that the application may set; empty when none
	Selectable bool   // the application may read the tenant's column
	Insertable bool
	Deletable  bool
}

func tenantTables(t *testing.T, conn *pgx.Conn) []tenantTable {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		SELECT c.relname AS name, a.attname AS column,
		       coalesce((SELECT k.attname
		                 FROM pg_index i
		                 JOIN pg_attribute k ON k.attrelid = c.oid AND k.attnum = i.indkey[0]
		                 WHERE i.indrelid = c.oid AND i.indisprimary), '') AS key_first,
		       coalesce((SELECT min(u.attname)
		                 FROM pg_attribute u
		                 WHERE u.attrelid = c.oid AND u.attnum > 0 AND NOT u.attisdropped
		                   AND has_column_privilege('weir_app', c.oid, u.attnum, 'UPDATE')), '') AS updatable,
		       has_column_privilege('weir_app', c.oid, a.attnum, 'SELECT') AS selectable,
		       has_table_privilege('weir_app', c.oid, 'INSERT') AS insertable,
		       has_table_privilege('weir_app', c.oid, 'DELETE') AS deletable
		FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_attribute a ON a.attrelid = c.oid AND NOT a.attisdropped
		 AND a.attname = CASE c.relname WHEN 'tenants' THEN 'id' ELSE 'tenant_id' END
		WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
		  AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
		ORDER BY c.relname`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowToStructByName[tenantTable])
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// newTenants returns a database with a row of tenant A and one of tenant B in
// every table of tenants.
func newTenants(t *testing.T) (*pgtest.DB, *pgx.Conn) {
	t.Helper()
	db := pgtest.New(t)
	admin := db.Admin(t)
	exec(t, admin, `INSERT INTO plans (name, bands, weight, fairness) VALUES ('sample', '{}', 1, 'tenant')`)
	for _, tenant := range []string{tenantA, tenantB} {
		for _, s := range samples() {
			exec(t, admin, s.insert, tenant, "1")
		}
	}
	return db, admin
}

// actAs runs one statement as the application, acting for a tenant or for none,
// and undoes it. It returns how many rows it saw or changed.
func actAs(t *testing.T, app *pgxpool.Pool, tenant, sql string, args ...any) (int64, error) {
	t.Helper()
	tx, err := app.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(lasting(t)) //nolint:errcheck // undone either way
	if tenant != "" {
		if _, err := tx.Exec(t.Context(), `SELECT set_config('weir.tenant_id', $1, true)`, tenant); err != nil {
			t.Fatal(err)
		}
	}
	tag, err := tx.Exec(t.Context(), sql, args...)
	return tag.RowsAffected(), err
}

func code(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

func TestEveryTableOfTenantsHasASample(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, s := range samples() {
		known[s.table] = true
	}
	tables := tenantTables(t, pgtest.New(t).Admin(t))
	for _, table := range tables {
		if !known[table.Name] {
			t.Errorf("no sample row for %s: add one to samples, or nothing proves that its tenants are apart", table.Name)
		}
		delete(known, table.Name)
	}
	for name := range known {
		t.Errorf("sample for %s, which is no table of tenants", name)
	}
}

// attempt is what the application may try on a row of tenant A. reached says
// whether its outcome shows that it got at the row, or past the policy.
type attempt struct {
	verb    string
	granted bool
	sql     string
	args    []any
	reached func(rows int64, code string) bool
}

func attempts(table tenantTable, insert string) []attempt {
	name, tenant := pgx.Identifier{table.Name}.Sanitize(), pgx.Identifier{table.Column}.Sanitize()
	column := tenant
	if table.Updatable != "" {
		column = pgx.Identifier{table.Updatable}.Sanitize()
	}
	touched := func(rows int64, code string) bool { return rows > 0 || code == foreignKeyViolation }
	return []attempt{
		{"SELECT", table.Selectable, `SELECT ` + tenant + ` FROM ` + name + ` WHERE ` + tenant + ` = $1`, []any{tenantA}, touched},
		{"UPDATE", table.Updatable != "", `UPDATE ` + name + ` SET ` + column + ` = ` + column + ` WHERE ` + tenant + ` = $1`, []any{tenantA}, touched},
		{"DELETE", table.Deletable, `DELETE FROM ` + name + ` WHERE ` + tenant + ` = $1`, []any{tenantA}, touched},
		{"INSERT", table.Insertable, insert, []any{tenantA, "2"}, func(rows int64, code string) bool {
			return rows > 0 || code == uniqueViolation
		}},
	}
}

func TestNoTenantReachesAnothersRows(t *testing.T) {
	t.Parallel()
	db, admin := newTenants(t)
	inserts := map[string]string{}
	for _, s := range samples() {
		inserts[s.table] = s.insert
	}
	for _, table := range tenantTables(t, admin) {
		for _, try := range attempts(table, inserts[table.Name]) {
			// The row's own tenant shows that the attempt would succeed, where
			// the application may do such a thing at all.
			rows, err := actAs(t, db.App, tenantA, try.sql, try.args...)
			if got := try.reached(rows, code(err)); got != try.granted {
				t.Errorf("%s on %s as its own tenant: reached %v, want %v: %v", try.verb, table.Name, got, try.granted, err)
			}
			for _, stranger := range []string{tenantB, ""} {
				rows, err := actAs(t, db.App, stranger, try.sql, try.args...)
				switch {
				case try.reached(rows, code(err)):
					t.Errorf("%s on %s of another tenant, as %q: reached %d rows, %v", try.verb, table.Name, stranger, rows, err)
				case err != nil && code(err) != insufficientPrivilege:
					t.Errorf("%s on %s, as %q: refused for another reason: %v", try.verb, table.Name, stranger, err)
				case err == nil && try.verb == "INSERT":
					t.Errorf("INSERT on %s, as %q: swallowed without an error", table.Name, stranger)
				}
			}
		}
	}
}

func TestNoTenantGivesItsRowsAway(t *testing.T) {
	t.Parallel()
	db, admin := newTenants(t)
	for _, table := range tenantTables(t, admin) {
		name, tenant := pgx.Identifier{table.Name}.Sanitize(), pgx.Identifier{table.Column}.Sanitize()
		// Where a missing grant already forbids it, the policy has to as well.
		exec(t, admin, `GRANT SELECT, UPDATE ON `+name+` TO weir_app`)
		if rows, err := actAs(t, db.App, tenantB, `SELECT FROM `+name); err != nil || rows == 0 {
			t.Errorf("%s has %d rows to try it with, %v", table.Name, rows, err)
		}
		// It is refused, or finds nothing where no policy lets a tenant change rows.
		rows, err := actAs(t, db.App, tenantB, `UPDATE `+name+` SET `+tenant+` = $1`, tenantA)
		if code(err) != insufficientPrivilege && (err != nil || rows > 0) {
			t.Errorf("UPDATE of %d rows of %s to another tenant: %v", rows, table.Name, err)
		}
	}
}

// foreignKey leads from one table of tenants to another.
type foreignKey struct {
	Name, Table, Target  string
	Columns, References  []string
	Tenant, TargetTenant string // the columns that hold the tenant
}

func foreignKeys(t *testing.T, conn *pgx.Conn) []foreignKey {
	t.Helper()
	tenantColumn := map[string]string{}
	for _, table := range tenantTables(t, conn) {
		tenantColumn[table.Name] = table.Column
	}
	rows, err := conn.Query(t.Context(), `
		SELECT f.conname AS name, s.relname AS table, r.relname AS target,
		       (SELECT array_agg(a.attname ORDER BY k.n)
		        FROM unnest(f.conkey) WITH ORDINALITY AS k (num, n)
		        JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.num)::text[] AS columns,
		       (SELECT array_agg(a.attname ORDER BY k.n)
		        FROM unnest(f.confkey) WITH ORDINALITY AS k (num, n)
		        JOIN pg_attribute a ON a.attrelid = f.confrelid AND a.attnum = k.num)::text[] AS references
		FROM pg_constraint f
		JOIN pg_class s ON s.oid = f.conrelid
		JOIN pg_class r ON r.oid = f.confrelid
		WHERE f.contype = 'f' AND NOT s.relispartition`)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByNameLax[foreignKey])
	if err != nil {
		t.Fatal(err)
	}
	var between []foreignKey
	for _, key := range found {
		key.Tenant, key.TargetTenant = tenantColumn[key.Table], tenantColumn[key.Target]
		if key.Tenant != "" && key.TargetTenant != "" {
			between = append(between, key)
		}
	}
	return between
}

// Postgres checks foreign keys past row-level security: the tenant has to be
// part of the key.
func TestNoRowPointsAtAnotherTenantsRow(t *testing.T) {
	t.Parallel()
	_, admin := newTenants(t)
	keys := foreignKeys(t, admin)
	if len(keys) == 0 {
		t.Fatal("no foreign keys found")
	}
	for _, key := range keys {
		at := slices.Index(key.Columns, key.Tenant)
		if at < 0 || key.References[at] != key.TargetTenant {
			t.Errorf("%s of %s: (%v) references %s (%v) without the tenant", key.Name, key.Table, key.Columns, key.Target, key.References)
			continue
		}
		columns, references := slices.Delete(key.Columns, at, at+1), slices.Delete(key.References, at, at+1)
		if len(columns) == 0 {
			continue // it leads to the tenant itself
		}
		_, err := admin.Exec(t.Context(), fmt.Sprintf(
			`UPDATE %s SET (%s) = ROW((SELECT %s FROM %s WHERE %s = $1)) WHERE %s = $2`,
			key.Table, strings.Join(columns, ", "), strings.Join(references, ", "), key.Target, key.TargetTenant, key.Tenant,
		), tenantA, tenantB)
		// A table that nobody may change refuses before the key does.
		if code(err) != foreignKeyViolation && code(err) != insufficientPrivilege {
			t.Errorf("%s of %s: a row was pointed at another tenant's: %v", key.Name, key.Table, err)
		}
	}
}

func TestTenantIsFirstInEveryPrimaryKey(t *testing.T) {
	t.Parallel()
	for _, table := range tenantTables(t, pgtest.New(t).Admin(t)) {
		if table.KeyFirst != table.Column {
			t.Errorf("primary key of %s begins with %q, want %q", table.Name, table.KeyFirst, table.Column)
		}
	}
}

func TestNobodyIsGrantedAPartition(t *testing.T) {
	t.Parallel()
	granted := column(t, pgtest.New(t).Admin(t), `
		SELECT c.relname || ' to ' || r.role
		FROM pg_class c, unnest(ARRAY['weir_app', 'weir_worker', 'public']) AS r (role)
		WHERE c.relispartition AND c.relkind IN ('r', 'p')
		  AND has_any_column_privilege(r.role, c.oid, 'SELECT, INSERT, UPDATE, REFERENCES')`)
	if len(granted) > 0 {
		t.Errorf("granted past the parent's policy: %v", granted)
	}
}

func TestWorkerReachesNoTable(t *testing.T) {
	t.Parallel()
	db, admin := newTenants(t)
	tables := column(t, admin, `
		SELECT c.oid::regclass::text
		FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'p', 'v', 'm') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
		  AND n.nspname <> 'river'`)
	if len(tables) < len(samples()) {
		t.Fatalf("only found %v", tables)
	}
	for _, table := range tables {
		for _, sql := range []string{`SELECT count(*) FROM ` + table, `DELETE FROM ` + table, `TRUNCATE ` + table} {
			if _, err := db.Worker.Exec(t.Context(), sql); code(err) != insufficientPrivilege {
				t.Errorf("%s as weir_worker: %v", sql, err)
			}
		}
	}
}

// A function that runs as the owner must not look its names up where its caller
// says, and what passes by row-level security is the worker's alone.
func TestFunctionsThatRunAsTheOwnerAreClosed(t *testing.T) {
	t.Parallel()
	admin := pgtest.New(t).Admin(t)
	const ours = `
		FROM pg_proc p
		JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'`
	if all := column(t, admin, `SELECT p.proname`+ours+` AND p.prosecdef`); len(all) == 0 {
		t.Fatal("no function found")
	}
	for fault, query := range map[string]string{
		"search_path isn't pinned to pg_catalog, public, pg_temp": ` AND p.prosecdef
			AND NOT coalesce('search_path=pg_catalog, public, pg_temp' = ANY (p.proconfig), false)`,
		"not the owner's":  ` AND p.prosecdef AND pg_get_userbyid(p.proowner) <> 'weir_owner'`,
		"open to weir_app": ` AND p.prosecdef AND has_function_privilege('weir_app', p.oid, 'EXECUTE')`,
		"open to PUBLIC":   ` AND has_function_privilege('public', p.oid, 'EXECUTE')`,
	} {
		if wrong := column(t, admin, `SELECT p.oid::regprocedure::text`+ours+query); len(wrong) > 0 {
			t.Errorf("%s: %v", fault, wrong)
		}
	}
}

// column returns the one column of a query.
func column(t *testing.T, conn *pgx.Conn, query string) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), query)
	if err != nil {
		t.Fatal(err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return values
}
