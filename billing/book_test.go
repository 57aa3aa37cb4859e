package billing

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/tenants"
)

func day(d int) time.Time { return time.Date(2026, 11, d, 0, 0, 0, 0, time.UTC) }

func TestTheBookGivesThePriceOfTheMoment(t *testing.T) {
	t.Parallel()
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
			p, ok := book.Rate(tt.model, "", tt.at)
			if p.Version != tt.want || ok != (tt.want != 0) {
				t.Errorf("got version %d, %v, want %d", p.Version, ok, tt.want)
			}
		})
	}
	if _, ok := (*Book)(nil).Rate("m", "", day(20)); ok {
		t.Error("a nil book has a price")
	}
}

func TestATenantsOwnPriceGoesBeforeTheLists(t *testing.T) {
	t.Parallel()
	book := NewBook([]Price{
		{Model: "m", Version: 1, EffectiveFrom: day(1)},
		{Model: "m", Version: 2, EffectiveFrom: day(8), Tenant: "ten_a"},
		{Model: "m", Version: 3, EffectiveFrom: day(12)},
		{Model: "m", Version: 4, EffectiveFrom: day(16), Tenant: "ten_a", Lapsed: true},
		{Model: "m", Version: 5, EffectiveFrom: day(20), Tenant: "ten_a"},
		{Model: "own", Version: 6, EffectiveFrom: day(1), Tenant: "ten_a"},
	})
	tests := []struct {
		name, model string
		tenant      tenants.ID
		at          time.Time
		want        int64
	}{
		{"before it has one of its own", "m", "ten_a", day(8).Add(-1), 1},
		{"from the very moment", "m", "ten_a", day(8), 2},
		{"a newer list price doesn't end it", "m", "ten_a", day(12), 2},
		{"until it lapses", "m", "ten_a", day(16).Add(-1), 2},
		{"the list's again", "m", "ten_a", day(16), 3},
		{"and once more its own", "m", "ten_a", day(20), 5},
		{"another tenant pays the list's", "m", "ten_b", day(20), 3},
		{"nobody's in particular", "m", "", day(20), 3},
		{"a model that is sold to one alone", "own", "ten_a", day(2), 6},
		{"and to nobody else", "own", "ten_b", day(2), 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, ok := book.Rate(tt.model, tt.tenant, tt.at)
			if p.Version != tt.want || ok != (tt.want != 0) {
				t.Errorf("got version %d, %v, want %d", p.Version, ok, tt.want)
			}
		})
	}
	if p, ok := book.Version(2); !ok || p.Tenant != "ten_a" {
		t.Errorf("version 2 is %+v, %v", p, ok)
	}
	if _, ok := book.Version(7); ok {
		t.Error("there is a version that nobody published")
	}
}

func TestPricesAreNeverEdited(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	past, published, future := now.AddDate(0, -2, 0), now.AddDate(0, -1, 0), now.AddDate(0, 1, 0)
	book := NewBook([]Price{
		{Model: "m", Version: 1, EffectiveFrom: published, Tiers: DefaultTiers(), Input: 100_000, CachedInput: 100_000, Output: 400_000, Reasoning: 400_000},
		{Model: "m", Version: 2, EffectiveFrom: future, Tiers: DefaultTiers(), Input: 50_000, CachedInput: 50_000, Output: 200_000, Reasoning: 200_000},
	})
	book = book.With([]Price{{
		Model: "old", Version: 3, EffectiveFrom: published, Tiers: Tiers{wholeTier, wholeTier, wholeTier, wholeTier},
		Input: 1_000_000, CachedInput: 1_000_000, Output: 2_000_000, Reasoning: 2_000_000,
	}})
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
		{"a published version from before there were tiers", []PriceSpec{spec("old", "1", "2", &published)}, nil, nil},
		{"the same, from now on", []PriceSpec{spec("old", "1", "2", nil)}, []time.Time{now}, nil},
		{"a published version, changed", []PriceSpec{spec("m", "0.05", "0.3", &future)}, nil, ErrPrice},
		{"the past of a priced model", []PriceSpec{spec("m", "0.1", "0.5", &past)}, nil, ErrPrice},
		{"the past of a new model", []PriceSpec{spec("new", "0.1", "0.5", &past)}, []time.Time{past}, nil},
		{"two prices at once", []PriceSpec{spec("new", "1", "1", nil), spec("new", "2", "2", nil)}, nil, ErrPrice},
		{"an invalid one", []PriceSpec{spec("new", "1", "", nil)}, nil, ErrPrice},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			fresh, err := book.changes("", tt.specs, now)
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

func TestATenantsFirstPriceMayBeBackdatedOnPurpose(t *testing.T) {
	t.Parallel()
	now := day(20)
	book := NewBook([]Price{
		{Model: "m", Version: 1, EffectiveFrom: day(1), Tiers: DefaultTiers()},
		{Model: "m", Version: 2, EffectiveFrom: day(5), Tiers: DefaultTiers(), Tenant: "ten_b"},
	})
	spec := func(backdated bool) []PriceSpec {
		return []PriceSpec{{Model: "m", Input: "1", Output: "1", EffectiveFrom: new(day(10)), Backdated: backdated}}
	}
	for _, tt := range []struct {
		name      string
		tenant    tenants.ID
		backdated bool
		want      error
	}{
		{"its first, and it is said", "ten_a", true, nil},
		{"its first, and it isn't said", "ten_a", false, ErrPrice},
		{"not its first", "ten_b", true, ErrPrice},
		{"the list's", "", true, ErrPrice},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := book.Changes(tt.tenant, spec(tt.backdated), now)
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, %v, want %v", got, err, tt.want)
			}
			if err == nil && (len(got) != 1 || got[0].Before == nil || got[0].Before.Version != 1) {
				t.Errorf("got %+v, want one in place of the list's", got)
			}
		})
	}
	again, err := book.Changes("ten_a", []PriceSpec{{Model: "m", ListPrice: true}}, now)
	if err != nil || len(again) > 0 {
		t.Errorf("the list's price for who pays it already: %v, %v", again, err)
	}
}
