package billing

import (
	"errors"
	"maps"
	"math"
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir/tenants"
)

func TestCost(t *testing.T) {
	t.Parallel()
	p := Price{
		Model: "m", Tiers: Tiers{Flex: 5000, Priority: 17_500},
		Input: 100_000, CachedInput: 20_000, Output: 400_000, Reasoning: 800_000,
		Long: []Step{
			{1000, Rates{Input: 200_000, CachedInput: 40_000, Output: 600_000, Reasoning: 900_000}},
			{5000, Rates{Input: 300_000, CachedInput: 60_000, Output: 800_000, Reasoning: 1_000_000}},
		},
	}
	output := func(rate int64) Price { return Price{Model: "m", Output: rate, Tiers: DefaultTiers()} }
	tests := []struct {
		name string
		p    Price
		u    Usage
		tier tenants.Tier
		want Cost
		err  error
	}{
		{"each class at its own rate", p, Usage{100, 100, 100, 100}, "", Cost{132_000, 8_000}, nil},
		{"nothing", p, Usage{}, "", Cost{}, nil},
		{"the default tier by its name", p, Usage{100, 100, 100, 100}, tenants.TierDefault, Cost{132_000, 8_000}, nil},
		{"half the price", p, Usage{100, 100, 100, 100}, tenants.TierFlex, Cost{66_000, 4_000}, nil},
		{"one and three quarters of it", p, Usage{100, 100, 100, 100}, tenants.TierPriority, Cost{231_000, 14_000}, nil},
		{"a tier that isn't sold", p, Usage{1, 0, 0, 0}, tenants.TierBatch, Cost{}, ErrPrice},
		{"a tier that nobody knows", p, Usage{1, 0, 0, 0}, "gold", Cost{}, ErrPrice},
		{"one token short of a long context", p, Usage{999, 0, 1, 0}, "", Cost{100_300, 0}, nil},
		{"a long context from its very threshold, the whole request", p, Usage{1000, 0, 1, 0}, "", Cost{200_600, 0}, nil},
		{"cached tokens make a context long", p, Usage{1, 999, 0, 0}, "", Cost{40_160, 159_840}, nil},
		{"output doesn't", p, Usage{1, 0, 5000, 0}, "", Cost{2_000_100, 0}, nil},
		{"the highest step that is reached", p, Usage{4999, 0, 0, 0}, "", Cost{999_800, 0}, nil},
		{"and beyond", p, Usage{0, 5000, 0, 0}, tenants.TierFlex, Cost{150_000, 600_000}, nil},
		{"just below a half is nothing", output(499), Usage{Output: 1}, "", Cost{}, nil},
		{"a half is rounded up", output(500), Usage{Output: 1}, "", Cost{Nano: 1}, nil},
		{"a half after the multiplier", output(1000), Usage{Output: 1}, tenants.TierFlex, Cost{Nano: 1}, nil},
		{"rounded once, after the multiplier", output(999), Usage{Output: 1}, tenants.TierFlex, Cost{Nano: 0}, nil},
		{"rounded once, not by class", Price{Model: "m", Input: 400, Output: 400}, Usage{InputUncached: 1, Output: 1}, "", Cost{Nano: 1}, nil},
		{"a negative class", p, Usage{Output: -1}, "", Cost{}, ErrUsage},
		{"an impossible class", p, Usage{InputCached: MaxTokens + 1}, "", Cost{}, ErrUsage},
		{"more than 64 bits hold", output(maxRate), Usage{Output: MaxTokens}, "", Cost{}, ErrCost},
		{"more than 64 bits, by the multiplier", output(10_000_000_000), Usage{Output: MaxTokens - 1}, tenants.TierPriority, Cost{}, ErrCost},
		{"an invalid price", output(-1), Usage{Output: 1}, "", Cost{}, ErrPrice},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := tt.p.Cost(tt.u, tt.tier)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %+v, %v, want %+v, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

func drawRates(t *rapid.T) Rates {
	rate := rapid.OneOf(rapid.Int64Range(0, 10_000), rapid.Int64Range(0, 100_000_000), rapid.Int64Range(0, maxRate))
	r := Rates{Input: rate.Draw(t, "input"), Output: rate.Draw(t, "output"), Reasoning: rate.Draw(t, "reasoning")}
	r.CachedInput = rapid.Int64Range(0, r.Input).Draw(t, "cached")
	return r
}

func drawPrice(t *rapid.T) Price {
	bp := rapid.OneOf(rapid.Int64Range(1, 20_000), rapid.Int64Range(0, maxTier))
	p := Price{
		Model: "m", Rates: drawRates(t),
		Tiers: Tiers{bp.Draw(t, "flex"), bp.Draw(t, "priority"), bp.Draw(t, "batch"), bp.Draw(t, "background")},
	}
	from := int64(0)
	for range rapid.IntRange(0, 3).Draw(t, "steps") {
		from += rapid.Int64Range(1, 500_000).Draw(t, "min_input")
		p.Long = append(p.Long, Step{from, drawRates(t)})
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return p
}

func drawUsage(t *rapid.T) Usage {
	n := rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, 1_000_000), rapid.Int64Range(0, MaxTokens))
	return Usage{n.Draw(t, "uncached"), n.Draw(t, "cached"), n.Draw(t, "output"), n.Draw(t, "reasoning")}
}

func drawTier(t *rapid.T) tenants.Tier {
	return rapid.SampledFrom([]tenants.Tier{
		"", tenants.TierDefault, tenants.TierFlex, tenants.TierPriority, tenants.TierBatch, tenants.TierBackground,
	}).Draw(t, "tier")
}

// exactCost is the cost by arithmetic without bounds, rounded half up.
func exactCost(p *Price, u Usage, tier tenants.Tier) *big.Int {
	r := p.Rates
	for _, s := range p.Long {
		if u.InputCached+u.InputUncached >= s.MinInput {
			r = s.Rates
		}
	}
	sum := new(big.Rat)
	for _, c := range [][2]int64{
		{u.InputUncached, r.Input},
		{u.InputCached, r.CachedInput},
		{u.Output, r.Output},
		{u.Reasoning, r.Reasoning},
	} {
		sum.Add(sum, new(big.Rat).Mul(big.NewRat(c[0], 1), big.NewRat(c[1], 1000)))
	}
	sum.Mul(sum, big.NewRat(p.Tiers.BasisPoints(tier), 10_000))
	sum.Add(sum, big.NewRat(1, 2))
	return new(big.Int).Div(sum.Num(), sum.Denom()) // Euclidean: the floor
}

func TestCostIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, u, tier := drawPrice(t), drawUsage(t), drawTier(t)
		got, err := p.Cost(u, tier)
		want := exactCost(&p, u, tier)
		uncached := exactCost(&p, Usage{u.Input(), 0, u.Output, u.Reasoning}, tier)
		switch {
		case !p.Sells(tier):
			if !errors.Is(err, ErrPrice) {
				t.Fatalf("a tier that isn't sold: %+v, %v", got, err)
			}
		case !uncached.IsInt64():
			if !errors.Is(err, ErrCost) {
				t.Fatalf("got %+v, %v, want ErrCost for %v", got, err, uncached)
			}
		case err != nil || got.Nano != want.Int64() || got.Nano+got.SavedNano != uncached.Int64():
			t.Fatalf("got %+v, %v, want %v of %v", got, err, want, uncached)
		}
	})
}

// A million small receipts sum to what each of them costs, to the last nano.
// They are small enough for sums in 64 bits, which every hundredth is checked
// against arithmetic without bounds.
func TestManySmallCostsHaveNoError(t *testing.T) {
	t.Parallel()
	short := Rates{Input: 103_337, CachedInput: 20_771, Output: 401_123, Reasoning: 401_129}
	long := Rates{Input: 203_337, CachedInput: 40_771, Output: 501_123, Reasoning: 501_129}
	p := Price{Model: "m", Tiers: DefaultTiers(), Rates: short, Long: []Step{{700, long}}}
	tiers := map[tenants.Tier]int64{tenants.TierDefault: 10_000, tenants.TierFlex: 5000, tenants.TierPriority: 17_500, "": 10_000}
	names := slices.Sorted(maps.Keys(tiers))
	const n = 1_000_000
	var sum, want int64
	for i := range int64(n) {
		u, tier, r := Usage{i % 701, i % 97, i % 13, i % 5}, names[i%4], short
		if u.Input() >= 700 {
			r = long
		}
		c, err := p.Cost(u, tier)
		if err != nil {
			t.Fatal(err)
		}
		tenThousandths := (u.InputUncached*r.Input + u.InputCached*r.CachedInput + u.Output*r.Output + u.Reasoning*r.Reasoning) * tiers[tier]
		exact := (tenThousandths + 5_000_000) / 10_000_000
		if i%100 == 0 && exactCost(&p, u, tier).Int64() != exact {
			t.Fatalf("%+v at %q: %d, want %v", u, tier, exact, exactCost(&p, u, tier))
		}
		sum, want = sum+c.Nano, want+exact
	}
	if sum != want || sum == 0 {
		t.Errorf("%d receipts sum to %d, want %d", n, sum, want)
	}
}

// What is used more never costs less within a step, and caching never costs more.
func TestCostIsMonotone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, u, tier := drawPrice(t), drawUsage(t), drawTier(t)
		cost, err := p.Cost(u, tier)
		if err != nil {
			t.Skip("too large, or not sold")
		}
		if cost.Nano < 0 || cost.SavedNano < 0 {
			t.Fatalf("%+v costs %+v", u, cost)
		}
		more := u
		more.Output += rapid.Int64Range(0, MaxTokens-u.Output).Draw(t, "more")
		if dearer, err := p.Cost(more, tier); err == nil && dearer.Nano < cost.Nano {
			t.Fatalf("%+v costs %+v, %+v only %+v", u, cost, more, dearer)
		}
	})
}

// A hold covers the bill: whatever a request uses within its bounds, it costs
// no more than what was set aside for them.
func TestMostIsAnUpperBound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, u, tier := drawPrice(t), drawUsage(t), drawTier(t)
		cost, err := p.Cost(u, tier)
		input := u.Input() + rapid.Int64Range(0, 1_000_000).Draw(t, "input to spare")
		output := u.Output + u.Reasoning + rapid.Int64Range(0, 1_000_000).Draw(t, "output to spare")
		most := p.Most(input, output, tier)
		if err != nil {
			if most != math.MaxInt64 && !p.Sells(tier) {
				t.Fatalf("%d for a tier that isn't sold", most)
			}
			return
		}
		if cost.Nano > most {
			t.Fatalf("%+v costs %d, above the %d of %d input and %d output tokens", u, cost.Nano, most, input, output)
		}
	})
	p := Price{Model: "m", Input: 100_000, CachedInput: 20_000, Output: 400_000, Reasoning: 500_000, Tiers: Tiers{Priority: 20_000}}
	if got := p.Most(100, 10, tenants.TierPriority); got != 30_000 {
		t.Errorf("Most is %d, want no more than the dearest classes: 30000", got)
	}
	p.Long = []Step{{100, Rates{Input: 50_000, Output: 100_000}}} // cheaper: the shorter request bounds
	if got := p.Most(100, 10, ""); got != 15_000 {
		t.Errorf("Most is %d, want that of the step below: 15000", got)
	}
}

func TestAPriceThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	steps := func(from ...int64) (all []Step) {
		for _, n := range from {
			all = append(all, Step{MinInput: n})
		}
		return all
	}
	for name, p := range map[string]Price{
		"a step from nothing on":          {Model: "m", Long: steps(0)},
		"two steps from the same on":      {Model: "m", Long: steps(5, 5)},
		"steps that fall":                 {Model: "m", Long: steps(6, 5)},
		"more steps than anybody needs":   {Model: "m", Long: steps(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)},
		"a step with a rate beyond all":   {Model: "m", Long: []Step{{5, Rates{Output: maxRate + 1}}}},
		"a step with a dearer cache":      {Model: "m", Long: []Step{{5, Rates{CachedInput: 1}}}},
		"a negative multiplier":           {Model: "m", Tiers: Tiers{Batch: -1}},
		"a multiplier above a hundred":    {Model: "m", Tiers: Tiers{Priority: maxTier + 1}},
		"the list giving way to the list": {Model: "m", Lapsed: true},
		"no model":                        {},
	} {
		if err := p.Validate(); !errors.Is(err, ErrPrice) {
			t.Errorf("%s: %v, want ErrPrice", name, err)
		}
	}
}

func BenchmarkRateAndCost(b *testing.B) {
	prices := make([]Price, 0, 200)
	for i := range 200 {
		prices = append(prices, Price{
			Model: "org/chat-8b", Version: int64(i + 1), EffectiveFrom: day(1).AddDate(0, 0, i), Tiers: DefaultTiers(),
			Input: 100_000, CachedInput: 20_000, Output: 400_000, Reasoning: 400_000,
			Long: []Step{{200_000, Rates{Input: 200_000, CachedInput: 40_000, Output: 600_000, Reasoning: 600_000}}},
		})
	}
	book, at := NewBook(prices), day(100)
	b.ReportAllocs()
	for b.Loop() {
		p, ok := book.Rate("org/chat-8b", "ten_a", at)
		c, err := p.Cost(Usage{1000, 500, 200, 50}, tenants.TierFlex)
		if !ok || err != nil || c.Nano == 0 {
			b.Fatal(c, err)
		}
	}
}
