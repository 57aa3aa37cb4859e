package gateway_test

import (
	"testing"
	"time"

	"weir/billing"
	"weir/gateway"
	"weir/tenants"
)

// TestWhatIsServedIsWhatIsBilled: a request is rated at the tier that it was
// served at, never at one that its plan or its model's price doesn't sell, and
// at its own tenant's price of the moment when it came.
func TestWhatIsServedIsWhatIsBilled(t *testing.T) {
	t.Parallel()
	const list = 7*1000 + 4*500 + 3*2000 + 2*3000 // nano-USD, of usageEvent
	now := time.Now()
	rates := billing.Rates{Input: 1_000_000, CachedInput: 500_000, Output: 2_000_000, Reasoning: 3_000_000}
	thrice := billing.Rates{Input: 3_000_000, CachedInput: 1_500_000, Output: 6_000_000, Reasoning: 9_000_000}
	book := func(t billing.Tiers) *billing.Book {
		return billing.NewBook([]billing.Price{
			{Model: "pub", Version: 7, Rates: rates, Tiers: t},
			{Model: "pub", Version: 8, Rates: thrice, Tiers: t, Tenant: "ten_dear"},
			{Model: "pub", Version: 9, Rates: thrice, Tiers: t, EffectiveFrom: now.Add(time.Hour)},
		})
	}
	tests := []struct {
		name    string
		tiers   billing.Tiers
		tier    tenants.Tier
		tenant  tenants.ID
		served  tenants.Tier
		version int64
		cost    int64
		saved   int64
	}{
		{"the default tier", billing.DefaultTiers(), "", "ten_a", "default", 7, list, 2000},
		{"priority costs more", billing.DefaultTiers(), "priority", "ten_a", "priority", 7, list * 7 / 4, 3500},
		{"a tier that the plan lacks", billing.DefaultTiers(), "flex", "ten_a", "default", 7, list, 2000},
		{"a tier that the price lacks", billing.Tiers{Flex: 5000}, "priority", "ten_a", "default", 7, list, 2000},
		{"a tenant's own price", billing.DefaultTiers(), "priority", "ten_dear", "priority", 8, 3 * list * 7 / 4, 3 * 3500},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := serve(t, events(chunk("a", 1), usageEvent, doneEvent))
			h := build(t, []string{e.URL}, func(h *house) {
				h.snapshot.Prices = book(tt.tiers)
				pool, _ := h.snapshot.Pool(poolName)
				pool.Tenants = []string{string(tt.tenant)}
			})
			to := &caller{}
			err := h.Run(t.Context(), h.call(func(c *gateway.Call) {
				c.Stream, c.Tier, c.Principal.Tenant = true, tt.tier, tt.tenant
				c.ReceivedAt = now
			}), to)
			if err != nil {
				t.Fatal(err)
			}
			r := h.ledger.all()[0]
			if r.Tier != string(tt.served) || to.head.Tier != tt.served || r.PriceVersion != tt.version ||
				r.CostNano != tt.cost || r.SavedNano != tt.saved {
				t.Errorf("served at %q, told %q, version %d, cost %d, saved %d, want %+v", r.Tier, to.head.Tier, r.PriceVersion, r.CostNano, r.SavedNano, tt)
			}
		})
	}
}
