package pool_test

import (
	"fmt"
	"slices"
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
	s.SetLoad("c", scheduler.Load{Running: 3, Waiting: 1, KVUsage: 0.5, At: time.Now()})
	snapshot := func() map[string]pool.Snapshot {
		return map[string]pool.Snapshot{"p": {
			State: s.State(),
			Scale: []pool.Scale{{Role: "decode", Desired: 3, Ready: 2, QueuedTokens: 7}},
		}}
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(pool.NewCollector(snapshot))
	want := `
llm_d_epp_average_kv_cache_utilization{name="p"} 0.5
llm_d_epp_average_queue_size{name="p"} 1
llm_d_epp_average_running_requests{name="p"} 3
llm_d_epp_flow_control_capacity_utilization_bytes{inference_pool="p",priority="10"} 0
llm_d_epp_flow_control_capacity_utilization_requests{inference_pool="p",priority="10"} 0
llm_d_epp_flow_control_dispatch_cycle_duration_seconds{} 2
llm_d_epp_flow_control_global_capacity_utilization_requests{inference_pool="p"} 0
llm_d_epp_flow_control_pending_reclaim{inference_pool="p"} 0
llm_d_epp_flow_control_pool_saturation{inference_pool="p",stage="decode"} 0
llm_d_epp_flow_control_pool_saturation{inference_pool="p",stage="effective"} 0
llm_d_epp_flow_control_reclaim_target{inference_pool="p"} 0
llm_d_epp_flow_control_request_enqueue_duration_seconds{fairness_id="other",outcome="Queued",priority="10"} 0
llm_d_epp_flow_control_revocation_confirmation_seconds{inference_pool="p"} 0
llm_d_epp_flow_control_revocations_issued_total{inference_pool="p",priority="10"} 0
llm_d_epp_flow_control_revocations_total{inference_pool="p",outcome="confirmed"} 0
llm_d_epp_flow_control_revocations_total{inference_pool="p",outcome="timed_out"} 0
llm_d_epp_flow_control_stale_endpoints{detector="concurrency-detector"} 1
llm_d_epp_per_endpoint_queue_size{model_server_endpoint="c",name="p"} 1
llm_d_epp_ready_endpoints{name="p"} 1
llm_d_epp_std_dev_kv_cache_utilization{name="p"} 0
llm_d_epp_std_dev_queue_size{name="p"} 0
llm_d_epp_std_dev_running_requests{name="p"} 0
weir_engine_kv_cache_usage_ratio{endpoint="c",pool="p"} 0.5
weir_engine_running_requests{endpoint="c",pool="p"} 3
weir_engine_waiting_requests{endpoint="c",pool="p"} 1
weir_pool_desired_replicas{pool="p",role="decode"} 3
weir_pool_queued_tokens{pool="p",role="decode"} 7
weir_pool_ready_replicas{pool="p",role="decode"} 2
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

func TestCollectorShowsRevisionsOfSplitPools(t *testing.T) {
	t.Parallel()
	s := scheduler.New(scheduler.Config{}, nil)
	t.Cleanup(s.Close)
	var all []scheduler.Endpoint
	for _, id := range []string{"r1 prefill", "r1 decode", "r2 decode"} {
		revision, role, _ := strings.Cut(id, " ")
		all = append(all, scheduler.Endpoint{ID: id, URL: "http://x.test", Labels: map[string]string{scheduler.RoleLabel: role, scheduler.RevisionLabel: revision}})
	}
	s.SetEndpoints(all)
	for _, tokens := range []int{10_000, 10_000, 10} {
		l, err := s.Schedule(t.Context(), scheduler.Request{InputTokens: tokens})
		if err != nil {
			t.Fatal(err)
		}
		l.End(scheduler.Outcome{})
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(pool.NewCollector(func() map[string]pool.Snapshot { return map[string]pool.Snapshot{"p": {State: s.State()}} }))
	got := gather(t, registry)
	for _, want := range []string{
		`weir_pool_prefills_total{pool="p",where="apart"} 2`, `weir_pool_prefills_total{pool="p",where="together"} 1`,
		`weir_pool_revision_share{pool="p",revision="r1"} 1`, `weir_pool_revision_share{pool="p",revision="r2"} 0`,
		`weir_pool_revision_requests_total{pool="p",revision="r1"} 3`, `weir_pool_revision_requests_total{pool="p",revision="r2"} 0`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// A full band, waiting requests and engines of unequal load, under llm-d's
// names.
func TestCollectorShowsPressureAsLLMDDoes(t *testing.T) {
	t.Parallel()
	band := scheduler.BandState{Priority: -10, Queued: 30, MaxQueued: 40, Bytes: 600, MaxBytes: 1000, Evictions: 3}
	band.Enqueued.Counts[0], band.Enqueued.Counts[10], band.Enqueued.Sum = 4, 1, time.Second
	state := scheduler.State{
		Queued: 30, MaxQueued: 60, QueuedBytes: 600, MaxBytes: 800, Saturation: 1.5, Stale: 1, Detector: scheduler.UtilizationDetector, ReclaimTarget: 2, ReclaimPending: 1,
		Stages:    []scheduler.StageState{{Stage: "prefill", Saturation: 1.5}, {Stage: "decode", Saturation: 0.25}},
		Bands:     []scheduler.BandState{band},
		Endpoints: []scheduler.EndpointState{{ID: "a", Health: scheduler.Healthy}, {ID: "b", Health: scheduler.Unhealthy}, {ID: "c", Circuit: scheduler.CircuitOpen}},
	}
	state.Reclaimed.Counts[9], state.Reclaimed.Sum, state.ReclaimTimedOut = 2, 8*time.Millisecond, 1
	told := state
	told.Endpoints = slices.Clone(state.Endpoints)
	for i, l := range []scheduler.Load{{Waiting: 2, Running: 8, KVUsage: 0.25}, {Waiting: 6, Running: 8, KVUsage: 0.75}} {
		l.At = time.Now()
		told.Endpoints[i].Load = l
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(pool.NewCollector(func() map[string]pool.Snapshot {
		return map[string]pool.Snapshot{"p": {State: told}, "q": {State: state}}
	}))
	got := gather(t, registry)
	for _, want := range []string{
		`flow_control_pool_saturation{inference_pool="p",stage="effective"} 1.5`,
		`flow_control_pool_saturation{inference_pool="p",stage="decode"} 0.25`,
		`flow_control_capacity_utilization_requests{inference_pool="p",priority="-10"} 0.75`,
		`flow_control_capacity_utilization_bytes{inference_pool="p",priority="-10"} 0.6`,
		`flow_control_global_capacity_utilization_requests{inference_pool="p"} 0.5`,
		`flow_control_global_capacity_utilization_bytes{inference_pool="p"} 0.75`,
		`flow_control_revocations_issued_total{inference_pool="q",priority="-10"} 3`,
		`flow_control_revocations_total{inference_pool="q",outcome="confirmed"} 2`,
		`flow_control_revocations_total{inference_pool="q",outcome="timed_out"} 1`,
		`flow_control_reclaim_target{inference_pool="q"} 2`, `flow_control_pending_reclaim{inference_pool="q"} 1`,
		`flow_control_stale_endpoints{detector="utilization-detector"} 2`,
		`flow_control_request_enqueue_duration_seconds{fairness_id="other",outcome="Queued",priority="-10"} 10`,
		`ready_endpoints{name="p"} 1`,
		`average_queue_size{name="p"} 4`, `std_dev_queue_size{name="p"} 2`,
		`average_running_requests{name="p"} 8`, `std_dev_running_requests{name="p"} 0`,
		`average_kv_cache_utilization{name="p"} 0.5`, `std_dev_kv_cache_utilization{name="p"} 0.25`,
	} {
		if !strings.Contains(got, "llm_d_epp_"+want+"\n") {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if strings.Contains(got, `average_queue_size{name="q"}`) {
		t.Error("a pool whose engines say nothing has an average")
	}
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
			// A sample is one of the three; the others are 0.
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			lines = append(lines, fmt.Sprintf("%s{%s} %v", family.GetName(), strings.Join(labels, ","), value))
		}
	}
	return strings.Join(lines, "\n")
}
