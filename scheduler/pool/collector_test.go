package pool_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"weir/scheduler"
	"weir/scheduler/pool"
)

func TestCollectorShowsWhatTheSchedulerHolds(t *testing.T) {
	t.Parallel()
	s := scheduler.New(scheduler.Config{MaxFlowQueued: -1}, nil)
	t.Cleanup(s.Close)
	s.SetEndpoints([]scheduler.Endpoint{{ID: "a", URL: "http://a.test", MaxConcurrency: 1}})
	s.SetHealth("a", scheduler.Healthy)
	r := scheduler.Request{Flow: scheduler.Flow{FairnessID: "tenant-secret", Band: 10}}
	l, err := s.Schedule(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Schedule(t.Context(), r); err == nil {
		t.Fatal("a flow without places took a request")
	}
	// The endpoint moves: the old server drains under the same id.
	s.SetEndpoints([]scheduler.Endpoint{{ID: "a", URL: "http://b.test", MaxConcurrency: 4}, {ID: "c", Draining: true, MaxConcurrency: 2}})
	snapshot := func() map[string]pool.Snapshot {
		return map[string]pool.Snapshot{"p": {
			State: s.State(),
			Loads: map[string]scheduler.Load{"c": {Running: 3, Waiting: 1, KVUsage: 0.5, At: time.Now()}},
		}}
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(pool.NewCollector(snapshot))
	want := `
weir_engine_kv_cache_usage_ratio{endpoint="c",pool="p"} 0.5
weir_engine_running_requests{endpoint="c",pool="p"} 3
weir_engine_waiting_requests{endpoint="c",pool="p"} 1
weir_scheduler_dispatched_requests_total{band="10",pool="p"} 1
weir_scheduler_endpoint_circuit_open{endpoint="a",pool="p"} 0
weir_scheduler_endpoint_circuit_open{endpoint="c",pool="p"} 0
weir_scheduler_endpoint_draining{endpoint="a",pool="p"} 0
weir_scheduler_endpoint_draining{endpoint="c",pool="p"} 1
weir_scheduler_endpoint_healthy{endpoint="a",pool="p"} 0.5
weir_scheduler_endpoint_healthy{endpoint="c",pool="p"} 0.5
weir_scheduler_endpoint_max_concurrency{endpoint="a",pool="p"} 4
weir_scheduler_endpoint_max_concurrency{endpoint="c",pool="p"} 2
weir_scheduler_live_leases{endpoint="a",pool="p"} 1
weir_scheduler_live_leases{endpoint="c",pool="p"} 0
weir_scheduler_queue_wait_seconds_total{band="10",pool="p"} 0
weir_scheduler_queued_requests{band="10",pool="p"} 0
weir_scheduler_refused_requests_total{band="10",pool="p",reason="flow_full"} 1
`
	if diff := cmp.Diff(strings.TrimSpace(want), gather(t, registry)); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	l.End(scheduler.Outcome{})
}

// gather prints the samples, a line each.
func gather(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			// A sample is one of the two; the other is 0.
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue()
			lines = append(lines, fmt.Sprintf("%s{%s} %v", family.GetName(), strings.Join(labels, ","), value))
		}
	}
	return strings.Join(lines, "\n")
}
