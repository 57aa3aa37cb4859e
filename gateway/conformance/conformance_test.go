package conformance_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/gateway/conformance"
	"weir/scheduler/enginesim"
)

// serve runs a simulated engine behind a handler that may answer in its place.
func serve(t *testing.T, cfg enginesim.Config, faults string, instead map[string]http.HandlerFunc) string {
	t.Helper()
	engine := enginesim.New(cfg)
	if err := engine.SetFault(faults, 0); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h, ok := instead[r.URL.Path]; ok {
			h(w, r)
			return
		}
		engine.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	t.Cleanup(engine.Close)
	return server.URL
}

// small is an engine of four places, whose longest answer takes seconds.
func small() enginesim.Config {
	return enginesim.Config{
		Models: []string{"m"}, TTFT: time.Millisecond, ITL: time.Millisecond, MaxNumSeqs: 4, ContextLength: 8192,
		KVBlocks: 1024, Priorities: enginesim.LowerFirst,
	}
}

func run(t *testing.T, cfg conformance.Config) *conformance.Report {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 32}
	t.Cleanup(transport.CloseIdleConnections)
	cfg.Client, cfg.Now = &http.Client{Transport: transport}, time.Now
	return conformance.Run(t.Context(), cfg)
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, text) }
}

func TestAGoodEnginePassesEveryCheck(t *testing.T) {
	t.Parallel()
	url := serve(t, small(), "", nil)
	r := run(t, conformance.Config{URL: url, Fill: 6})
	if r.Engine != "sim" || r.Model != "m" || !r.Conforms() {
		t.Errorf("report %+v", r)
	}
	for _, c := range r.Checks {
		want := conformance.Pass
		if c.Name == conformance.StorageIsolation {
			want = conformance.Unknown // not asked for
		}
		if c.Status != want || c.Found == "" {
			t.Errorf("%s: %s, %q", c.Name, c.Status, c.Found)
		}
	}
	var made []string
	for _, c := range r.Checks {
		made = append(made, c.Name)
	}
	if !slices.Equal(made, conformance.Names()) {
		t.Errorf("checks %q", made)
	}
}

// Each check is refuted by an engine that does just that wrong.
func TestEachCheckFindsItsFault(t *testing.T) {
	t.Parallel()
	notFound := http.NotFound
	brief := func(c *enginesim.Config) { c.ContextLength = 2048 } // answers of about a second
	storage := func(c *enginesim.Config) { c.HostBlocks = 4096 }
	priorities := func(p enginesim.Priorities) func(*enginesim.Config) {
		return func(c *enginesim.Config) { c.Priorities = p }
	}
	for _, tt := range []struct {
		name    string
		change  func(*enginesim.Config)
		faults  string
		instead map[string]http.HandlerFunc
		ask     conformance.Config
		check   string
		want    conformance.Status
		found   string
	}{
		{name: "it is not there", ask: conformance.Config{URL: "http://127.0.0.1:1"}, check: conformance.Health, want: conformance.Fail, found: "refused"},
		{name: "it isn't ready", instead: map[string]http.HandlerFunc{"/health": notFound}, check: conformance.Health, want: conformance.Fail, found: "404"},
		{name: "vLLM that is too old", instead: map[string]http.HandlerFunc{"/version": says(`{"version":"0.8.5.post1"}`)}, check: conformance.Version, want: conformance.Fail, found: "vllm 0.8.5.post1 is older than 0.9.0"},
		{name: "SGLang that is too old", instead: map[string]http.HandlerFunc{"/get_server_info": says(`{"version":"0.4.10"}`)}, check: conformance.Version, want: conformance.Fail, found: "sglang 0.4.10"},
		{name: "vLLM that is new enough", instead: map[string]http.HandlerFunc{"/version": says(`{"version":"0.23.0rc1"}`)}, check: conformance.Version, want: conformance.Pass, found: "vllm 0.23.0rc1"},
		{name: "a build without a release", instead: map[string]http.HandlerFunc{"/version": says(`{"version":"dev"}`)}, check: conformance.Version, want: conformance.Unknown},
		{name: "no version at all", instead: map[string]http.HandlerFunc{"/version": notFound}, check: conformance.Version, want: conformance.Unknown},
		{name: "a model that it has not", ask: conformance.Config{Model: "other"}, check: conformance.Models, want: conformance.Fail, found: "not other"},
		{name: "no models", instead: map[string]http.HandlerFunc{"/v1/models": says(`{"data":[]}`)}, check: conformance.Models, want: conformance.Fail},
		{name: "no list of models", instead: map[string]http.HandlerFunc{"/v1/models": notFound}, ask: conformance.Config{Model: "m"}, check: conformance.Models, want: conformance.Unknown},
		{name: "no metrics", instead: map[string]http.HandlerFunc{"/metrics": notFound}, check: conformance.Metrics, want: conformance.Fail, found: "404"},
		{name: "metrics of other names", change: func(c *enginesim.Config) { c.MetricNames = "trtllm" }, check: conformance.Metrics, want: conformance.Fail, found: "running requests"},
		{name: "SGLang's names", change: func(c *enginesim.Config) { c.MetricNames = enginesim.SGLang }, check: conformance.Metrics, want: conformance.Pass},
		{name: "no tokenizer", instead: map[string]http.HandlerFunc{"/tokenize": notFound}, check: conformance.Tokenize, want: conformance.Unsupported},
		{name: "a tokenizer that fails", instead: map[string]http.HandlerFunc{"/tokenize": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }}, check: conformance.Tokenize, want: conformance.Fail},
		{name: "no end mark", faults: "no-done", check: conformance.Stream, want: conformance.Fail, found: "[DONE]"},
		{name: "a stream that breaks", faults: "die-mid-stream=3", check: conformance.Stream, want: conformance.Fail},
		{name: "requests fail", faults: "status=500", check: conformance.Stream, want: conformance.Fail, found: "500"},
		{name: "no usage at the end", faults: "ignore-include-usage", check: conformance.IncludeUsage, want: conformance.Fail},
		{name: "no running usage", faults: "ignore-continuous-usage", check: conformance.ContinuousUsage, want: conformance.Fail, found: "0 of"},
		{name: "usage now and then", faults: "ignore-continuous-usage,usage-on-odd-chunks", check: conformance.ContinuousUsage, want: conformance.Fail, found: "of"},
		{name: "cached tokens are not told", faults: "hide-cached", check: conformance.CachedTokens, want: conformance.Fail, found: "--enable-prompt-tokens-details"},
		{name: "without cached tokens isolation is unknown", faults: "hide-cached", check: conformance.SaltIsolation, want: conformance.Unknown},
		{name: "salts are ignored", faults: "ignore-salt", check: conformance.SaltIsolation, want: conformance.Fail, found: "ignores cache_salt"},
		{name: "llama.cpp never had salts", faults: "ignore-salt", ask: conformance.Config{Engine: "llamacpp"}, check: conformance.SaltIsolation, want: conformance.Unsupported},
		{name: "a stream goes on without its caller", change: brief, faults: "keep-running", check: conformance.CancelStream, want: conformance.Fail, found: "whole answer"},
		{name: "a whole answer goes on without its caller", change: brief, faults: "keep-running", check: conformance.CancelWhole, want: conformance.Fail, found: "whole answer"},
		{name: "a stream goes on for long", change: func(c *enginesim.Config) { c.ITL = 20 * time.Millisecond }, faults: "keep-running", ask: conformance.Config{Patience: time.Second}, check: conformance.CancelStream, want: conformance.Fail, found: "still makes"},
		{name: "answers that are over at once", change: func(c *enginesim.Config) { c.ZeroLatency = true }, check: conformance.CancelStream, want: conformance.Unknown, found: "over before"},
		{name: "priorities are refused", change: priorities(enginesim.NoPriorities), check: conformance.PriorityDirection, want: conformance.Unsupported, found: "not enabled"},
		{name: "priorities go the other way", change: priorities(enginesim.HigherFirst), ask: conformance.Config{Fill: 6}, check: conformance.PriorityDirection, want: conformance.Fail},
		{name: "priorities are ignored", change: priorities(enginesim.Ignored), ask: conformance.Config{Fill: 6}, check: conformance.PriorityDirection, want: conformance.Fail},
		{name: "too few to fill it", ask: conformance.Config{Fill: 2}, check: conformance.PriorityDirection, want: conformance.Unknown, found: "nobody had to wait"},
		{name: "priorities that nobody tries", check: conformance.PriorityDirection, want: conformance.Unknown, found: "not tried"},
		{name: "slower storage that keeps salts apart", change: storage, ask: conformance.Config{Storage: 40_000}, check: conformance.StorageIsolation, want: conformance.Pass, found: "own salt alone"},
		{name: "slower storage for everybody", change: storage, faults: "ignore-salt", ask: conformance.Config{Storage: 40_000}, check: conformance.StorageIsolation, want: conformance.Fail, found: "another salt"},
		{name: "no slower storage", ask: conformance.Config{Storage: 40_000}, check: conformance.StorageIsolation, want: conformance.Unsupported},
		{name: "a cache that is too large to fill", ask: conformance.Config{Storage: 1000}, check: conformance.StorageIsolation, want: conformance.Unknown, found: "16384 tokens"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := small()
			if tt.change != nil {
				tt.change(&cfg)
			}
			ask := tt.ask
			if ask.URL == "" {
				ask.URL = serve(t, cfg, tt.faults, tt.instead)
			}
			ask.Only = []string{tt.check}
			r := run(t, ask)
			got := r.Of(tt.check)
			if got.Status != tt.want || !strings.Contains(got.Found, tt.found) {
				t.Errorf("%s is %s, %q; want %s, %q", tt.check, got.Status, got.Found, tt.want, tt.found)
			}
			if got.Status == conformance.Fail && (got.Todo == "" || r.Conforms()) {
				t.Errorf("a failure without advice, or that lets the engine pass: %+v", r)
			}
		})
	}
}
