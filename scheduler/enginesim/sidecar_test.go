package enginesim_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"weir/scheduler/enginesim"
)

// hostOf is where a rig listens.
func hostOf(r rig) string { return strings.TrimPrefix(r.url, "http://") }

// usageOf reads the tokens of a whole chat.
func usageOf(t *testing.T, body []byte) (prompt, cached int) {
	t.Helper()
	var d struct {
		Usage struct {
			PromptTokens int `json:"prompt_tokens"`
			Details      struct {
				CachedTokens int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(body, &d); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
	return d.Usage.PromptTokens, d.Usage.Details.CachedTokens
}

func TestSidecarHasThePromptComputedElsewhere(t *testing.T) {
	t.Parallel()
	prefill := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, ZeroLatency: true, Role: "prefill", Revision: "r1"})
	decode := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, ZeroLatency: true, Role: "decode", Revision: "r1"})
	alone := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, ZeroLatency: true})
	long := strings.Repeat("a long prompt ", 200)
	for _, path := range []struct{ path, body string }{
		{"/v1/chat/completions", ask(long, `,"max_tokens":5,"min_tokens":5,"stream":true,"stream_options":{"include_usage":true}`)},
		{"/v1/completions", fmt.Sprintf(`{"model":"sim-chat","prompt":%q,"max_tokens":5}`, long)},
		{"/v1/responses", fmt.Sprintf(`{"model":"sim-chat","input":%q,"max_output_tokens":5}`, long)},
	} {
		before, made := prefill.Stats(), decode.Stats()
		resp := decode.do(t.Context(), http.MethodPost, path.path, path.body, "X-Prefiller-Host-Port", hostOf(prefill), "X-Request-Id", "req_1.1")
		if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK || strings.Contains(string(body), "kv_transfer_params") {
			t.Fatalf("%s: %s %s", path.path, resp.Status, body)
		}
		p, d := prefill.Stats(), decode.Stats()
		if p.Offered != before.Offered+1 || d.Fetched != made.Fetched+1 {
			t.Errorf("%s: %d offered and %d fetched, want one more of each", path.path, p.Offered, d.Fetched)
		}
		if n := p.GeneratedTokens - before.GeneratedTokens; n != 1 {
			t.Errorf("%s: the prefill server made %d tokens", path.path, n)
		}
		if d.PrefixQueries != made.PrefixQueries {
			t.Errorf("%s: the decode server looked the prompt up", path.path)
		}
	}
	sent := prefill.Requests()[0]
	if sent.Header.Get("X-Request-Id") != "req_1.1" || sent.Header.Get("X-Prefiller-Host-Port") != "" {
		t.Errorf("the prefill server got the headers %v", sent.Header)
	}
	alone.do(t.Context(), http.MethodPost, "/v1/chat/completions", ask(long, ""), "X-Prefiller-Host-Port", "127.0.0.1:1")
	if s := alone.Stats(); s.Fetched != 0 || s.Finished != 1 {
		t.Errorf("a server without a sidecar obeyed the header: %+v", s)
	}
}

func TestCachedTokensOfAPairAreThoseOfWhoComputed(t *testing.T) {
	t.Parallel()
	prefill := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, ZeroLatency: true, Role: "prefill"})
	decode := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, ZeroLatency: true, Role: "decode"})
	chat := ask(strings.Repeat("a long prompt ", 200), `,"max_tokens":5`)
	for i := range 2 {
		resp := decode.do(t.Context(), http.MethodPost, "/v1/chat/completions", chat, "X-Prefiller-Host-Port", hostOf(prefill))
		body, _ := io.ReadAll(resp.Body)
		if prompt, cached := usageOf(t, body); i == 0 && cached != 0 || i == 1 && cached < prompt-32 {
			t.Errorf("turn %d: %d of %d tokens cached", i, cached, prompt)
		}
	}
	resp := decode.do(t.Context(), http.MethodPost, "/v1/chat/completions", chat) // what was fetched is in its own cache now
	body, _ := io.ReadAll(resp.Body)
	if prompt, cached := usageOf(t, body); cached < prompt-32 {
		t.Errorf("alone: %d of %d tokens cached", cached, prompt)
	}
}

func TestSidecarPassesOnWhatThePrefillServerSays(t *testing.T) {
	t.Parallel()
	foreign := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, ZeroLatency: true, Role: "prefill", Revision: "r2"})
	failing := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, ZeroLatency: true, Role: "prefill", Revision: "r1"})
	if err := failing.SetFault("status=503,retry-after=3", 1); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, peer string
		want       int
	}{
		{"a failure", hostOf(failing), 503},
		{"a cache of another revision is refused", hostOf(foreign), 500},
		{"a host that isn't one", "127.0.0.1:1", 502},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			decode := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, ZeroLatency: true, Role: "decode", Revision: "r1"})
			resp := decode.do(t.Context(), http.MethodPost, "/v1/chat/completions", ask("hello", `,"stream":true`), "X-Prefiller-Host-Port", tt.peer)
			if resp.StatusCode != tt.want {
				t.Errorf("status %d, want %d", resp.StatusCode, tt.want)
			}
			s := decode.Stats()
			if s.GeneratedTokens != 0 || s.Running+s.Waiting != 0 {
				t.Errorf("the decode server went on: %+v", s)
			}
			if foreigners := map[bool]int{true: 1}[tt.want == 500]; s.Foreign != foreigners {
				t.Errorf("%d foreign caches, want %d", s.Foreign, foreigners)
			}
		})
	}
}

func TestRanksHaveCachesOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, ZeroLatency: true, Ranks: 2})
	chat := ask(strings.Repeat("a long prompt ", 200), `,"max_tokens":5`)
	cached := func(header ...string) int {
		resp := r.do(t.Context(), http.MethodPost, "/v1/chat/completions", chat, header...)
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", resp.Status, body)
		}
		_, n := usageOf(t, body)
		return n
	}
	if a, b := cached("X-Data-Parallel-Rank", "1"), cached("X-Data-Parallel-Rank", "1"); a != 0 || b == 0 {
		t.Errorf("%d, then %d tokens cached at rank 1", a, b)
	}
	if n := cached("X-Data-Parallel-Rank", "0"); n != 0 {
		t.Errorf("rank 0 has %d tokens that only rank 1 was sent", n)
	}
	for _, bad := range []string{"2", "-1", "x"} {
		if resp := r.do(t.Context(), http.MethodPost, "/v1/chat/completions", chat, "X-Data-Parallel-Rank", bad); resp.StatusCode != http.StatusBadRequest {
			t.Errorf("rank %s: %s, want 400", bad, resp.Status)
		}
	}
	_, page := r.get("/metrics")
	for _, want := range []string{`vllm:prefix_cache_hits_total{engine="1",model_name="sim-chat"}`, `vllm:num_requests_running{engine="0",model_name="sim-chat"} 0`} {
		if !strings.Contains(page, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// Without a name a request goes where there is the least to do.
func TestUnnamedRankIsTheIdlest(t *testing.T) {
	t.Parallel()
	r := newRig(t, enginesim.Config{Models: []string{"sim-chat"}, Ranks: 2, TTFT: time.Millisecond, ITL: 20 * time.Millisecond})
	resp := r.do(t.Context(), http.MethodPost, "/v1/chat/completions", ask("one", `,"max_tokens":200,"min_tokens":200,"stream":true`))
	one := make([]byte, 1)
	if _, err := io.ReadFull(resp.Body, one); err != nil {
		t.Fatal(err)
	}
	second := r.do(t.Context(), http.MethodPost, "/v1/chat/completions", ask("two", `,"max_tokens":200,"min_tokens":200,"stream":true`))
	if _, err := io.ReadFull(second.Body, one); err != nil {
		t.Fatal(err)
	}
	_, page := r.get("/metrics")
	for _, rank := range []string{"0", "1"} {
		if want := `vllm:num_requests_running{engine="` + rank + `",model_name="sim-chat"} 1`; !strings.Contains(page, want) {
			t.Errorf("rank %s doesn't run one of the two", rank)
		}
	}
}
