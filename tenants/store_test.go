package tenants_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"weir/tenants"
)

func TestTenantIsCreatedWithAProject(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	got, err := h.Tenant(t.Context(), h.tenant.ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h.tenant, got); diff != "" {
		t.Errorf("what was returned and what is stored differ:\n%s", diff)
	}
	projects, err := h.ListProjects(t.Context(), h.tenant.ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]tenants.Project{h.project}, projects); diff != "" {
		t.Error(diff)
	}
	second, err := h.CreateProject(t.Context(), actor, h.tenant.ID, "research")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{h.tenant.FairnessID: true, h.project.FairnessID: true, second.FairnessID: true}
	if len(names) != 3 {
		t.Errorf("fairness ids are not unique: %v", names)
	}
	for name := range names {
		if strings.Contains(name, string(h.tenant.ID)[4:]) {
			t.Errorf("fairness id %s tells the tenant", name)
		}
	}
	for id, form := range map[string]string{string(h.tenant.ID): "ten_", string(second.ID): "prj_"} {
		if !strings.HasPrefix(id, form) || len(id) != len(form)+26 || id != strings.ToLower(id) {
			t.Errorf("id %q, want %s and 26 base32 characters", id, form)
		}
	}
}

func TestStoreRefusesInWordsForTheCaller(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	_, otherProject, err := h.CreateTenant(t.Context(), actor, "Other", "shared")
	if err != nil {
		t.Fatal(err)
	}
	foreign := h.spec()
	foreign.Project = otherProject.ID
	tests := []struct {
		name  string
		do    func() error
		field string
	}{
		{"a plan that does not exist", func() error {
			_, _, err := h.CreateTenant(t.Context(), actor, "X", "platinum")
			return err
		}, "plan"},
		{"a move to a plan that does not exist", func() error { return h.SetPlan(t.Context(), actor, h.tenant.ID, "platinum") }, "plan"},
		{"a tenant without a name", func() error {
			_, _, err := h.CreateTenant(t.Context(), actor, "", "standard")
			return err
		}, "name"},
		{"a project without a name", func() error {
			_, err := h.CreateProject(t.Context(), actor, h.tenant.ID, "\n")
			return err
		}, "name"},
		{"a key in another tenant's project", func() error {
			_, _, err := h.CreateKey(t.Context(), actor, h.tenant.ID, foreign)
			return err
		}, "project"},
		{"a key with a foreign scope", func() error {
			spec := h.spec()
			spec.Scopes = []string{tenants.ScopeKeysWrite}
			_, _, err := h.CreateKey(t.Context(), actor, h.tenant.ID, spec)
			return err
		}, "scopes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var fieldErr *tenants.FieldError
			if err := tt.do(); !errors.As(err, &fieldErr) || fieldErr.Field != tt.field {
				t.Errorf("error %v, want one about %s", err, tt.field)
			}
		})
	}
	t.Run("nothing of an unknown tenant exists", func(t *testing.T) {
		t.Parallel()
		const nobody = tenants.ID("ten_aaaaaaaaaaaaaaaaaaaaaaaaaa")
		_, errTenant := h.Tenant(t.Context(), nobody)
		_, errProject := h.CreateProject(t.Context(), actor, nobody, "p")
		_, _, errKey := h.CreateKey(t.Context(), actor, nobody, tenants.KeySpec{Kind: tenants.AdminKey, Name: "k"})
		for _, err := range []error{errTenant, errProject, errKey, h.Suspend(t.Context(), actor, nobody), h.SetPlan(t.Context(), actor, nobody, "shared")} {
			if !errors.Is(err, tenants.ErrNotFound) {
				t.Errorf("error %v, want ErrNotFound", err)
			}
		}
	})
	t.Run("no tenant at all is an error", func(t *testing.T) {
		t.Parallel()
		if err := h.InTenant(t.Context(), "", func(pgx.Tx) error { return nil }); err == nil {
			t.Error("InTenant accepted it")
		}
	})
}

func TestAChangeThatCannotBeAuditedIsNotMade(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var fieldErr *tenants.FieldError
	if err := h.Suspend(t.Context(), "", h.tenant.ID); !errors.As(err, &fieldErr) || fieldErr.Field != "actor" {
		t.Errorf("a change without an actor = %v, want a complaint about it", err)
	}
	got, err := h.Tenant(t.Context(), h.tenant.ID)
	if err != nil || !got.SuspendedAt.IsZero() {
		t.Errorf("the tenant is suspended at %s, %v", got.SuspendedAt, err)
	}
}

func TestKeyIsStoredAsAskedAndItsSecretNowhere(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	expires := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	secret, key := h.key(t, tenants.KeySpec{
		Kind: tenants.ServiceKey, Project: h.project.ID, Name: "batch job",
		Scopes: []string{tenants.ScopeModelsRead, tenants.ScopeChat, tenants.ScopeChat}, Models: []string{"b", "a/c"},
		CIDRs: []string{"2001:db8::/32", "10.0.0.0/8"}, Limits: tenants.Limits{RequestsPerMinute: 7}, ExpiresAt: expires,
	})
	want := tenants.Key{
		Tenant: h.tenant.ID, ID: key.ID, Project: h.project.ID, Kind: tenants.ServiceKey, Name: "batch job",
		DisplayStart: secret[:12], DisplayEnd: secret[len(secret)-4:],
		Scopes: []string{tenants.ScopeChat, tenants.ScopeModelsRead}, Models: []string{"a/c", "b"},
		CIDRs:  []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")},
		Limits: tenants.Limits{RequestsPerMinute: 7}, CreatedBy: actor, CreatedAt: key.CreatedAt, ExpiresAt: expires,
	}
	compare := []cmp.Option{cmpopts.EquateComparable(netip.Prefix{}), cmpopts.EquateApproxTime(0)}
	if diff := cmp.Diff(want, key, compare...); diff != "" {
		t.Errorf("CreateKey:\n%s", diff)
	}
	list, err := h.ListKeys(t.Context(), h.tenant.ID, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]tenants.Key{want}, list, compare...); diff != "" {
		t.Errorf("ListKeys:\n%s", diff)
	}
	for _, table := range []string{"keys", "audit", "tenants", "projects"} {
		var n int
		// The owner sees keys through its functions' policy; the others as the tenant.
		err := h.InTenant(t.Context(), h.tenant.ID, func(tx pgx.Tx) error {
			sql := `SELECT count(*) FROM ` + table + ` r WHERE strpos(r::text, $1) > 0`
			if table == "keys" {
				return h.db.Owner.QueryRow(t.Context(), sql, secret[len("weir_sa_"):40]).Scan(&n)
			}
			return tx.QueryRow(t.Context(), sql, secret[len("weir_sa_"):40]).Scan(&n)
		})
		if err != nil || n != 0 {
			t.Errorf("%s: %d rows have the secret, %v", table, n, err)
		}
	}
	err = h.InTenant(t.Context(), h.tenant.ID, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SELECT hash FROM keys`)
		return err
	})
	if !denied(err) {
		t.Errorf("the application reads hashes: %v", err)
	}
}

func TestKeysAreListedNewestFirstInPages(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	var want []tenants.KeyID
	for i := range 5 {
		spec := h.spec()
		spec.Name = fmt.Sprintf("key %d", i)
		_, key := h.key(t, spec)
		want = append([]tenants.KeyID{key.ID}, want...)
	}
	var got []tenants.KeyID
	for after := tenants.KeyID(""); ; {
		page, err := h.ListKeys(t.Context(), h.tenant.ID, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, k := range page {
			got = append(got, k.ID)
		}
		after = got[len(got)-1]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRevokingIsIdempotentAndOnlyOnesOwn(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	other, _, err := h.CreateTenant(t.Context(), actor, "Other", "standard")
	if err != nil {
		t.Fatal(err)
	}
	_, key := h.key(t, h.spec())
	if err := h.RevokeKey(t.Context(), actor, other.ID, key.ID); !errors.Is(err, tenants.ErrNotFound) {
		t.Errorf("revoking another tenant's key = %v, want ErrNotFound", err)
	}
	var revoked time.Time
	for range 3 {
		if err := h.RevokeKey(t.Context(), actor, h.tenant.ID, key.ID); err != nil {
			t.Fatal(err)
		}
		list, err := h.ListKeys(t.Context(), h.tenant.ID, "", 10)
		if err != nil || len(list) != 1 || list[0].RevokedAt.IsZero() {
			t.Fatalf("after revoking: %+v, %v", list, err)
		}
		if !revoked.IsZero() && !revoked.Equal(list[0].RevokedAt) {
			t.Error("revoking again moved the time")
		}
		revoked = list[0].RevokedAt
	}
	if got := h.audited(t, "key.revoke"); got != 1 {
		t.Errorf("%d audit entries, want 1", got)
	}
}

func (h *house) audited(t *testing.T, action string) (n int) {
	t.Helper()
	err := h.InTenant(t.Context(), h.tenant.ID, func(tx pgx.Tx) error {
		return tx.QueryRow(t.Context(), `SELECT count(*) FROM audit WHERE action = $1 AND actor = $2`, action, actor).Scan(&n)
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEveryChangeIsAuditedAndTheAuditStays(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.key(t, h.spec())
	for range 2 { // the second time changes nothing
		if err := h.Suspend(t.Context(), actor, h.tenant.ID); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Resume(t.Context(), actor, h.tenant.ID); err != nil {
		t.Fatal(err)
	}
	if err := h.SetPlan(t.Context(), actor, h.tenant.ID, "shared"); err != nil {
		t.Fatal(err)
	}
	for _, action := range []string{"tenant.create", "project.create", "key.create", "tenant.suspend", "tenant.resume", "tenant.set_plan"} {
		if got := h.audited(t, action); got != 1 {
			t.Errorf("%d entries for %s, want 1", got, action)
		}
	}
	for _, sql := range []string{`UPDATE audit SET actor = 'nobody'`, `DELETE FROM audit`, `TRUNCATE audit`} {
		err := h.InTenant(t.Context(), h.tenant.ID, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), sql)
			return err
		})
		if !denied(err) {
			t.Errorf("%s = %v, want permission denied", sql, err)
		}
	}
}

func denied(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "42501"
}

func TestOneTenantSeesNothingOfAnother(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	other, _, err := h.CreateTenant(t.Context(), actor, "Other", "standard")
	if err != nil {
		t.Fatal(err)
	}
	_, key := h.key(t, h.spec())
	tests := []struct{ name, table, column, insert string }{
		{"tenants", "tenants", "id", `INSERT INTO tenants (id, name, plan, fairness_id) VALUES ('ten_x', 'x', 'standard', 'flow_x')`},
		{"projects", "projects", "tenant_id", `INSERT INTO projects (tenant_id, id, name, fairness_id) VALUES ($1, 'prj_x', 'x', 'flow_y')`},
		{"keys", "keys", "tenant_id", `
			INSERT INTO keys (tenant_id, id, kind, hash, pepper_version, display_start, display_end, name, created_by)
			VALUES ($1, 'key_x', 'adm', decode(repeat('00', 32), 'hex'), 1, '', '', 'x', 'x')`},
		{"audit", "audit", "tenant_id", `INSERT INTO audit (tenant_id, id, actor, action, target) VALUES ($1, 'aud_x', 'x', 'x', 'x')`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			count := func(tenant tenants.ID) (n int) {
				err := h.InTenant(t.Context(), tenant, func(tx pgx.Tx) error {
					return tx.QueryRow(t.Context(), `SELECT count(*) FROM `+tt.table+` WHERE `+tt.column+` = $1`, h.tenant.ID).Scan(&n)
				})
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			if count(h.tenant.ID) == 0 || count(other.ID) != 0 {
				t.Errorf("the tenant sees %d of its rows, another %d", count(h.tenant.ID), count(other.ID))
			}
			var open int
			if err := h.db.App.QueryRow(t.Context(), `SELECT count(*) FROM `+tt.table).Scan(&open); err != nil || open != 0 {
				t.Errorf("without a tenant %d rows are seen, %v", open, err)
			}
			err := h.InTenant(t.Context(), other.ID, func(tx pgx.Tx) error {
				var args []any
				if strings.Contains(tt.insert, "$1") {
					args = append(args, h.tenant.ID)
				}
				_, err := tx.Exec(t.Context(), tt.insert, args...)
				return err
			})
			if !denied(err) {
				t.Errorf("another tenant's insert = %v, want a violated policy", err)
			}
		})
	}
	t.Run("a setting ends with its transaction", func(t *testing.T) {
		t.Parallel()
		conn, err := h.db.App.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		err = pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SELECT set_config('weir.tenant_id', $1, true)`, h.tenant.ID)
			return err
		})
		var n int
		if err == nil {
			err = conn.QueryRow(t.Context(), `SELECT count(*) FROM keys`).Scan(&n)
		}
		if err != nil || n != 0 {
			t.Errorf("the same connection later sees %d keys, %v", n, err)
		}
	})
	if list, err := h.ListKeys(t.Context(), other.ID, "", 10); err != nil || len(list) != 0 {
		t.Errorf("the other tenant lists %v, %v", list, err)
	}
	if list, err := h.ListKeys(t.Context(), other.ID, key.ID, 10); err != nil || len(list) != 0 {
		t.Errorf("the other tenant lists %v after a foreign key, %v", list, err)
	}
}

func TestTenantsAreBounded(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	// One project exists and one more fits.
	h.app(t, `
		INSERT INTO projects (tenant_id, id, name, fairness_id)
		SELECT $1, 'prj_' || i, 'filler', 'filler_' || i FROM generate_series(1, 998) i`, h.tenant.ID)
	// One more key fits.
	h.app(t, `
		INSERT INTO keys (tenant_id, id, kind, hash, pepper_version, display_start, display_end, name, created_by)
		SELECT $1, 'key_' || i, 'adm', sha256(i::text::bytea), 1, '', '', 'filler', 'test' FROM generate_series(1, 9999) i`, h.tenant.ID)
	race := func(what string, create func() error) {
		t.Helper()
		var made, full int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				err := create()
				mu.Lock()
				defer mu.Unlock()
				var fieldErr *tenants.FieldError
				switch {
				case err == nil:
					made++
				case errors.As(err, &fieldErr):
					full++
				default:
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		wg.Wait()
		if made != 1 || full != 3 {
			t.Errorf("%s: %d made and %d refused, want 1 and 3", what, made, full)
		}
	}
	race("projects", func() error {
		_, err := h.CreateProject(t.Context(), actor, h.tenant.ID, "one too many")
		return err
	})
	var last tenants.KeyID
	race("keys", func() error {
		_, key, err := h.CreateKey(t.Context(), actor, h.tenant.ID, h.spec())
		if err == nil {
			last = key.ID
		}
		return err
	})
	if err := h.RevokeKey(t.Context(), actor, h.tenant.ID, last); err != nil {
		t.Fatal(err)
	}
	h.key(t, h.spec()) // a revoked key makes room
}

func TestOperatorFindsTenants(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	want := []tenants.ID{h.tenant.ID}
	for i := range 4 {
		other, _, err := h.CreateTenant(t.Context(), actor, fmt.Sprintf("Tenant %d", i), "shared")
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, other.ID)
	}
	var got []tenants.ID
	for after := tenants.ID(""); ; {
		page, err := tenants.ListTenants(t.Context(), h.db.Worker, after, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, tenant := range page {
			got = append(got, tenant.ID)
		}
		after = got[len(got)-1]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	_, key := h.key(t, h.spec())
	if owner, err := tenants.TenantOfKey(t.Context(), h.db.Worker, key.ID); err != nil || owner != h.tenant.ID {
		t.Errorf("TenantOfKey = %s, %v", owner, err)
	}
	if _, err := tenants.TenantOfKey(t.Context(), h.db.Worker, "key_none"); !errors.Is(err, tenants.ErrNotFound) {
		t.Errorf("TenantOfKey of nobody's = %v, want ErrNotFound", err)
	}
	if _, err := tenants.ListTenants(t.Context(), h.db.App, "", 10); !denied(err) {
		t.Errorf("the application lists all tenants: %v", err)
	}
}

func TestPlans(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	put := func(plans map[string]tenants.Plan) error {
		return pgx.BeginFunc(t.Context(), h.db.App, func(tx pgx.Tx) error { return tenants.PutPlans(t.Context(), tx, plans) })
	}
	versions := func() map[string]string {
		rows, err := h.db.Owner.Query(t.Context(), `SELECT name, xmin::text FROM plans`)
		if err != nil {
			t.Fatal(err)
		}
		got := make(map[string]string)
		var name, xmin string
		if _, err := pgx.ForEachRow(rows, []any{&name, &xmin}, func() error { got[name] = xmin; return nil }); err != nil {
			t.Fatal(err)
		}
		return got
	}
	want := standardPlans()
	check := func(what string) {
		t.Helper()
		for name, p := range want {
			p.Name = name
			want[name] = p
		}
		got, err := tenants.LoadPlans(t.Context(), h.db.App)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s", what, diff)
		}
	}
	check("plans come back as they were put")

	before := versions()
	changed := want["shared"]
	changed.Weight = 9
	want["shared"] = changed
	if err := put(want); err != nil {
		t.Fatal(err)
	}
	check("a changed plan is changed")
	after := versions()
	if before["standard"] != after["standard"] || before["shared"] == after["shared"] {
		t.Errorf("rows were written as %v -> %v; only shared has changed", before, after)
	}

	if err := put(map[string]tenants.Plan{"broken": {}}); err == nil {
		t.Error("a plan without bands is stored")
	}
	remove := func(names ...string) error {
		return pgx.BeginFunc(t.Context(), h.db.App, func(tx pgx.Tx) error { return tenants.RemovePlans(t.Context(), tx, names) })
	}
	var fieldErr *tenants.FieldError
	if err := remove("shared", "standard"); !errors.As(err, &fieldErr) {
		t.Errorf("removing a plan in use = %v, want a FieldError", err)
	}
	check("a refused removal removes nothing")
	if err := remove("shared", "never was"); err != nil {
		t.Fatal(err)
	}
	delete(want, "shared")
	check("an unused plan is removed")
}
