package pool_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/scheduler"
	"weir/scheduler/pool"
)

// scraped is an engine that counts how often its metrics are read.
type scraped struct {
	*httptest.Server

	probes, reads atomic.Int32
	broken        atomic.Bool
	hangs         atomic.Bool
}

func newScraped(t *testing.T) *scraped {
	t.Helper()
	g := &scraped{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) { g.probes.Add(1) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		g.reads.Add(1)
		switch {
		case g.hangs.Load():
			<-r.Context().Done()
		case g.broken.Load():
			w.WriteHeader(http.StatusInternalServerError)
		default:
			_, _ = io.WriteString(w, "vllm:num_requests_running 1\nsglang:num_running_reqs 10\n")
		}
	})
	g.Server = httptest.NewTestServer(t, mux)
	return g
}

func (g *scraped) endpoint(id, engine string) pool.Endpoint {
	return pool.Endpoint{ID: id, URL: "http://engine.example.com", MaxConcurrency: 8, Engine: engine, Client: g.Client()}
}

func TestLoadIsReadMoreOftenThanHealth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newScraped(t)
		p, s := start(t, pool.Config{Interval: 2 * time.Second}, g.endpoint("a", "vllm"))
		synctest.Sleep(20 * time.Second)
		if n := g.reads.Load(); n < 80 || n > 125 {
			t.Errorf("%d readings in 20 s, want one each 200 ms", n)
		}
		if n := g.probes.Load(); n < 8 || n > 14 {
			t.Errorf("%d probes in 20 s, want one each 2 s", n)
		}
		if age := time.Since(loads(s)["a"].At); age > 300*time.Millisecond {
			t.Errorf("the load is %v old", age)
		}
		p.Set(pool.Settings{Scrape: 50 * time.Millisecond})
		synctest.Sleep(time.Second)
		before := g.reads.Load()
		synctest.Sleep(10 * time.Second)
		if n := g.reads.Load() - before; n < 160 || n > 250 {
			t.Errorf("%d readings in 10 s, want one each 50 ms", n)
		}
	})
}

func TestManyEndpointsAreReadLessOften(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newScraped(t)
		var endpoints []pool.Endpoint
		for i := range 400 {
			endpoints = append(endpoints, g.endpoint(fmt.Sprintf("e%d", i), "vllm"))
		}
		start(t, pool.Config{}, endpoints...)
		g.reads.Store(0)
		synctest.Sleep(10 * time.Second)
		if n := g.reads.Load(); n < 4000 || n > 6000 {
			t.Errorf("%d readings of 400 endpoints in 10 s, want about 500 a second", n)
		}
	})
}

func TestFailingScrapeLeavesHealthAndLastLoadAndIsTriedSeldom(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(g *scraped){
		"it answers 500":        func(g *scraped) { g.broken.Store(true) },
		"it doesn't answer":     func(g *scraped) { g.hangs.Store(true) },
		"it stopped listening":  func(g *scraped) { g.Close() },
		"nothing is wrong here": func(*scraped) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newScraped(t)
				_, s := start(t, pool.Config{Interval: 2 * time.Second, Timeout: time.Second, DownAfter: 1000}, g.endpoint("a", "vllm"))
				health(t, s, scheduler.Healthy)
				fail(g)
				synctest.Sleep(3 * time.Second)
				before, at := g.reads.Load(), loads(s)["a"].At
				synctest.Sleep(10 * time.Second)
				health(t, s, scheduler.Healthy)
				n, l := g.reads.Load()-before, loads(s)["a"]
				if name == "nothing is wrong here" {
					if n < 40 || l.At.Equal(at) {
						t.Errorf("%d readings in 10 s", n)
					}
					return
				}
				if n > 7 || l.Running != 1 || !l.At.Equal(at) {
					t.Errorf("%d readings in 10 s, load %+v: want few, and the last load with its time", n, l)
				}
			})
		})
	}
}

func TestLoadHasTheNamesOfTheEngine(t *testing.T) {
	t.Parallel()
	for engine, want := range map[string]int{"vllm": 1, "sglang": 10, "": 11, "trtllm-serve": 11} {
		t.Run("engine "+engine, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newScraped(t)
				_, s := start(t, pool.Config{}, g.endpoint("a", engine))
				synctest.Wait()
				if got := loads(s)["a"].Running; got != want {
					t.Errorf("%d running, want %d", got, want)
				}
			})
		})
	}
}

func TestFlappingEndpointHasToProveItselfLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newEngine(t, "engine")
		p, s := start(t, pool.Config{Interval: time.Hour, DownAfter: 1, UpAfter: 1}, g.endpoint("a"))
		health(t, s, scheduler.Healthy)
		rise := func() (probes int) {
			g.sick.Store(true)
			_ = p.Probe(t.Context(), "a")
			health(t, s, scheduler.Unhealthy)
			g.sick.Store(false)
			for s.State().Endpoints[0].Health != scheduler.Healthy {
				_ = p.Probe(t.Context(), "a")
				probes++
			}
			return probes
		}
		var got []int
		for range 6 {
			got = append(got, rise())
		}
		synctest.Sleep(11 * time.Hour) // it stood
		got = append(got, rise(), rise())
		if want := "[1 2 4 8 8 8 1 2]"; fmt.Sprint(got) != want {
			t.Errorf("good probes until it was healthy: %v, want %s", got, want)
		}
	})
}

// fed is a source that a test feeds.
type fed struct {
	updates  chan []pool.Found
	watching atomic.Int32
}

func (f *fed) Watch(ctx context.Context, _ *slog.Logger, report func([]pool.Found)) {
	f.watching.Add(1)
	defer f.watching.Add(-1)
	for {
		select {
		case <-ctx.Done():
			return
		case found := <-f.updates:
			report(found)
		}
	}
}

func TestDiscoveredEndpointsJoinThoseThatAreListed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := newEngine(t, "a"), newEngine(t, "b")
		p, s := start(t, pool.Config{}, a.endpoint("a"))
		first, second := &fed{updates: make(chan []pool.Found)}, &fed{updates: make(chan []pool.Found)}
		adopt := func(f pool.Found) pool.Endpoint {
			e := b.endpoint(f.ID)
			e.URL, e.Labels = f.URL, f.Labels
			return e
		}
		expect := func(want string) {
			t.Helper()
			synctest.Wait()
			var ids []string
			for _, e := range s.State().Endpoints {
				ids = append(ids, e.ID+" "+e.Health.String())
			}
			if got := strings.Join(ids, ", "); got != want {
				t.Errorf("endpoints %q, want %q", got, want)
			}
		}
		p.SetDiscovery(first, adopt)
		expect("a healthy")
		first.updates <- []pool.Found{
			{ID: "b", URL: "http://b.example.com"},
			{ID: "a", URL: "http://elsewhere.example.com"}, // its id is taken
			{ID: "again", URL: "http://a.example.com"},     // this one is known already
		}
		expect("a healthy, b healthy")
		p.SetEndpoints(nil) // then the found one has the id
		expect("b healthy, a healthy, again healthy")
		p.SetEndpoints([]pool.Endpoint{a.endpoint("a")})

		p.SetDiscovery(second, adopt) // has found nothing yet
		expect("a healthy, b healthy")
		second.updates <- nil
		expect("a healthy")
		second.updates <- []pool.Found{{ID: "b", URL: "http://b.example.com"}}
		expect("a healthy, b healthy")
		p.SetDiscovery(nil, nil)
		expect("a healthy")
		if first.watching.Load() != 0 || second.watching.Load() != 0 {
			t.Error("a source is watched that nobody asks")
		}
	})
}
