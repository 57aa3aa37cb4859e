package tenants_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

func TestABatchSeesAndChangesOneTenantAlone(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	other, _, err := h.CreateTenant(t.Context(), actor, "Other", "standard")
	if err != nil {
		t.Fatal(err)
	}
	names := func(tenant tenants.ID) (all []string) {
		err := tenants.BatchInTenant(t.Context(), h.db.App, tenant, func(b *pgx.Batch) {
			b.Queue(`SELECT name FROM tenants`).Query(func(rows pgx.Rows) error {
				all, err = pgx.CollectRows(rows, pgx.RowTo[string])
				return err
			})
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if got := names(h.tenant.ID); len(got) != 1 || got[0] != "Acme" {
		t.Errorf("the tenant sees %q", got)
	}
	if got := names(other.ID); len(got) != 1 || got[0] != "Other" {
		t.Errorf("another sees %q", got)
	}
	insert := `INSERT INTO projects (tenant_id, id, name, fairness_id) VALUES ($1, $2, $2, $2)`
	if err := tenants.BatchInTenant(t.Context(), h.db.App, other.ID, func(b *pgx.Batch) { b.Queue(insert, h.tenant.ID, "prj_x") }); !denied(err) {
		t.Errorf("another tenant's insert: %v", err)
	}
	if err := tenants.BatchInTenant(t.Context(), h.db.App, "", func(*pgx.Batch) { t.Error("was asked") }); err == nil {
		t.Error("without a tenant")
	}
}

func TestABatchIsOneTransactionAndLeavesNothingWithItsConnection(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	insert := `INSERT INTO projects (tenant_id, id, name, fairness_id) VALUES ($1, $2, $2, $2)`
	err := tenants.BatchInTenant(t.Context(), h.db.App, h.tenant.ID, func(b *pgx.Batch) {
		b.Queue(insert, h.tenant.ID, "prj_new")
		b.Queue(insert, h.tenant.ID, "prj_new") // is there already
	})
	if err == nil {
		t.Fatal("a row was stored twice")
	}
	var found bool
	look := func() error {
		return tenants.BatchInTenant(t.Context(), h.db.App, h.tenant.ID, func(b *pgx.Batch) {
			b.Queue(`SELECT true FROM projects WHERE id = 'prj_new'`).QueryRow(func(row pgx.Row) error { return row.Scan(&found) })
		})
	}
	if err := look(); !errors.Is(err, pgx.ErrNoRows) {
		t.Errorf("the first of two statements, of which the second failed, is there: %v", err)
	}
	for range h.db.App.Config().MaxConns + 1 {
		var seen int
		if err := h.db.App.QueryRow(t.Context(), `SELECT count(*) FROM tenants`).Scan(&seen); err != nil || seen != 0 {
			t.Fatalf("after the batches %d tenants are seen without one: %v", seen, err)
		}
	}
}
