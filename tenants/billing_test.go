package tenants_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/tenants"
)

// A key is paid from its tenant's wallet, and from those of its project and of
// itself where they have one. Replicas hear of a change at once.
func TestAKeyKnowsHowItIsPaidFor(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	secret, key := h.key(t, h.spec())
	k := run(t, h.keys(t, tenants.KeysConfig{TTL: time.Hour}))
	tenant, project := string(h.tenant.ID), string(h.project.ID)
	eventually(t, 10*time.Second, "listening", k.Listening)
	for _, step := range []struct {
		name, sql string
		args      []any
		want      tenants.Billing
	}{
		{"no cap", `SELECT weir_set_credit_limit($1, 5)`, []any{tenant}, tenants.Billing{Nodes: []string{tenant}}},
		{"its own cap", `SELECT weir_allot($1, $2, 'key', 5, NULL)`, []any{tenant, string(key.ID)}, tenants.Billing{Nodes: []string{tenant, string(key.ID)}}},
		{
			"its project's, too", `SELECT weir_allot($1, $2, 'project', 5, NULL)`,
			[]any{tenant, project},
			tenants.Billing{Nodes: []string{tenant, project, string(key.ID)}},
		},
		{"another's cap", `SELECT weir_allot($1, 'key_other', 'key', 5, NULL)`, []any{tenant}, tenants.Billing{Nodes: []string{tenant, project, string(key.ID)}}},
		{"lifted", `SELECT weir_lift_cap($1, $2)`, []any{tenant, project}, tenants.Billing{Nodes: []string{tenant, string(key.ID)}}},
	} {
		if _, err := h.db.Worker.Exec(t.Context(), step.sql, step.args...); err != nil {
			t.Fatal(err)
		}
		eventually(t, 10*time.Second, step.name, func() bool { return cmp.Equal(mustAuth(t, k, secret).Billing, step.want) })
	}
	h.app(t, `UPDATE tenants SET billing_mode = 'enforce'`)
	eventually(t, 10*time.Second, "the mode", func() bool { return mustAuth(t, k, secret).Billing.Mode == "enforce" })
}
