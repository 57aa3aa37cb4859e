package billing

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"weir/migrations/pgtest"
	"weir/tenants"
)

// A draft is the list's or one tenant's, changes no price, and is replaced by
// the next one.
func TestDraftsWaitForTheirOwnersPublish(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	begin := func(tenant tenants.ID, work func(pgx.Tx) error) error {
		if tenant == "" {
			return pgx.BeginFunc(t.Context(), db.App, work)
		}
		return tenants.InTenant(t.Context(), db.App, tenant, work)
	}
	draft := func(tenant tenants.ID, specs ...PriceSpec) error {
		return begin(tenant, func(tx pgx.Tx) error { return PutDrafts(t.Context(), tx, tenant, "operator:me", specs) })
	}
	costing := func(model, input string) PriceSpec {
		return PriceSpec{Model: model, Input: input, Output: "1"}
	}
	for _, d := range []struct {
		tenant tenants.ID
		spec   PriceSpec
	}{{"", costing("m", "1")}, {"", costing("m", "2")}, {"", costing("other", "3")}, {"ten_a", costing("m", "4")}, {"ten_b", PriceSpec{Model: "m", ListPrice: true}}} {
		if err := draft(d.tenant, d.spec); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range [][]PriceSpec{{costing("m", "x")}, {costing("m", "1"), costing("m", "2")}} {
		if err := draft("", bad...); !errors.Is(err, ErrPrice) {
			t.Errorf("drafted %+v: %v", bad, err)
		}
	}
	if err := begin("ten_a", func(tx pgx.Tx) error { return PutDrafts(t.Context(), tx, "", "me", []PriceSpec{costing("m", "0")}) }); err == nil {
		t.Error("a tenant's transaction drafted a price of the list")
	}
	var texts []string
	for _, tenant := range []tenants.ID{"", "ten_a", "ten_b"} {
		err := begin(tenant, func(tx pgx.Tx) error {
			drafts, err := Drafts(t.Context(), tx, tenant)
			for _, d := range drafts {
				texts = append(texts, string(tenant)+":"+d.Spec.Model+":"+d.Spec.Input+":"+d.Author)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	want := []string{":m:2:operator:me", ":other:3:operator:me", "ten_a:m:4:operator:me", "ten_b:m::operator:me"}
	if diff := cmp.Diff(want, texts); diff != "" {
		t.Errorf("drafts (-want +got):\n%s", diff)
	}
	if book, err := LoadBook(t.Context(), db.App); err != nil || len(book.Since(nil)) > 0 {
		t.Errorf("drafting published %+v, %v", book.Since(nil), err)
	}
	err := begin("", func(tx pgx.Tx) error {
		n, err := DropDrafts(t.Context(), tx, "", []string{"m", "nothing"})
		if n != 1 {
			t.Errorf("%d drafts dropped, want 1", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
