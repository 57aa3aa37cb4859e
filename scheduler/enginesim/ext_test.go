package enginesim_test

import (
	"io"
	"strings"
	"testing"

	"weir/scheduler/enginesim"
)

func TestTiersAreToldAsSGLangDoesWhereTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	const asked = `,"return_cached_tokens_details":true`
	for _, tt := range []struct {
		name    string
		engine  enginesim.MetricNames
		storage int
		extra   string
		want    string // empty: nothing
	}{
		{"two tiers", enginesim.SGLang, 0, asked, `"sglext":{"cached_tokens_details":{"device":0,"host":0}}`},
		{"three", enginesim.SGLang, 9, asked, `"sglext":{"cached_tokens_details":{"device":0,"host":0,"storage":0,"storage_backend":"file"}}`},
		{"in a stream", enginesim.SGLang, 0, asked + `,"stream":true`, `"choices":[],"sglext":{"cached_tokens_details":{"device":0,"host":0}}}`},
		{"not asked", enginesim.SGLang, 0, "", ""},
		{"of vLLM", enginesim.VLLM, 0, asked, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, ZeroLatency: true, MetricNames: tt.engine, HostBlocks: 4, StorageBlocks: tt.storage})
			body, err := io.ReadAll(r.do(t.Context(), "POST", "/v1/chat/completions", ask("hi", tt.extra)).Body)
			if err != nil || strings.Contains(string(body), "sglext") != (tt.want != "") || !strings.Contains(string(body), tt.want) {
				t.Errorf("%v, want %q in:\n%s", err, tt.want, body)
			}
		})
	}
}
