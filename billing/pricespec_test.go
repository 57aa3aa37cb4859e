package billing

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"weir/tenants"
)

func TestASpecIsReadAsItIsWritten(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	tiers := DefaultTiers()
	tests := []struct {
		name, yaml string
		want       Price
	}{
		{
			"every rate", `{model: m, input: "0.10", cached_input: "0.02", output: "0.40", reasoning: "0.50"}`,
			Price{Model: "m", Tiers: tiers, Input: 100_000, CachedInput: 20_000, Output: 400_000, Reasoning: 500_000},
		},
		{
			"cached input costs as input, reasoning as output", `{model: m, input: "0.10", output: "0.40"}`,
			Price{Model: "m", Tiers: tiers, Input: 100_000, CachedInput: 100_000, Output: 400_000, Reasoning: 400_000},
		},
		{
			"a number without quotes is no float", `{model: m, input: 0.10, output: 0.30, tiers: {priority: 1.1}}`,
			Price{
				Model: "m", Input: 100_000, CachedInput: 100_000, Output: 300_000, Reasoning: 300_000,
				Tiers: Tiers{Flex: 5000, Priority: 11_000, Batch: 5000, Background: 10_000},
			},
		},
		{
			"a time", `{model: m, input: "1", output: "0", effective_from: 2026-12-01T01:00:00+01:00}`,
			Price{Model: "m", Tiers: tiers, Input: 1_000_000, CachedInput: 1_000_000, EffectiveFrom: from},
		},
		{"zeros", `{model: m, input: "0", output: "0"}`, Price{Model: "m", Tiers: tiers}},
		{"free", `{model: m, free: true}`, Price{Model: "m", Tiers: tiers}},
		{"the list's price again", `{model: m, list_price: true}`, Price{Model: "m", Lapsed: true}},
		{
			"tiers that are not sold, and one that costs the same", `{model: m, free: true, tiers: {flex: none, batch: none, background: "1", priority: "2.0001"}}`,
			Price{Model: "m", Tiers: Tiers{Priority: 20_001, Background: 10_000}},
		},
		{
			"long contexts", `{model: m, input: "1", output: "2", long_context: [
				{min_input_tokens: 128000, input: "2", cached_input: "1", output: "3"},
				{min_input_tokens: 200001, input: "4", output: "6", reasoning: "7"}]}`,
			Price{
				Model: "m", Tiers: tiers, Rates: Rates{1_000_000, 1_000_000, 2_000_000, 2_000_000},
				Long: []Step{{128_000, Rates{2_000_000, 1_000_000, 3_000_000, 3_000_000}}, {200_001, Rates{4_000_000, 4_000_000, 6_000_000, 7_000_000}}},
			},
		},
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
			text, err := yaml.Marshal(got.Spec())
			if err != nil {
				t.Fatal(err)
			}
			var written PriceSpec
			if err := yaml.Unmarshal(text, &written); err != nil {
				t.Fatal(err)
			}
			again, err := written.Price()
			if diff := cmp.Diff(got, again); diff != "" || err != nil {
				t.Errorf("round trip: %v\n%s", err, diff)
			}
		})
	}
}

func TestASpecThatCannotBePublishedIsRefused(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]PriceSpec{
		"no model":                         {RateSpec: RateSpec{Input: "1", Output: "1"}},
		"no input":                         {Model: "m", RateSpec: RateSpec{Output: "1"}},
		"no output":                        {Model: "m", RateSpec: RateSpec{Input: "1"}},
		"cached input dearer than input":   {Model: "m", RateSpec: RateSpec{Input: "1", CachedInput: "1.000001", Output: "1"}},
		"a negative rate":                  {Model: "m", RateSpec: RateSpec{Input: "1", Output: "-1"}},
		"seven decimals":                   {Model: "m", RateSpec: RateSpec{Input: "1", Output: "1", Reasoning: "0.0000001"}},
		"a price beyond reason":            {Model: "m", RateSpec: RateSpec{Input: "1", Output: "1000000001"}},
		"rubbish":                          {Model: "m", RateSpec: RateSpec{Input: "cheap", Output: "1"}},
		"cached input that is not written": {Model: "m", RateSpec: RateSpec{Input: "1", CachedInput: ".", Output: "1"}},
		"free, and yet with a rate":        {Model: "m", Free: true, RateSpec: RateSpec{Input: "1"}},
		"the list's price, and a rate":     {Model: "m", ListPrice: true, RateSpec: RateSpec{Input: "1", Output: "1"}},
		"the list's price, at a tier":      {Model: "m", ListPrice: true, Tiers: map[tenants.Tier]string{"flex": "1"}},
		"a tier that nobody sells":         {Model: "m", Free: true, Tiers: map[tenants.Tier]string{"gold": "1"}},
		"another price at the default":     {Model: "m", Free: true, Tiers: map[tenants.Tier]string{"default": "2"}},
		"a multiplier of nothing":          {Model: "m", Free: true, Tiers: map[tenants.Tier]string{"flex": "0"}},
		"a multiplier of five decimals":    {Model: "m", Free: true, Tiers: map[tenants.Tier]string{"flex": "0.50001"}},
		"a hundredfold and more":           {Model: "m", Free: true, Tiers: map[tenants.Tier]string{"priority": "100.0001"}},
		"a step without a rate":            {Model: "m", RateSpec: RateSpec{Input: "1", Output: "1"}, LongContext: []StepSpec{{MinInput: 5}}},
		"a step from nothing on":           {Model: "m", RateSpec: RateSpec{Input: "1", Output: "1"}, LongContext: []StepSpec{{Input: "1", Output: "1"}}},
	} {
		if p, err := spec.Price(); !errors.Is(err, ErrPrice) {
			t.Errorf("%s: got %+v, %v, want ErrPrice", name, p, err)
		}
	}
}
