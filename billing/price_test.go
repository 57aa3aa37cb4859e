package billing

import (
	"errors"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"
)

func TestUSDIsReadExactly(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text string
		want       int64
	}{
		{"cents", "0.10", 100_000},
		{"a whole dollar", "1", 1_000_000},
		{"six decimals", "0.000001", 1},
		{"nothing", "0", 0},
		{"trailing zeros", "2.500000", 2_500_000},
		{"leading zeros", "007.5", 7_500_000},
		{"the largest", "1000000000", maxRate},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := ParseUSD(tt.text)
			if err != nil || got != tt.want {
				t.Errorf("got %d, %v, want %d", got, err, tt.want)
			}
		})
	}
}

func TestWhatIsNoPlainDecimalIsNoPrice(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", ".", "1.", ".5", "-1", "+1", "1e3", "0x1", " 1", "1 ", "1,5", "0.1234567", "$1", "NaN", "Inf", "1.2.3",
		"٣", "99999999999999999999", "1_000",
	} {
		if got, err := ParseUSD(text); !errors.Is(err, ErrPrice) {
			t.Errorf("%q: got %d, %v, want ErrPrice", text, got, err)
		}
	}
}

func TestFormattedUSDReadsBackTheSame(t *testing.T) {
	t.Parallel()
	for pico, want := range map[int64]string{0: "0.00", 1: "0.000001", 100_000: "0.10", 2_500_000: "2.50", 1_234_567: "1.234567", maxRate: "1000000000.00"} {
		if got := FormatUSD(pico); got != want {
			t.Errorf("FormatUSD(%d) = %q, want %q", pico, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		pico := rapid.Int64Range(0, maxRate).Draw(t, "pico")
		got, err := ParseUSD(FormatUSD(pico))
		if err != nil || got != pico {
			t.Fatalf("%d became %q and then %d, %v", pico, FormatUSD(pico), got, err)
		}
	})
}

func TestASpecIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	tests := []struct {
		name, yaml string
		want       Price
	}{
		{
			"every rate", `{model: m, input: "0.10", cached_input: "0.02", output: "0.40", reasoning: "0.50"}`,
			Price{Model: "m", Input: 100_000, CachedInput: 20_000, Output: 400_000, Reasoning: 500_000},
		},
		{
			"cached input costs as input, reasoning as output", `{model: m, input: "0.10", output: "0.40"}`,
			Price{Model: "m", Input: 100_000, CachedInput: 100_000, Output: 400_000, Reasoning: 400_000},
		},
		{
			"a number without quotes is no float", `{model: m, input: 0.10, output: 0.30}`,
			Price{Model: "m", Input: 100_000, CachedInput: 100_000, Output: 300_000, Reasoning: 300_000},
		},
		{
			"a time", `{model: m, input: "1", output: "0", effective_from: 2026-12-01T01:00:00+01:00}`,
			Price{Model: "m", Input: 1_000_000, CachedInput: 1_000_000, EffectiveFrom: from},
		},
		{"free", `{model: m, input: "0", output: "0"}`, Price{Model: "m"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var spec PriceSpec
			if err := yaml.Unmarshal([]byte(tt.yaml), &spec); err != nil {
				t.Fatal(err)
			}
			got, err := spec.Price()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			again, err := got.Spec().Price()
			if diff := cmp.Diff(got, again); diff != "" || err != nil {
				t.Errorf("round trip: %v\n%s", err, diff)
			}
		})
	}
}

func TestASpecThatCannotBePublishedIsRefused(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]PriceSpec{
		"no model":                         {Input: "1", Output: "1"},
		"no input":                         {Model: "m", Output: "1"},
		"no output":                        {Model: "m", Input: "1"},
		"cached input dearer than input":   {Model: "m", Input: "1", CachedInput: "1.000001", Output: "1"},
		"a negative rate":                  {Model: "m", Input: "1", Output: "-1"},
		"seven decimals":                   {Model: "m", Input: "1", Output: "1", Reasoning: "0.0000001"},
		"a price beyond reason":            {Model: "m", Input: "1", Output: "1000000001"},
		"rubbish":                          {Model: "m", Input: "cheap", Output: "1"},
		"cached input that is not written": {Model: "m", Input: "1", CachedInput: ".", Output: "1"},
	} {
		if p, err := spec.Price(); !errors.Is(err, ErrPrice) {
			t.Errorf("%s: got %+v, %v, want ErrPrice", name, p, err)
		}
	}
}

func TestCost(t *testing.T) {
	t.Parallel()
	p := Price{Model: "m", Input: 100_000, CachedInput: 20_000, Output: 400_000, Reasoning: 800_000}
	tests := []struct {
		name string
		p    Price
		u    Usage
		want int64
		err  error
	}{
		{"each class at its own rate", p, Usage{1000, 1000, 1000, 1000}, 1_320_000, nil},
		{"nothing", p, Usage{}, 0, nil},
		{"just below a half is nothing", Price{Model: "m", Output: 499}, Usage{Output: 1}, 0, nil},
		{"a half is rounded up", Price{Model: "m", Output: 500}, Usage{Output: 1}, 1, nil},
		{"rounded once, not by class", Price{Model: "m", Input: 400, Output: 400}, Usage{InputUncached: 1, Output: 1}, 1, nil},
		{"a negative class", p, Usage{Output: -1}, 0, ErrUsage},
		{"an impossible class", p, Usage{InputCached: MaxTokens + 1}, 0, ErrUsage},
		{"more than 64 bits hold", Price{Model: "m", Output: maxRate}, Usage{Output: MaxTokens}, 0, ErrCost},
		{"an invalid price", Price{Model: "m", Output: -1}, Usage{Output: 1}, 0, ErrPrice},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := tt.p.Cost(tt.u)
			if got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("got %d, %v, want %d, %v", got, err, tt.want, tt.err)
			}
		})
	}
}

func drawPrice(t *rapid.T) Price {
	rate := rapid.OneOf(rapid.Int64Range(0, 10_000), rapid.Int64Range(0, 100_000_000), rapid.Int64Range(0, maxRate))
	p := Price{Model: "m", Input: rate.Draw(t, "input"), Output: rate.Draw(t, "output"), Reasoning: rate.Draw(t, "reasoning")}
	p.CachedInput = rapid.Int64Range(0, p.Input).Draw(t, "cached")
	return p
}

func drawUsage(t *rapid.T) Usage {
	n := rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, 1_000_000), rapid.Int64Range(0, MaxTokens))
	return Usage{n.Draw(t, "uncached"), n.Draw(t, "cached"), n.Draw(t, "output"), n.Draw(t, "reasoning")}
}

// The cost is what arithmetic without bounds gives, rounded half up.
func TestCostIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, u := drawPrice(t), drawUsage(t)
		sum := new(big.Int)
		for _, c := range [][2]int64{
			{u.InputUncached, p.Input},
			{u.InputCached, p.CachedInput},
			{u.Output, p.Output},
			{u.Reasoning, p.Reasoning},
		} {
			sum.Add(sum, new(big.Int).Mul(big.NewInt(c[0]), big.NewInt(c[1])))
		}
		want := sum.Add(sum, big.NewInt(500)).Div(sum, big.NewInt(1000))
		got, err := p.Cost(u)
		switch {
		case !want.IsInt64():
			if !errors.Is(err, ErrCost) {
				t.Fatalf("got %d, %v, want ErrCost for %v", got, err, want)
			}
		case err != nil || got != want.Int64():
			t.Fatalf("got %d, %v, want %v", got, err, want)
		}
	})
}

// What is used more never costs less, and caching never costs more.
func TestCostIsMonotone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, u := drawPrice(t), drawUsage(t)
		cost, err := p.Cost(u)
		if err != nil {
			t.Skip("too large")
		}
		more := u
		more.Output += rapid.Int64Range(0, MaxTokens-u.Output).Draw(t, "more")
		if dearer, err := p.Cost(more); err == nil && dearer < cost {
			t.Fatalf("%+v costs %d, %+v only %d", u, cost, more, dearer)
		}
		cached := Usage{0, 0, u.Output, u.Reasoning}
		cached.InputCached = min(u.InputCached+u.InputUncached, MaxTokens)
		if cheaper, err := p.Cost(cached); err == nil && cheaper > cost {
			t.Fatalf("%+v costs %d, cached %d", u, cost, cheaper)
		}
	})
}

func TestTheBookGivesThePriceOfTheMoment(t *testing.T) {
	t.Parallel()
	day := func(d int) time.Time { return time.Date(2026, 11, d, 0, 0, 0, 0, time.UTC) }
	book := NewBook([]Price{
		{Model: "m", Version: 3, EffectiveFrom: day(20)},
		{Model: "m", Version: 1, EffectiveFrom: day(5)},
		{Model: "other", Version: 2, EffectiveFrom: day(1)},
	})
	tests := []struct {
		name, model string
		at          time.Time
		want        int64 // 0: none
	}{
		{"before the first there is none", "m", day(5).Add(-1), 0},
		{"at the very moment it is in effect", "m", day(5), 1},
		{"until the next one", "m", day(20).Add(-1), 1},
		{"from the next one", "m", day(20), 3},
		{"for ever after", "m", day(30).AddDate(100, 0, 0), 3},
		{"a model that nobody priced has none", "new", day(20), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, ok := book.Rate(tt.model, tt.at)
			if p.Version != tt.want || ok != (tt.want != 0) {
				t.Errorf("got version %d, %v, want %d", p.Version, ok, tt.want)
			}
		})
	}
	if _, ok := (*Book)(nil).Rate("m", day(20)); ok {
		t.Error("a nil book has a price")
	}
}

func TestDisjointClassesSumToTheTotals(t *testing.T) {
	t.Parallel()
	n := func(v int64) *int64 { return &v }
	tests := []struct {
		name  string
		in    Totals
		want  Usage
		sound bool
	}{
		{"all four", Totals{n(100), n(60), n(50), n(20)}, Usage{40, 60, 30, 20}, true},
		{"absent parts are zero", Totals{Prompt: n(100), Completion: n(50)}, Usage{InputUncached: 100, Output: 50}, true},
		{"embeddings have no completion", Totals{Prompt: n(100)}, Usage{InputUncached: 100}, true},
		{"zero is a count", Totals{Prompt: n(0), Completion: n(0)}, Usage{}, true},
		{"all cached, all reasoning", Totals{n(5), n(5), n(7), n(7)}, Usage{InputCached: 5, Reasoning: 7}, true},
		{"nothing reported", Totals{}, Usage{}, false},
		{"no prompt", Totals{Completion: n(9)}, Usage{Output: 9}, false},
		{"more cached than prompt", Totals{n(10), n(11), n(1), nil}, Usage{InputCached: 10, Output: 1}, false},
		{"more reasoning than completion", Totals{n(10), nil, n(5), n(6)}, Usage{InputUncached: 10, Reasoning: 5}, false},
		{"a negative completion", Totals{n(10), nil, n(-1_000_000), nil}, Usage{InputUncached: 10}, false},
		{"a negative part", Totals{n(10), n(-3), n(1), nil}, Usage{InputUncached: 10, Output: 1}, false},
		{"beyond reason", Totals{Prompt: n(1 << 62)}, Usage{InputUncached: MaxTokens}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, sound := tt.in.Split()
			if got != tt.want || sound != tt.sound {
				t.Errorf("got %+v, %v, want %+v, %v", got, sound, tt.want, tt.sound)
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.Ptr(rapid.OneOf(rapid.Int64Range(-5, 100), rapid.Int64()), true)
		in := Totals{count.Draw(t, "prompt"), count.Draw(t, "cached"), count.Draw(t, "completion"), count.Draw(t, "reasoning")}
		u, sound := in.Split()
		if err := u.Validate(); err != nil {
			t.Fatal(err)
		}
		sum := *in.prompt()
		if in.Completion != nil {
			sum += *in.Completion
		}
		if sound && u.Total() != sum {
			t.Fatalf("%+v sums to %d, want %d", u, u.Total(), sum)
		}
	})
}

func (t Totals) prompt() *int64 {
	if t.Prompt == nil {
		return new(int64)
	}
	return t.Prompt
}

func TestPricesAreNeverEdited(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	past, published, future := now.AddDate(0, -2, 0), now.AddDate(0, -1, 0), now.AddDate(0, 1, 0)
	book := NewBook([]Price{
		{Model: "m", Version: 1, EffectiveFrom: published, Input: 100_000, CachedInput: 100_000, Output: 400_000, Reasoning: 400_000},
		{Model: "m", Version: 2, EffectiveFrom: future, Input: 50_000, CachedInput: 50_000, Output: 200_000, Reasoning: 200_000},
	})
	spec := func(model, input, output string, from *time.Time) PriceSpec {
		return PriceSpec{Model: model, Input: input, Output: output, EffectiveFrom: from}
	}
	tests := []struct {
		name  string
		specs []PriceSpec
		want  []time.Time // when new versions take effect
		err   error
	}{
		{"what is in effect is no change", []PriceSpec{spec("m", "0.1", "0.4", nil)}, nil, nil},
		{"what differs is in effect from now", []PriceSpec{spec("m", "0.1", "0.5", nil)}, []time.Time{now}, nil},
		{"a time to come", []PriceSpec{spec("m", "0.1", "0.5", new(now.Add(time.Hour)))}, []time.Time{now.Add(time.Hour)}, nil},
		{"a published version, again", []PriceSpec{spec("m", "0.1", "0.4", &published), spec("m", "0.05", "0.2", &future)}, nil, nil},
		{"a published version, changed", []PriceSpec{spec("m", "0.05", "0.3", &future)}, nil, ErrPrice},
		{"the past of a priced model", []PriceSpec{spec("m", "0.1", "0.5", &past)}, nil, ErrPrice},
		{"the past of a new model", []PriceSpec{spec("new", "0.1", "0.5", &past)}, []time.Time{past}, nil},
		{"two prices at once", []PriceSpec{spec("new", "1", "1", nil), spec("new", "2", "2", nil)}, nil, ErrPrice},
		{"an invalid one", []PriceSpec{spec("new", "1", "", nil)}, nil, ErrPrice},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			fresh, err := book.changes(tt.specs, now)
			if !errors.Is(err, tt.err) {
				t.Fatalf("got %v, want %v", err, tt.err)
			}
			var got []time.Time
			for _, p := range fresh {
				got = append(got, p.EffectiveFrom)
			}
			if !slices.EqualFunc(tt.want, got, time.Time.Equal) {
				t.Errorf("new versions from %v, want %v", got, tt.want)
			}
		})
	}
}

func TestSinceListsWhatWasPublishedMeanwhile(t *testing.T) {
	t.Parallel()
	day := func(d int) time.Time { return time.Date(2026, 11, d, 0, 0, 0, 0, time.UTC) }
	old := []Price{{Model: "a", Version: 1, EffectiveFrom: day(1)}}
	fresh := []Price{{Model: "a", Version: 3, EffectiveFrom: day(2)}, {Model: "b", Version: 2, EffectiveFrom: day(1)}}
	before, after := NewBook(old), NewBook(slices.Concat(fresh, old))
	if diff := cmp.Diff(fresh, after.Since(before)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := after.Since(nil); len(got) != 3 {
		t.Errorf("since nothing: %+v", got)
	}
	if got := after.Since(after); len(got) != 0 {
		t.Errorf("since itself: %+v", got)
	}
}
