package pickerconfig_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/scheduler"
	"weir/scheduler/pickerconfig"
)

// The first document is llm-d's own example of a split pool, the second that of
// its rollout screener with a decider besides.
func TestSplitPoolsMeanWhatTheyMeanToLLMD(t *testing.T) {
	t.Parallel()
	role := func(kind string, noLabel bool, values ...string) []scheduler.Filter {
		return []scheduler.Filter{{Kind: kind, Label: "llm-d.ai/role", NoLabel: noLabel, Values: values}}
	}
	answers := role("decode-filter", true, "decode", "prefill-decode", "both", "encode-prefill-decode")
	computes := role("prefill-filter", false, "prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode")
	scorers := []scheduler.Scorer{prefix(2), plain("queue-scorer", 1)}
	for _, test := range []struct {
		file     string
		want     scheduler.Profile
		warnings []string
	}{
		{"pd", scheduler.Profile{
			Filters: answers, Scorers: scorers, Picker: pick(scheduler.MaxScore),
			Prefix: scheduler.PrefixCache{MaxTokens: 16_384, EndpointBlocks: 31_250},
			Split: &scheduler.Split{
				Prefill: scheduler.Profile{Filters: computes, Scorers: scorers, Picker: pick(scheduler.MaxScore)},
				Decider: scheduler.Decider{Kind: scheduler.PrefixDecider, NonCachedTokens: 16},
			},
		}, []string{"is old", "lacks flowControl"}},
		{"rollout", scheduler.Profile{
			Filters: answers, Scorers: []scheduler.Scorer{plain("queue-scorer", 1)}, Picker: pick(scheduler.WeightedRandom),
			Split: &scheduler.Split{
				Prefill: scheduler.Profile{Filters: computes, Scorers: []scheduler.Scorer{plain("queue-scorer", 1)}, Picker: pick(scheduler.WeightedRandom)},
				Decider: scheduler.Decider{Kind: scheduler.AlwaysDecider},
			},
			Rollout: scheduler.Rollout{
				Mode: scheduler.RolloutByLargestRole, Roles: []string{"prefill", "decode"},
				RoleLabel: "disaggregatedset.x-k8s.io/role", Scope: map[string]string{"disaggregatedset.x-k8s.io/name": "my-set"},
			},
		}, []string{"no scorer reads a header", "lacks flowControl"}},
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
			if diff := cmp.Diff(test.want, got.Config.Profile); diff != "" {
				t.Errorf("profile (-want +got):\n%s", diff)
			}
			if all := strings.Join(got.Warnings, "\n"); len(got.Warnings) != len(test.warnings) {
				t.Errorf("warnings %q, want %q", all, test.warnings)
			}
			for i, w := range got.Warnings {
				if i < len(test.warnings) && !strings.Contains(w, test.warnings[i]) {
					t.Errorf("warning %q, want %q", w, test.warnings[i])
				}
			}
		})
	}
}

// What the document says is what the scheduler does.
func TestASplitPoolIsScheduledByItsDocument(t *testing.T) {
	t.Parallel()
	for name, screened := range map[string]bool{"with its screener": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw, err := os.ReadFile("testdata/rollout.yaml")
			if err != nil {
				t.Fatal(err)
			}
			d, err := pickerconfig.Parse(raw)
			if err != nil {
				t.Fatal(err)
			}
			d.Config.Profile.SlowStart = -1
			if !screened {
				d.Config.Profile.Rollout = scheduler.Rollout{}
			}
			e := scheduler.New(d.Config, nil)
			t.Cleanup(e.Close)
			var all []scheduler.Endpoint
			for _, revision := range []string{"r1", "r2"} {
				for _, role := range []string{"prefill", "decode"} {
					all = append(all, scheduler.Endpoint{
						ID: revision + role, URL: "http://" + revision + role,
						Labels: map[string]string{
							"llm-d.ai/role": role, "disaggregatedset.x-k8s.io/role": role,
							"disaggregatedset.x-k8s.io/revision": revision, "disaggregatedset.x-k8s.io/name": "my-set",
						},
					})
				}
			}
			e.SetEndpoints(all)
			crossed := 0
			for i := range 200 {
				text := []byte(strings.Repeat(fmt.Sprintf("prompt %d ", i), 100))
				l, err := e.Schedule(t.Context(), scheduler.Request{InputTokens: len(text) / 4, Prompt: [][]byte{text}})
				if err != nil {
					t.Fatal(err)
				}
				to := l.Targets()[0]
				if to.Prefill == nil {
					t.Fatalf("sent to %+v, with nobody to compute the prompt", to)
				}
				if to.Prefill.Endpoint[:2] != to.Endpoint[:2] {
					crossed++
				}
				l.Observe(scheduler.Progress{Kind: scheduler.FirstToken})
				l.End(scheduler.Outcome{OutputTokens: 1})
			}
			if screened != (crossed == 0) {
				t.Errorf("%d pairs of two revisions", crossed)
			}
		})
	}
}
