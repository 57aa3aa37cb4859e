package billing

import (
	"testing"

	"pgregory.net/rapid"
)

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
