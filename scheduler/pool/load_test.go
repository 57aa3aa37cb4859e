package pool_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/scheduler"
	"weir/scheduler/enginesim"
	"weir/scheduler/pool"
)

// metricsOf reads a simulated engine's page.
func metricsOf(tb testing.TB, names enginesim.MetricNames) string {
	tb.Helper()
	sim := enginesim.New(enginesim.Config{KVBlocks: 1000, MetricNames: names})
	tb.Cleanup(sim.Close)
	w := httptest.NewRecorder()
	sim.ServeHTTP(w, httptest.NewRequestWithContext(tb.Context(), http.MethodGet, "/metrics", http.NoBody))
	return w.Body.String()
}

func TestSimulatedEnginesAreReadByTheirNames(t *testing.T) {
	t.Parallel()
	for _, names := range []enginesim.MetricNames{enginesim.VLLM, enginesim.SGLang} {
		page := metricsOf(t, names)
		for _, engine := range []string{string(names), "sim"} {
			got, err := pool.ParseLoad(page, engine)
			if diff := cmp.Diff(scheduler.Load{BlockSize: 16, Blocks: 1000}, got); err != nil || diff != "" {
				t.Errorf("%s read as %s: %v (-want +got):\n%s", names, engine, err, diff)
			}
		}
	}
	if l, err := pool.ParseLoad(metricsOf(t, enginesim.VLLM), "sglang"); err == nil {
		t.Errorf("vLLM's page read as SGLang's: %+v", l)
	}
}

func TestRanksAreReadApartWhereAPageTellsThem(t *testing.T) {
	t.Parallel()
	const unlabelled = "vllm:num_requests_running 4\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"500\"} 1\n"
	simulated := func(names enginesim.MetricNames) string {
		sim := enginesim.New(enginesim.Config{KVBlocks: 1000, MetricNames: names, Ranks: 2})
		t.Cleanup(sim.Close)
		w := httptest.NewRecorder()
		sim.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
		return w.Body.String()
	}
	one := scheduler.Load{BlockSize: 16, Blocks: 1000}
	for _, tt := range []struct {
		name, page string
		ranks      int
		whole      scheduler.Load
		each       []scheduler.Load
	}{
		{"vLLM's", simulated(enginesim.VLLM), 2, scheduler.Load{BlockSize: 16, Blocks: 2000}, []scheduler.Load{one, one}},
		{"SGLang's", simulated(enginesim.SGLang), 2, scheduler.Load{BlockSize: 16, Blocks: 2000}, []scheduler.Load{one, one}},
		{"an engine of one rank", simulated(enginesim.VLLM), 1, scheduler.Load{BlockSize: 16, Blocks: 2000}, nil},
		{"fewer ranks than there should be", simulated(enginesim.VLLM), 3, scheduler.Load{BlockSize: 16, Blocks: 2000}, nil},
		{"a page that tells none apart", unlabelled, 2, scheduler.Load{Running: 4, BlockSize: 16, Blocks: 500}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			whole, each, err := pool.ParseRanks(tt.page, "", tt.ranks)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.whole, whole); diff != "" {
				t.Errorf("whole (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.each, each); diff != "" {
				t.Errorf("each (-want +got):\n%s", diff)
			}
		})
	}
}

// A page as long as a busy vLLM's: what a reading costs decides how often one
// can be afforded.
func BenchmarkLoad(b *testing.B) {
	page := metricsOf(b, enginesim.VLLM)
	histogram := strings.Repeat("vllm:request_prefill_time_seconds_bucket{engine=\"0\",le=\"0.25\",model_name=\"org/chat-8b\"} 1234.0\n", 600)
	page = histogram + page
	read := pool.LoadReader("vllm")
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := read(strings.NewReader(page)); err != nil {
			b.Fatal(err)
		}
	}
}
