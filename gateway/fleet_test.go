package gateway_test

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/gateway"
	"weir/gateway/admission"
	"weir/gateway/catalogue"
	"weir/scheduler"
	"weir/scheduler/enginesim"
)

// shelf is a catalogue that a test replaces.
type shelf struct {
	mu      sync.Mutex
	snap    *catalogue.Snapshot
	changed chan struct{}
}

func newShelf(t *testing.T, pools string) *shelf {
	t.Helper()
	s := &shelf{changed: make(chan struct{})}
	s.put(t, pools)
	return s
}

func (s *shelf) put(t *testing.T, pools string) {
	t.Helper()
	doc, _, err := catalogue.Parse([]byte(`apiVersion: weir/v1
bands: [{name: standard, priority: 0}]
models: [{name: pub, engine_model: sim, operations: [chat], routes: [{pool: main}]}]
pools: [` + pools + `]
`))
	if err != nil {
		t.Fatal(err)
	}
	s.set(doc.Snapshot(nil))
}

func (s *shelf) set(snap *catalogue.Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.snap = snap
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *shelf) Snapshot() *catalogue.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snap
}

func (s *shelf) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// until waits for a condition that other goroutines bring about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.After(10 * time.Second); !ok(); {
		select {
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestFleetFollowsTheCatalogue(t *testing.T) {
	t.Parallel()
	sim := enginesim.New(enginesim.Config{ZeroLatency: true})
	t.Cleanup(sim.Close)
	server := httptest.NewServer(sim)
	t.Cleanup(server.Close)

	s := newShelf(t, `{name: main, endpoints: [{id: a, url: "`+server.URL+`"}]}`)
	reg := prometheus.NewRegistry()
	fleet := gateway.NewFleet(slog.New(slog.DiscardHandler), s, reg)
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- fleet.Run(ctx) }()

	healthy := func(pool, id string) func() bool {
		return func() bool {
			for _, e := range fleet.Pools()[pool].State.Endpoints {
				if e.ID == id {
					return e.Health == scheduler.Healthy
				}
			}
			return false
		}
	}
	until(t, "the first endpoint is found healthy", healthy("main", "a"))
	first, _ := fleet.Scheduler("main")

	s.put(t, `{name: main, endpoints: [{id: a, url: "`+server.URL+`"}, {id: b, url: "`+server.URL+`"}]}, {name: other, endpoints: [{id: c, url: "`+server.URL+`"}]}`)
	until(t, "an endpoint that was added is found healthy", healthy("main", "b"))
	until(t, "a pool that was added is watched", healthy("other", "c"))
	if again, _ := fleet.Scheduler("main"); again != first {
		t.Error("an added endpoint replaced the queue")
	}

	s.put(t, `{name: main, scheduler: {max_concurrency: 3}, endpoints: [{id: a, url: "`+server.URL+`"}]}`)
	until(t, "a removed pool is gone", func() bool { _, ok := fleet.Scheduler("other"); return !ok })
	until(t, "a pool with other limits is watched", healthy("main", "a"))
	if n := fleet.Pools()["main"].State.Endpoints[0].MaxConcurrency; n != 3 {
		t.Errorf("concurrency %d, want the new 3", n)
	}

	if err := fleet.Probe(ctx, "main", "a"); err != nil {
		t.Errorf("probe of a live endpoint: %v", err)
	}
	if err := fleet.Probe(ctx, "nowhere", "a"); err == nil {
		t.Error("an unknown pool lives")
	}
	server.Close()
	if err := fleet.Probe(ctx, "main", "a"); err == nil {
		t.Error("a closed server lives")
	}
	if got, err := reg.Gather(); err != nil || len(got) == 0 {
		t.Errorf("metrics: %v, %v", got, err)
	}

	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	fleet.Close()
	last, _ := fleet.Scheduler("main")
	if _, err := last.Schedule(t.Context(), scheduler.Request{ID: "x.1"}); err == nil {
		t.Error("a closed fleet schedules")
	}
}

// The whole way through real parts: fleet, scheduler, limits and a simulated
// engine that counts as vLLM does.
func TestExchangeWithASimulatedEngine(t *testing.T) {
	t.Parallel()
	sim := enginesim.New(enginesim.Config{ZeroLatency: true, Models: []string{"sim"}})
	t.Cleanup(sim.Close)
	server := httptest.NewServer(sim)
	t.Cleanup(server.Close)
	fleet := gateway.NewFleet(slog.New(slog.DiscardHandler), newShelf(t, `{name: main, endpoints: [{id: a, url: "`+server.URL+`"}]}`), nil)
	t.Cleanup(fleet.Close)

	h := build(t, []string{server.URL})
	h.snapshot = newShelf(t, `{name: main, endpoints: [{id: a, url: "`+server.URL+`"}]}`).Snapshot()
	ledger := &ledger{}
	g := gateway.New(slog.New(slog.DiscardHandler), gateway.Deps{
		Catalogue: h, Limits: admission.NewMemory(admission.MemoryConfig{}), Pools: fleet, Receipts: ledger,
	}, h.config)
	t.Cleanup(g.Close)
	to := &caller{}
	err := g.Run(t.Context(), h.call(func(c *gateway.Call) {
		c.Stream, c.IncludeUsage = true, true
		c.Fields = []byte(`"messages":[{"role":"user","content":"hello"}],"max_tokens":12`)
	}), to)
	if err != nil {
		t.Fatal(err)
	}
	text := to.text()
	if !strings.HasSuffix(text, doneEvent) || strings.Contains(text, `"model":"sim"`) || strings.Count(text, `"usage":{`) != 1 {
		t.Errorf("the caller saw %s", text)
	}
	r := ledger.all()
	if len(r) != 1 || r[0].Usage.Output != 12 || r[0].Usage.InputUncached == 0 || r[0].UsageSource != "upstream_final" {
		t.Errorf("receipts %+v", r)
	}
}
