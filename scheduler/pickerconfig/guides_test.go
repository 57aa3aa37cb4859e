package pickerconfig_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/scheduler"
	"weir/scheduler/pickerconfig"
)

// What llm-d publishes to be used as it is, its router's default and the guides
// that don't set prefill and decode apart, is read without a change.
func TestPublishedDocumentsAreReadAsTheyAre(t *testing.T) {
	t.Parallel()
	load := func(weight float64) scheduler.Scorer {
		return scheduler.Scorer{Kind: "token-load-scorer", Weight: weight, Threshold: 4_194_304}
	}
	affinity := func(rate float64) []scheduler.Filter {
		return []scheduler.Filter{{Kind: "prefix-cache-affinity-filter", MinScore: 0.8, MaxPenalty: 18 * time.Second, Rate: rate}}
	}
	three := []scheduler.Scorer{plain("queue-scorer", 2), plain("kv-cache-utilization-scorer", 2), prefix(3)}
	for _, test := range []struct {
		file     string
		profile  scheduler.Profile
		bands    int
		warnings []string
	}{
		{"default", scheduler.Profile{Scorers: three, Picker: pick(scheduler.MaxScore)}, 0, []string{"flowControl"}},
		{"sample", scheduler.Profile{
			Filters: []scheduler.Filter{{
				Kind: "decode-filter", Label: "llm-d.ai/role", NoLabel: true,
				Values: []string{"decode", "prefill-decode", "both", "encode-prefill-decode"},
			}},
			Scorers: []scheduler.Scorer{prefix(2)}, Picker: pick(scheduler.MaxScore),
		}, 0, []string{"flowControl", "own catalogue"}},
		{"optimized", scheduler.Profile{
			Filters: affinity(15_928), Scorers: []scheduler.Scorer{load(1)}, Picker: pick(scheduler.MaxScore),
			Prefix: scheduler.PrefixCache{MaxTokens: 40_960, EndpointBlocks: 31_250},
		}, 0, []string{"is old", "flowControl"}},
		{"flow", scheduler.Profile{Scorers: three, Picker: pick(scheduler.MaxScore)}, 3, nil},
		{"agents", scheduler.Profile{
			Filters: affinity(16_444), Scorers: []scheduler.Scorer{load(1)}, Picker: pick(scheduler.MaxScore),
			Prefix: scheduler.PrefixCache{MaxTokens: 262_144, EndpointBlocks: 1_570_000, BlockTokens: 256},
		}, 0, []string{"is old", "never from what a client sends"}},
		{"turns", scheduler.Profile{Scorers: three, Picker: pick(scheduler.MaxScore)}, 2, []string{"is old", "never from what a client sends"}},
	} {
		t.Run(test.file, func(t *testing.T) {
			t.Parallel()
			raw, err := os.ReadFile("testdata/" + test.file + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			got, err := pickerconfig.Parse(raw)
			if err != nil {
				t.Fatal(err)
			}
			near := cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() <= 2*time.Millisecond })
			if diff := cmp.Diff(test.profile, got.Config.Profile, near); diff != "" {
				t.Errorf("profile (-want +got):\n%s", diff)
			}
			if len(got.Priorities) != test.bands {
				t.Errorf("bands %v, want %d", got.Priorities, test.bands)
			}
			all := strings.Join(got.Warnings, "\n")
			for _, w := range test.warnings {
				if !strings.Contains(all, w) {
					t.Errorf("warnings %q lack %q", got.Warnings, w)
				}
			}
			if len(got.Warnings) > len(test.warnings) {
				t.Errorf("warnings %q, want of them %q alone", got.Warnings, test.warnings)
			}
		})
	}
}
