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

// A band with policies as a document names them.
func band(priority, queued int, ttl time.Duration, f scheduler.FairnessPolicy, o scheduler.Ordering) scheduler.BandConfig {
	return scheduler.BandConfig{Priority: priority, MaxQueued: queued, TTL: ttl, Fairness: scheduler.Fairness{Policy: f}, Ordering: o}
}

func roundRobin(priority, queued int, ttl time.Duration) scheduler.BandConfig {
	return band(priority, queued, ttl, scheduler.RoundRobin, scheduler.FirstCome)
}

func requests(headroom float64) scheduler.Detector {
	return scheduler.Detector{Kind: scheduler.ConcurrencyDetector, Mode: scheduler.CountRequests, MaxTokens: 1_000_000, Headroom: headroom}
}

func filtered(headroom float64) []scheduler.Filter {
	return []scheduler.Filter{{Kind: "concurrency-detector", Detector: requests(headroom)}}
}

// The scorers of the examples.
func prefix(weight float64) scheduler.Scorer {
	return scheduler.Scorer{Kind: "prefix-cache-scorer", Weight: weight, MatchLengthTokens: 8192}
}

func plain(kind string, weight float64) scheduler.Scorer {
	return scheduler.Scorer{Kind: kind, Weight: weight}
}

func active(weight float64) scheduler.Scorer {
	return scheduler.Scorer{Kind: "active-request-scorer", Weight: weight, MaxBusyScore: 1}
}

func pick(kind scheduler.PickerKind) scheduler.Picker {
	return scheduler.Picker{Kind: kind, MaxEndpoints: 1}
}

// What llm-d's own examples mean. a, b, c, d, e and g were run with llm-d; each
// has a comment where Weir reads more or less into it.
func TestExamplesMeanWhatTheyMeanToLLMD(t *testing.T) {
	t.Parallel()
	const unbounded, forever = 1 << 30, 10 * 365 * 24 * time.Hour
	strict := band(0, 0, 0, scheduler.GlobalStrict, scheduler.FirstCome)
	negative := roundRobin(0, 100, 0)
	llmd := scheduler.Profile{
		Scorers: []scheduler.Scorer{plain("queue-scorer", 2), plain("kv-cache-utilization-scorer", 2), prefix(3)},
		Picker:  pick(scheduler.MaxScore),
	}
	for _, test := range []struct {
		file     string
		want     pickerconfig.Document
		warnings []string
	}{
		{"a", pickerconfig.Document{
			Config: scheduler.Config{
				MaxConcurrency: 64, MaxQueued: 2000, MaxBytes: 2 << 30, TTL: 30 * time.Second, NoEndpointTTL: 2 * time.Minute,
				Bands: []scheduler.BandConfig{
					roundRobin(100, 500, 10*time.Second), roundRobin(0, 500, 0), roundRobin(-10, 200, 5*time.Minute),
				},
				DefaultBand: roundRobin(0, 500, 0), DefaultNegativeBand: &negative,
				Detector: requests(0.25), UsageLimit: scheduler.UsageLimit{Kind: scheduler.StaticLimit},
				Profile: scheduler.Profile{
					Filters: filtered(0.25),
					Scorers: []scheduler.Scorer{prefix(3), plain("queue-scorer", 2), plain("kv-cache-utilization-scorer", 2), active(2)},
					Picker:  pick(scheduler.MaxScore),
				},
			},
			Priorities: []int{100, 0, -10}, PropagatePriority: true,
		}, []string{"the pool's own endpoints"}},
		{"b", pickerconfig.Document{
			Config: scheduler.Config{
				MaxConcurrency: 2, MaxQueued: unbounded, TTL: 5 * time.Second, NoEndpointTTL: 3 * time.Second,
				Bands: []scheduler.BandConfig{roundRobin(0, 8, 0)}, DefaultBand: strict,
				Detector: requests(1), UsageLimit: scheduler.UsageLimit{Kind: scheduler.StaticLimit},
				Profile: scheduler.Profile{
					Filters: filtered(1),
					Scorers: []scheduler.Scorer{prefix(3), plain("queue-scorer", 2), plain("kv-cache-utilization-scorer", 2), active(2)},
					Picker:  pick(scheduler.MaxScore),
				},
			},
			Priorities: []int{0},
		}, []string{"llm-d.ai/v1alpha1 is old", "the pool's own endpoints"}},
		{"c", pickerconfig.Document{
			Config: scheduler.Config{
				MaxConcurrency: 2, MaxQueued: 200, MaxBytes: 256 << 20, TTL: 10 * time.Second, NoEndpointTTL: 3 * time.Second,
				Bands: []scheduler.BandConfig{
					{
						Priority: 100, MaxQueued: 50, Ordering: scheduler.SLODeadline,
						Fairness: scheduler.Fairness{Policy: scheduler.LeastAttainedService, HalfLife: time.Minute},
					},
					roundRobin(0, 50, 0), roundRobin(-10, 20, 0),
				},
				DefaultBand: strict, Eviction: true, Detector: requests(1),
				UsageLimit: scheduler.UsageLimit{Kind: scheduler.PriorityHoldback, MinCeiling: 0.5, MaxCeiling: 1},
				Profile: scheduler.Profile{
					Filters: filtered(1),
					Scorers: []scheduler.Scorer{plain("session-affinity-scorer", 100), plain("queue-scorer", 2), plain("kv-cache-utilization-scorer", 2), active(2)},
					Picker:  pick(scheduler.WeightedRandom), Session: scheduler.SessionAffinity{TTL: 5 * time.Minute},
				},
			},
			Priorities: []int{100, 0, -10},
		}, []string{"llm-d.ai/v1alpha1 is old", "never from what a client sends", "no header makes or names one", "plugins[edf-ordering-policy]: nothing refers to it"}},
		{"d", pickerconfig.Document{
			Config: scheduler.Config{ // endpoints keep Weir's own bound: the detector knows only what engines report
				MaxQueued: unbounded, TTL: time.Minute, NoEndpointTTL: time.Minute, DefaultBand: strict,
				Detector:   scheduler.Detector{Kind: scheduler.UtilizationDetector, QueueDepth: 5, KVUsage: 0.8, Staleness: 6 * time.Second},
				UsageLimit: scheduler.UsageLimit{Kind: scheduler.SoftReflective}, Profile: llmd,
			},
		}, []string{"llm-d.ai/v1alpha1 is old"}},
		{"e", pickerconfig.Document{
			Config: scheduler.Config{ // without the gate nothing waits
				MaxConcurrency: unbounded, NoEndpointTTL: -1, DefaultBand: strict,
				Shed:    scheduler.Shed{Enabled: true, QueueDepth: 5, KVUsage: 0.8, Power: 5, K: 300},
				Profile: scheduler.Profile{Picker: pick(scheduler.Random)},
			},
		}, []string{"is old", "lacks flowControl"}},
		{"f", pickerconfig.Document{
			Config: scheduler.Config{
				MaxConcurrency: 100, MaxQueued: unbounded, TTL: time.Minute, NoEndpointTTL: time.Minute,
				DefaultBand: scheduler.BandConfig{
					Fairness: scheduler.Fairness{Policy: scheduler.TurnPriority, TurnTimeWeight: 0.5, TurnInactivity: 2 * time.Minute},
					Ordering: scheduler.FirstCome,
				},
				Detector: requests(0), UsageLimit: scheduler.UsageLimit{Kind: scheduler.StaticLimit},
				Profile: scheduler.Profile{Scorers: []scheduler.Scorer{plain("queue-scorer", 1)}, Picker: pick(scheduler.MaxScore)},
			},
		}, nil},
		{"g", pickerconfig.Document{
			Config: scheduler.Config{
				MaxConcurrency: 10, MaxQueued: 1000, MaxBytes: 10 << 30, TTL: 5 * time.Minute, NoEndpointTTL: 5 * time.Minute,
				Bands: []scheduler.BandConfig{
					roundRobin(100, 500, 0), roundRobin(60, 500, 0), roundRobin(30, 500, 0),
					roundRobin(10, 500, 0), roundRobin(-5, 500, 0), roundRobin(-10, 500, 0),
				},
				DefaultBand: strict, Detector: requests(0),
				UsageLimit: scheduler.UsageLimit{Kind: scheduler.PriorityHoldback, MinCeiling: 0.5, MaxCeiling: 1},
				Profile:    llmd,
			},
			Priorities: []int{100, 60, 30, 10, -5, -10},
		}, nil},
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
			test.want.Config.BandZero = test.file != "e" // as llm-d has it where there are bands at all
			warnings := got.Warnings
			got.Warnings = nil
			if diff := cmp.Diff(&test.want, got); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
			if len(warnings) != len(test.warnings) {
				t.Fatalf("warnings %q, want %q", warnings, test.warnings)
			}
			for i, w := range test.warnings {
				if !strings.Contains(warnings[i], w) {
					t.Errorf("warning %q, want %q", warnings[i], w)
				}
			}
		})
	}
}
