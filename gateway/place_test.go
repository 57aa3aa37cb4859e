package gateway_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/gateway"
	"weir/gateway/admission"
	"weir/scheduler/enginesim"
)

// served is a simulated engine that counts what it was asked for.
type served struct {
	url    string
	chats  atomic.Int32
	tokens sync.Map // Authorization headers of chats
}

func serveSim(t *testing.T, cfg enginesim.Config) *served {
	t.Helper()
	cfg.Models = []string{"sim"}
	sim := enginesim.New(cfg)
	t.Cleanup(sim.Close)
	s := &served{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			s.chats.Add(1)
			s.tokens.Store(r.Header.Get("Authorization"), true)
		}
		sim.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// replica is a gateway with a fleet of its own that follows a catalogue.
type replica struct {
	*gateway.Gateway

	fleet *gateway.Fleet
	house *house
}

func newReplica(t *testing.T, s *shelf) *replica {
	t.Helper()
	fleet := gateway.NewFleet(slog.New(slog.DiscardHandler), s, nil)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- fleet.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		fleet.Close()
	})
	h := build(t, nil, func(h *house) { h.plan.Limits.Concurrency = 100 })
	g := gateway.New(slog.New(slog.DiscardHandler), gateway.Deps{
		Catalogue: s, Limits: admission.NewMemory(admission.MemoryConfig{}), Pools: fleet, Receipts: &ledger{},
	}, h.config)
	t.Cleanup(g.Close)
	return &replica{g, fleet, h}
}

// chat runs one exchange with an answer of so many tokens.
func (r *replica) chat(ctx context.Context, id string, tokens int, to *caller) error {
	return r.Run(ctx, r.house.call(func(c *gateway.Call) {
		c.ID, c.Stream = id, true
		c.Fields = fmt.Appendf(nil, `"messages":[{"role":"user","content":"hello"}],"max_tokens":%d`, tokens)
	}), to)
}

// endpoint is how many leases an endpoint has, and whether it drains.
func (r *replica) endpoint(id string) (live int, draining, there bool) {
	for _, e := range r.fleet.Pools()["main"].State.Endpoints {
		if e.ID == id {
			return e.Live, e.Draining, true
		}
	}
	return 0, false, false
}

func TestDrainedEndpointFinishesWhatRunsAndTakesNothingNewOnAnyReplica(t *testing.T) {
	t.Parallel()
	a, b := serveSim(t, enginesim.Config{ITL: 2 * time.Millisecond}), serveSim(t, enginesim.Config{ZeroLatency: true})
	s := newShelf(t, `{name: main, endpoints: [{id: a, url: "`+a.url+`"}]}`)
	replicas := []*replica{newReplica(t, s), newReplica(t, s)}

	var long sync.WaitGroup
	callers := []*caller{{}, {}}
	for i, r := range replicas {
		long.Go(func() {
			if err := r.chat(t.Context(), "req_long", 300, callers[i]); err != nil {
				t.Errorf("replica %d: what ran was cut: %v", i, err)
			}
		})
		until(t, "the long answer runs", func() bool { return callers[i].text() != "" })
	}
	s.put(t, `{name: main, endpoints: [{id: a, url: "`+a.url+`", drain: true}, {id: b, url: "`+b.url+`"}]}`)
	for i, r := range replicas {
		until(t, "the replica drains the endpoint", func() bool { _, draining, _ := r.endpoint("a"); return draining })
		for n := range 10 {
			if err := r.chat(t.Context(), fmt.Sprintf("req_%d", n), 1, &caller{}); err != nil {
				t.Errorf("replica %d: %v", i, err)
			}
		}
	}
	if n := a.chats.Load(); n != 2 {
		t.Errorf("the draining endpoint had %d requests, want the 2 that ran before", n)
	}
	if n := b.chats.Load(); n != 20 {
		t.Errorf("the other endpoint had %d requests, want all 20", n)
	}
	long.Wait()
	for i, c := range callers {
		if !strings.HasSuffix(c.text(), doneEvent) {
			t.Errorf("replica %d: the long answer ended with %q", i, c.text()[max(0, len(c.text())-100):])
		}
		if live, _, _ := replicas[i].endpoint("a"); live != 0 {
			t.Errorf("replica %d: %d leases are left", i, live)
		}
	}
	s.put(t, `{name: main, endpoints: [{id: a, url: "`+a.url+`"}]}`)
	until(t, "the endpoint is back", func() bool { _, draining, _ := replicas[0].endpoint("a"); return !draining })
	if err := replicas[0].chat(t.Context(), "req_back", 1, &caller{}); err != nil {
		t.Error(err)
	}
	if n := a.chats.Load(); n != 3 {
		t.Errorf("the undrained endpoint had %d requests, want one more", n)
	}
}

func TestDiscoveredEndpointGetsThePoolsKeyAndWhatTheFileSaysOfIt(t *testing.T) {
	t.Parallel()
	a, b := serveSim(t, enginesim.Config{ZeroLatency: true}), serveSim(t, enginesim.Config{ZeroLatency: true})
	file := filepath.Join(t.TempDir(), "endpoints.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	entry := func(name string, s *served) string {
		host, port, _ := strings.Cut(strings.TrimPrefix(s.url, "http://"), ":")
		return fmt.Sprintf(`{name: %s, address: %s, port: %q, labels: {llm-d.ai/role: decode, api_key_env: EVIL, ca_file: /etc/passwd}}`, name, host, port)
	}
	const pool = `{name: main, endpoints: [], api_key_env: ENGINE_KEY, discovery: {file: {path: %q}, endpoint: {max_concurrency: 7, accelerator: v6e}, drain: %s}}`
	s := newShelf(t, fmt.Sprintf(pool, file, "[]"))
	r := newReplica(t, s)

	waiting := make(chan error, 1)
	go func() { waiting <- r.chat(t.Context(), "req_early", 1, &caller{}) }()
	until(t, "the first request waits for an endpoint", func() bool { return r.fleet.Pools()["main"].State.Queued == 1 })
	write("endpoints: [" + entry("a", a) + "]")
	if err := <-waiting; err != nil {
		t.Errorf("the request that waited for the first endpoint: %v", err)
	}
	if _, sent := a.tokens.Load("Bearer value of ENGINE_KEY"); !sent {
		t.Error("the discovered endpoint didn't get the pool's key")
	}
	a.tokens.Range(func(token, _ any) bool {
		if token != "Bearer value of ENGINE_KEY" {
			t.Errorf("the discovered endpoint was sent %v", token)
		}
		return true
	})
	if n := r.fleet.Pools()["main"].State.Endpoints[0].MaxConcurrency; n != 7 {
		t.Errorf("it may have %d requests at once, want the 7 of its like", n)
	}

	write("endpoints: [" + entry("a", a) + ", " + entry("b", b) + "]")
	until(t, "the second one is found", func() bool { _, _, there := r.endpoint("b"); return there })
	s.put(t, fmt.Sprintf(pool, file, "[a]"))
	until(t, "the first one drains", func() bool { _, draining, _ := r.endpoint("a"); return draining })
	before := a.chats.Load()
	for n := range 5 {
		if err := r.chat(t.Context(), fmt.Sprintf("req_%d", n), 1, &caller{}); err != nil {
			t.Error(err)
		}
	}
	if a.chats.Load() != before || b.chats.Load() != 5 {
		t.Errorf("the drained one had %d more requests, the other %d, want 0 and 5", a.chats.Load()-before, b.chats.Load())
	}
}

func TestScalesAreThoseOfTheCatalogue(t *testing.T) {
	t.Parallel()
	s := newShelf(t, `{name: main, endpoints: [], scaling: {min: 1, max: 3, roles: [prefill, decode]}}, {name: fixed, endpoints: []}`)
	r := newReplica(t, s)
	until(t, "the pool decides on its size", func() bool { scales, _ := r.fleet.Scales("main"); return len(scales) == 2 })
	scales, _ := r.fleet.Scales("main")
	for _, scale := range scales {
		if scale.Desired != 1 || scale.Why != "minimum" {
			t.Errorf("role %s: %+v, want the minimum", scale.Role, scale)
		}
	}
	if scales, known := r.fleet.Scales("fixed"); !known || len(scales) != 0 {
		t.Errorf("a pool without scaling: %v, %v", scales, known)
	}
	if _, known := r.fleet.Scales("nowhere"); known {
		t.Error("an unknown pool has a scale")
	}
	if n := len(r.fleet.Pools()["main"].Scale); n != 2 {
		t.Errorf("the snapshot shows %d scales, want 2", n)
	}
}
