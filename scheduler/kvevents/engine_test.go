package kvevents_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"weir/scheduler"
	"weir/scheduler/enginesim"
	"weir/scheduler/kvevents"
)

// engine is a simulated one that is followed.
type engine struct {
	*reader

	url string
}

func newEngine(t *testing.T, cfg enginesim.Config) *engine {
	t.Helper()
	cfg.KVEvents, cfg.ZeroLatency, cfg.Models = true, true, []string{"m"}
	sim := enginesim.New(cfg)
	server := httptest.NewServer(sim)
	t.Cleanup(func() { server.Close(); sim.Close() })
	events, again := listen(t), listen(t)
	if err := sim.Publish(0, events, again); err != nil {
		t.Fatal(err)
	}
	return &engine{follow(t, kvevents.Source{Events: to(events), Replay: to(again)}), server.URL}
}

// post sends JSON to the engine and reads the answer.
func (e *engine) post(path string, body, into any) {
	e.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		e.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, e.url+path, bytes.NewReader(b))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil || resp.StatusCode != http.StatusOK {
		e.t.Fatalf("%s: %d %v", path, resp.StatusCode, err)
	}
}

type chat struct {
	Model    string              `json:"model"`
	Salt     string              `json:"cache_salt,omitempty"`
	Messages []map[string]string `json:"messages"`
	Tools    []any               `json:"tools,omitempty"`
	Most     int                 `json:"max_tokens"`
}

func ask(salt, text string) chat {
	return chat{
		Model: "m", Salt: salt, Most: 1, Messages: []map[string]string{{"role": "user", "content": text}},
		Tools: []any{map[string]any{"type": "function", "function": map[string]any{"name": "f"}}},
	}
}

// expected is what is expected to be cached of a chat, by the engine's own
// tokens; found is what the engine then finds.
func (e *engine) expected(c chat) int {
	e.t.Helper()
	var said struct{ Tokens []uint64 }
	e.post("/tokenize", c, &said)
	l, err := e.Schedule(e.t.Context(), scheduler.Request{ID: "x", Model: "m", CacheSalt: c.Salt, Tokens: scheduler.PreciseCache{}.Chain(said.Tokens, c.Salt)})
	if err != nil {
		e.t.Fatal(err)
	}
	l.End(scheduler.Outcome{Result: scheduler.Abandoned})
	d, _ := e.Decision("x")
	return d.CachedTokens
}

func (e *engine) found(c chat) int {
	e.t.Helper()
	var said struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	e.post("/v1/chat/completions", c, &said)
	return said.Usage.Details.Cached
}

func text(n, words int) string {
	return strings.Repeat(fmt.Sprintf("word%d of a text ", n), words/4)
}

func TestWhatIsExpectedIsWhatTheEngineFinds(t *testing.T) {
	t.Parallel()
	e := newEngine(t, enginesim.Config{KVBlocks: 600})
	for i := range 40 {
		c := ask([]string{"one tenant", "another"}[i%2], text(i%7, 200+10*i))
		messages := e.follower.Stats().Messages
		want := e.expected(c)
		if got := e.found(c); got != want {
			t.Errorf("request %d: the engine found %d tokens, %d were expected", i, got, want)
		}
		e.until("the engine has more now, and says so", func() bool { return e.follower.Stats().Messages > messages })
	}
	if s := e.State().Endpoints[0].Cache; s.Trust != scheduler.Trusted || s.HBM == 0 || s.HBM > 600 || s.Orphans > 0 {
		t.Errorf("in the end: %+v", s)
	}
	if s := e.follower.Stats(); s.Gaps+s.Reordered+s.Malformed+s.Orphans > 0 {
		t.Errorf("in the end: %+v", s)
	}
}

func TestEvictedBlocksAreFoundInLowerTiers(t *testing.T) {
	t.Parallel()
	e := newEngine(t, enginesim.Config{KVBlocks: 100, HostBlocks: 150, StorageBlocks: 1000})
	for i := range 8 {
		e.found(ask("", text(i, 800)))
	}
	e.until("blocks are in storage", func() bool {
		s := e.State().Endpoints[0].Cache
		return s.Storage > 0 && s.Host == 150
	})
	if s := e.State().Endpoints[0].Cache; s.HBM > 100 || s.Host > 150 {
		t.Errorf("in the tiers: %+v, more than they hold", s)
	}
	first := e.expected(ask("", text(0, 800)))
	e.until("what is in memory is worth more than what lies in storage", func() bool {
		return first > 0 && e.expected(ask("", text(7, 800))) > first
	})
	if got := e.found(ask("", text(0, 800))); got < first {
		t.Errorf("the engine found %d tokens of what lies in storage, %d tokens' worth was expected", got, first)
	}
}
