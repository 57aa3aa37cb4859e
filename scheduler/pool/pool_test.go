//go:build go1.27

// The tests use an in-memory test server, which Go has from 1.27 on.

package pool_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/scheduler"
	"weir/scheduler/pool"
)

// engine is a model server's operational face.
type engine struct {
	*httptest.Server

	host    string
	sick    atomic.Bool // answers 500
	hangs   atomic.Bool // answers not at all
	probes  atomic.Int32
	metrics atomic.Value // string
}

func newEngine(t *testing.T, host string) *engine {
	t.Helper()
	g := &engine{host: host}
	g.metrics.Store("")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		g.probes.Add(1)
		switch {
		case g.hangs.Load():
			<-r.Context().Done()
		case g.sick.Load():
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, g.metrics.Load().(string))
	})
	g.Server = httptest.NewTestServer(t, mux)
	return g
}

func (g *engine) endpoint(id string) pool.Endpoint {
	return pool.Endpoint{
		ID: id, URL: "http://" + g.host + ".example.com", MaxConcurrency: 8,
		Client: g.Client(),
	}
}

// start runs a pool with a real scheduler until the test ends.
func start(t *testing.T, cfg pool.Config, endpoints ...pool.Endpoint) (*pool.Pool, *scheduler.Embedded) {
	t.Helper()
	s := scheduler.New(scheduler.Config{}, nil)
	t.Cleanup(s.Close)
	p := pool.New(slog.New(slog.DiscardHandler), cfg, s)
	p.SetEndpoints(endpoints)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	synctest.Wait()
	return p, s
}

func health(t *testing.T, s *scheduler.Embedded, want ...scheduler.Health) {
	t.Helper()
	synctest.Wait()
	var got []scheduler.Health
	for _, p := range s.State().Endpoints {
		got = append(got, p.Health)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("health after %v (-want +got):\n%s", time.Now().Format(time.TimeOnly), diff)
	}
}

// loads are those that the scheduler was told.
func loads(s *scheduler.Embedded) map[string]scheduler.Load {
	told := map[string]scheduler.Load{}
	for _, e := range s.State().Endpoints {
		if !e.Load.At.IsZero() {
			told[e.ID] = e.Load
		}
	}
	return told
}

func TestEndpointGoesDownAndComesUpWithoutFlapping(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newEngine(t, "engine")
		_, s := start(t, pool.Config{Interval: time.Second, DownAfter: 3, UpAfter: 2}, g.endpoint("a"))
		health(t, s, scheduler.Healthy) // at once

		probe := func() { // one more of them, whatever the jitter
			for n := g.probes.Load(); g.probes.Load() == n; {
				synctest.Sleep(100 * time.Millisecond)
			}
		}
		probe()
		g.sick.Store(true)
		probe()
		probe()
		health(t, s, scheduler.Healthy)
		g.sick.Store(false)
		probe()
		g.sick.Store(true)
		probe()
		probe()
		health(t, s, scheduler.Healthy) // never three in a row
		probe()
		health(t, s, scheduler.Unhealthy)

		g.sick.Store(false)
		probe()
		health(t, s, scheduler.Unhealthy)
		g.sick.Store(true)
		probe()
		g.sick.Store(false)
		probe()
		health(t, s, scheduler.Unhealthy)
		probe()
		health(t, s, scheduler.Healthy)
	})
}

func TestHangingEndpointIsFoundWithinTheTimeLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		good, bad := newEngine(t, "good"), newEngine(t, "bad")
		bad.hangs.Store(true)
		_, s := start(t, pool.Config{Interval: time.Second, Timeout: 2 * time.Second, DownAfter: 2}, good.endpoint("good"), bad.endpoint("bad"))
		health(t, s, scheduler.Healthy, scheduler.Unknown)
		synctest.Sleep(6 * time.Second)
		health(t, s, scheduler.Healthy, scheduler.Unhealthy)
		if n := good.probes.Load(); n < 5 {
			t.Errorf("the good endpoint was probed %d times beside a hanging one, want at least 5", n)
		}
	})
}

func TestDeadEndpointIsUnhealthy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newEngine(t, "engine")
		p, s := start(t, pool.Config{}, g.endpoint("a"))
		g.Close()
		if err := p.Probe(t.Context(), "a"); err == nil {
			t.Error("a closed server passed its probe")
		}
		synctest.Sleep(10 * time.Second)
		health(t, s, scheduler.Unhealthy)
	})
}

func TestEndpointsAreFollowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := newEngine(t, "first"), newEngine(t, "second")
		p, s := start(t, pool.Config{Interval: time.Second}, first.endpoint("a"))
		lease, err := s.Schedule(t.Context(), scheduler.Request{ID: "r"})
		if err != nil {
			t.Fatal(err)
		}
		p.SetEndpoints([]pool.Endpoint{second.endpoint("b")})
		synctest.Sleep(10 * time.Millisecond)
		before := first.probes.Load()
		synctest.Sleep(5 * time.Second)
		if n := first.probes.Load(); n != before {
			t.Errorf("a removed endpoint was probed %d more times", n-before)
		}
		health(t, s, scheduler.Healthy, scheduler.Healthy) // b, and a while it drains
		lease.End(scheduler.Outcome{})
		health(t, s, scheduler.Healthy)
		if err := p.Probe(t.Context(), "a"); !errors.Is(err, pool.ErrUnknownEndpoint) {
			t.Errorf("probe of a removed endpoint: %v, want %v", err, pool.ErrUnknownEndpoint)
		}

		moved := first.endpoint("b")
		first.sick.Store(true)
		p.SetEndpoints([]pool.Endpoint{moved})
		health(t, s, scheduler.Unknown)
		synctest.Sleep(4 * time.Second)
		health(t, s, scheduler.Unhealthy)

		grown := moved
		grown.MaxConcurrency = 16
		probes := first.probes.Load()
		p.SetEndpoints([]pool.Endpoint{grown, second.endpoint("b")})
		health(t, s, scheduler.Unhealthy) // the same server: what is known stays
		if n := first.probes.Load(); n != probes {
			t.Error("a new limit started the probes anew")
		}
	})
}

func TestProbesOnDemandAreSharedAndCount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newEngine(t, "engine")
		p, s := start(t, pool.Config{Interval: time.Hour, Timeout: time.Second, DownAfter: 2}, g.endpoint("a"))
		health(t, s, scheduler.Healthy)
		if err := p.Probe(t.Context(), "a"); err != nil {
			t.Errorf("probe of a healthy endpoint: %v", err)
		}
		g.hangs.Store(true)
		before := g.probes.Load()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if err := p.Probe(t.Context(), "a"); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("probe of a hanging endpoint: %v, want its time limit", err)
				}
			})
		}
		synctest.Wait() // one hangs, and all wait for it
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Probe(gone, "a"); !errors.Is(err, context.Canceled) {
			t.Errorf("probe for a caller who has left: %v, want %v", err, context.Canceled)
		}
		all.Wait()
		if n := g.probes.Load() - before; n != 1 {
			t.Errorf("%d probes for 51 who asked at once, want 1", n)
		}
		health(t, s, scheduler.Healthy) // 51 callers, one failure
		_ = p.Probe(t.Context(), "a")
		health(t, s, scheduler.Unhealthy)
	})
}

func TestProbeWhoseCallerLeavesIsTakenOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newEngine(t, "engine")
		p, s := start(t, pool.Config{Interval: time.Hour, Timeout: time.Second, DownAfter: 1}, g.endpoint("a"))
		health(t, s, scheduler.Healthy)
		g.hangs.Store(true)
		before := g.probes.Load()
		ctx, leave := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- p.Probe(ctx, "a") }()
		synctest.Wait()
		go func() { second <- p.Probe(t.Context(), "a") }()
		synctest.Wait()
		g.hangs.Store(false)
		leave()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("the first, who left, got %v, want %v", err, context.Canceled)
		}
		if err := <-second; err != nil {
			t.Errorf("the second got %v, want its own good probe", err)
		}
		if n := g.probes.Load() - before; n != 2 {
			t.Errorf("%d probes, want 2", n)
		}
		health(t, s, scheduler.Healthy) // what was cut short counts for nothing
	})
}

func TestEndpointsMayChangeWhileTheyAreProbed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := newEngine(t, "a"), newEngine(t, "b")
		p, s := start(t, pool.Config{Interval: time.Millisecond}, a.endpoint("a"))
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				for n := range 50 {
					if (n+i)%2 == 0 {
						p.SetEndpoints([]pool.Endpoint{a.endpoint("a"), b.endpoint("b")})
					} else {
						p.SetEndpoints([]pool.Endpoint{b.endpoint("b")})
					}
					_ = p.Probe(t.Context(), "b")
					<-time.After(time.Millisecond)
				}
			})
		}
		all.Wait()
		p.SetEndpoints([]pool.Endpoint{a.endpoint("a"), b.endpoint("b")})
		synctest.Sleep(time.Second)
		health(t, s, scheduler.Healthy, scheduler.Healthy)
	})
}

func TestProbesOfManyAreSpread(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newEngine(t, "engine")
		var endpoints []pool.Endpoint
		for i := range 50 {
			endpoints = append(endpoints, g.endpoint(fmt.Sprintf("e%d", i)))
		}
		start(t, pool.Config{Interval: 10 * time.Second}, endpoints...)
		g.probes.Store(0)
		synctest.Sleep(9 * time.Second)
		if n := g.probes.Load(); n == 0 || n == 50 {
			t.Errorf("%d of 50 endpoints were probed in the first 9 s of 8 to 12, want some", n)
		}
		synctest.Sleep(3100 * time.Millisecond)
		if n := g.probes.Load(); n < 50 {
			t.Errorf("%d probes of 50 endpoints after 12.1 s, want all", n)
		}
	})
}

func TestLoadIsReadFromEveryKnownEngine(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, page string
		want       map[string]scheduler.Load
	}{
		{"vLLM", `# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:prompt_tokens_total{model_name="m"} 1.5e+06
`, map[string]scheduler.Load{"a": {Running: 7, Waiting: 3, KVUsage: 0.25}}},
		{"ranks add up and the fullest cache counts", `vllm:num_requests_running{engine="0"} 7
vllm:num_requests_running{engine="1"} 5
vllm:kv_cache_usage_perc{engine="0"} 0.9
vllm:kv_cache_usage_perc{engine="1"} 0.1 1700000000000
`, map[string]scheduler.Load{"a": {Running: 12, KVUsage: 0.9}}},
		{"SGLang", "sglang:num_running_reqs{model_name=\"a b}c\"} 2\nsglang:num_queue_reqs{} 1\nsglang:token_usage 0.5\n", map[string]scheduler.Load{"a": {Running: 2, Waiting: 1, KVUsage: 0.5}}},
		{"vLLM's cache, ranks added up", `vllm:num_requests_running 1
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",num_gpu_blocks="7000"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="7000",x="y"} 1.0
`, map[string]scheduler.Load{"a": {Running: 1, BlockSize: 16, Blocks: 14_000}}},
		{"a cache that isn't known yet", "vllm:num_requests_running 1\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1.0\n", map[string]scheduler.Load{"a": {Running: 1, BlockSize: 16}}},
		{"SGLang's cache as labels", "sglang:num_running_reqs 1\nsglang:cache_config_info{page_size=\"64\",num_pages=\"900\"} 1.0\n", map[string]scheduler.Load{"a": {Running: 1, BlockSize: 64, Blocks: 900}}},
		{"SGLang's cache as gauges", "sglang:num_running_reqs 1\nsglang:page_size 64\nsglang:num_pages{tp_rank=\"0\"} 900\n", map[string]scheduler.Load{"a": {Running: 1, BlockSize: 64, Blocks: 900}}},
		{"a cache can't be fuller than full", "vllm:kv_cache_usage_perc 87\n", map[string]scheduler.Load{"a": {KVUsage: 1}}},
		{"llama.cpp", "llamacpp:requests_processing 1\nllamacpp:requests_deferred 4\n", map[string]scheduler.Load{"a": {Running: 1, Waiting: 4}}},
		{"lines that are none", "vllm:num_requests_running\nvllm:num_requests_running{\nvllm:num_requests_running nan\nvllm:num_requests_running -1\nvllm:num_requests_running 1e300\n\n{\nvllm:num_requests_waiting 2\n", map[string]scheduler.Load{"a": {Waiting: 2}}},
		{"another program's page", "go_goroutines 5\n", map[string]scheduler.Load{}},
		{"no page", "", map[string]scheduler.Load{}},
		{"a line without end", "vllm:num_requests_running " + strings.Repeat("1", 1<<20), map[string]scheduler.Load{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := newEngine(t, "engine")
				g.metrics.Store(tt.page)
				_, s := start(t, pool.Config{}, g.endpoint("a"))
				health(t, s, scheduler.Healthy)
				now := time.Now()
				for id, l := range tt.want {
					l.At = now
					tt.want[id] = l
				}
				if diff := cmp.Diff(tt.want, loads(s)); diff != "" {
					t.Errorf("loads (-want +got):\n%s", diff)
				}
				g.metrics.Store("broken")
				synctest.Sleep(10 * time.Second)
				if diff := cmp.Diff(tt.want, loads(s)); diff != "" {
					t.Errorf("loads after a page that can't be read (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("vllm:num_requests_running{a=\"}\"} 1 2\n")
	f.Fuzz(func(t *testing.T, page string) {
		if l, err := pool.ParseLoad(page, ""); err == nil && (l.Running < 0 || l.Waiting < 0 || l.KVUsage < 0) {
			t.Errorf("load %+v", l)
		}
	})
}
