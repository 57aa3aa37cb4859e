package tenants_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

// limitsOf is what a key is limited to beside its own, as a look-up finds it.
func (h *house) limitsOf(t *testing.T, keys *tenants.Keys, id tenants.KeyID, model string) [2]tenants.Limits {
	t.Helper()
	p, err := keys.Principal(t.Context(), h.tenant.ID, id)
	if err != nil {
		t.Fatal(err)
	}
	return [2]tenants.Limits{p.ProjectLimits, p.ModelLimit(model)}
}

func TestLimitsOfProjectsAndModelsReachTheCaller(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	keys := h.keys(t, tenants.KeysConfig{})
	_, key := h.key(t, h.spec())
	plans := [2]tenants.Limits{{RequestsPerMinute: 300}, {RequestsPerMinute: 20, Concurrency: 2}}
	if diff := cmp.Diff(plans, h.limitsOf(t, keys, key.ID, "org/big")); diff != "" {
		t.Errorf("without own ones (-want +got):\n%s", diff)
	}

	own := tenants.Limits{Concurrency: 7, TokensPerMinute: 9}
	if err := h.SetProjectLimits(t.Context(), actor, h.tenant.ID, h.project.ID, own); err != nil {
		t.Fatal(err)
	}
	for _, model := range []string{"org/big", "org/small"} {
		if err := h.SetModelLimits(t.Context(), actor, h.tenant.ID, model, own); err != nil {
			t.Fatal(err)
		}
	}
	want := [2]tenants.Limits{{Concurrency: 7, TokensPerMinute: 9, RequestsPerMinute: 300}, {Concurrency: 7, TokensPerMinute: 9, RequestsPerMinute: 20}}
	if diff := cmp.Diff(want, h.limitsOf(t, keys, key.ID, "org/big")); diff != "" {
		t.Errorf("with own ones over the plan's (-want +got):\n%s", diff)
	}
	if got := h.limitsOf(t, keys, key.ID, "org/small")[1]; got != own {
		t.Errorf("a model that the plan doesn't name has %+v", got)
	}

	if err := h.SetModelLimits(t.Context(), actor, h.tenant.ID, "org/big", tenants.Limits{}); err != nil {
		t.Fatal(err)
	}
	if got := h.limitsOf(t, keys, key.ID, "org/big")[1]; got != plans[1] {
		t.Errorf("after the own ones were taken back: %+v, want the plan's", got)
	}
	projects, err := h.ListProjects(t.Context(), h.tenant.ID)
	if err != nil || projects[0].Limits != own {
		t.Errorf("%+v, %v: the list lacks the project's limits", projects, err)
	}
}

func TestLimitsThatCannotBe(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	other, _, err := h.CreateTenant(t.Context(), actor, "Other", "shared")
	if err != nil {
		t.Fatal(err)
	}
	field := func(err error) bool { f, ok := errors.AsType[*tenants.FieldError](err); return ok && f.Field != "" }
	missing := func(err error) bool { return errors.Is(err, tenants.ErrNotFound) }
	negative, one := tenants.Limits{Concurrency: -1}, tenants.Limits{Concurrency: 1}
	tests := []struct {
		name string
		err  error
		want func(error) bool
	}{
		{"negative, of a project", h.SetProjectLimits(t.Context(), actor, h.tenant.ID, h.project.ID, negative), field},
		{"negative, of a model", h.SetModelLimits(t.Context(), actor, h.tenant.ID, "m", negative), field},
		{"of a model without a name", h.SetModelLimits(t.Context(), actor, h.tenant.ID, "", one), field},
		{"of another tenant's project", h.SetProjectLimits(t.Context(), actor, other.ID, h.project.ID, one), missing},
		{"of a tenant that isn't there", h.SetModelLimits(t.Context(), actor, "ten_none", "m", one), missing},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if !tt.want(tt.err) {
				t.Errorf("error = %v", tt.err)
			}
		})
	}
}

func TestLimitsOfModelsAreBounded(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	err := pgx.BeginFunc(t.Context(), h.db.Owner, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SELECT set_config('weir.tenant_id', $1, true)`, h.tenant.ID)
		if err == nil {
			_, err = tx.Exec(t.Context(), `
				UPDATE tenants SET model_limits = (SELECT jsonb_object_agg('m' || n, '{}'::jsonb) FROM generate_series(1, 99) n)`)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := 100; i <= 101; i++ {
		err := h.SetModelLimits(t.Context(), actor, h.tenant.ID, fmt.Sprint("m", i), tenants.Limits{Concurrency: 1})
		if full := i > 100; (err != nil) != full {
			t.Errorf("model %d: %v", i, err)
		}
	}
}
