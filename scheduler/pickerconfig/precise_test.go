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

func TestThePreciseCacheIsReadAsLLMDWritesIt(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("testdata/precise.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pickerconfig.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	want := scheduler.PreciseCache{
		Enabled: true, BlockTokens: 64, HostLoad: 8 * time.Microsecond, Speculative: 2 * time.Second, TokenTimeout: 30 * time.Millisecond,
	}
	if diff := cmp.Diff(want, got.Config.Profile.Precise); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var approximate []bool
	for _, s := range got.Config.Profile.Scorers {
		if s.Kind == "prefix-cache-scorer" {
			approximate = append(approximate, s.Approximate)
		}
	}
	if diff := cmp.Diff([]bool{false, true}, approximate); diff != "" {
		t.Errorf("scorers that go by what was sent: only the one that names no producer should (-want +got):\n%s", diff)
	}
	if len(got.Warnings) > 0 {
		t.Errorf("warnings %q", got.Warnings)
	}
}

func TestThePreciseCacheNeedsTheEnginesTokens(t *testing.T) {
	t.Parallel()
	for name, plugins := range map[string]string{
		"no token-producer":       "{type: precise-prefix-cache-producer}",
		"one that only estimates": "{type: precise-prefix-cache-producer}, {type: token-producer, parameters: {estimate: {}}}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := pickerconfig.Parse([]byte(head + "plugins: [" + plugins + "]"))
			if err == nil || !strings.Contains(err.Error(), "needs a token-producer with vllm") {
				t.Errorf("error %v", err)
			}
		})
	}
}
