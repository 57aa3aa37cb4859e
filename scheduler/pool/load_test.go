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
