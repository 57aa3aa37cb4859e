package billing

import (
	"math/big"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir/tenants"
)

// The lines of a bill and its rounding sum to its cost, to the last digit.
func TestABillAddsUpExactly(t *testing.T) {
	t.Parallel()
	usd := func(t *rapid.T, text string) *big.Rat {
		r, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatalf("%q is no number", text)
		}
		return r
	}
	half := big.NewRat(1, 2_000_000_000)
	rapid.Check(t, func(t *rapid.T) {
		p, u, tier := drawPrice(t), drawUsage(t), drawTier(t)
		b, err := p.Explain(u, tier)
		cost, costErr := p.Cost(u, tier)
		if err != nil || costErr != nil {
			if (err == nil) != (costErr == nil) {
				t.Fatalf("explained: %v, rated: %v", err, costErr)
			}
			return
		}
		if b.CostNano != cost.Nano || b.SavedNano != cost.SavedNano {
			t.Fatalf("%+v, want %+v", b, cost)
		}
		sum, tokens := usd(t, b.Rounding), int64(0)
		if new(big.Rat).Abs(sum).Cmp(half) > 0 {
			t.Fatalf("rounding took %s", b.Rounding)
		}
		for _, l := range b.Lines {
			sum.Add(sum, usd(t, l.USD))
			tokens += l.Tokens
			rate := usd(t, l.Rate)
			rate.Mul(rate, usd(t, b.Multiplier)).Mul(rate, big.NewRat(l.Tokens, 1_000_000))
			if rate.Cmp(usd(t, l.USD)) != 0 {
				t.Fatalf("%+v at x%s", l, b.Multiplier)
			}
		}
		if sum.Cmp(big.NewRat(cost.Nano, 1_000_000_000)) != 0 || sum.Cmp(usd(t, b.CostUSD)) != 0 || tokens != u.Total() {
			t.Fatalf("%+v sums to %s", b, sum.FloatString(20))
		}
	})
}

func TestABillSaysWhichRatesHeld(t *testing.T) {
	t.Parallel()
	p := Price{
		Model: "m", Tenant: "ten_a", Version: 12, Tiers: DefaultTiers(), Rates: Rates{1, 1, 1, 1},
		Long: []Step{{1000, Rates{Input: 200_001, CachedInput: 40_000, Output: 600_000, Reasoning: 900_000}}},
	}
	got, err := p.Explain(Usage{InputUncached: 3, InputCached: 997, Output: 2}, tenants.TierPriority)
	if err != nil {
		t.Fatal(err)
	}
	want := Bill{
		PriceVersion: 12, Model: "m", Tenant: "ten_a", MinInput: 1000, Multiplier: "1.75",
		Lines: []BillLine{
			{"input_uncached", 3, "0.200001", "0.00000105000525"},
			{"input_cached", 997, "0.04", "0.000069790"},
			{"output", 2, "0.60", "0.000002100"},
			{"reasoning", 0, "0.90", "0.000000000"},
		},
		Rounding: "-0.00000000000525", CostNano: 72_940, SavedNano: 279_162, CostUSD: "0.000072940", SavedUSD: "0.000279162",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
