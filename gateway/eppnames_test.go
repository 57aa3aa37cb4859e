package gateway_test

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/gateway"
	"weir/scheduler"
	"weir/scheduler/pool"
)

// The metrics of llm-d's router that say something of a gateway, with their
// labels as its documentation lists them. Those that are not here belong to
// parts that Weir doesn't have: the latency predictor, prefill and decode
// apart, the precise prefix index, rewrites of models by Kubernetes, ext_proc.
func llmdMetrics() map[string]string {
	const request, pool = "fairness_id model_name priority target_model_name", "inference_pool"
	all := map[string]string{
		"request_total": request, "request_error_total": "error_code " + request, "request_running": request,
		"request_ttft_seconds":                              "fairness_id model_name priority streaming target_model_name",
		"inflight_requests":                                 "endpoint_name fairness_id namespace priority producer_name",
		"inflight_tokens":                                   "endpoint_name fairness_id namespace priority producer_name",
		"flow_control_request_queue_duration_seconds":       "fairness_id inference_pool model_name outcome priority target_model_name",
		"flow_control_queue_size":                           "fairness_id inference_pool model_name priority target_model_name",
		"flow_control_queue_bytes":                          "fairness_id inference_pool model_name priority target_model_name",
		"flow_control_request_enqueue_duration_seconds":     "fairness_id outcome priority",
		"flow_control_dispatch_cycle_duration_seconds":      "",
		"flow_control_requests_total":                       "inference_pool outcome priority",
		"flow_control_pool_saturation":                      "inference_pool stage",
		"flow_control_stale_endpoints":                      "detector",
		"flow_control_capacity_utilization_requests":        "inference_pool priority",
		"flow_control_capacity_utilization_bytes":           "inference_pool priority",
		"flow_control_global_capacity_utilization_requests": pool,
		"flow_control_global_capacity_utilization_bytes":    pool,
		"flow_control_revocations_issued_total":             "inference_pool priority",
		"flow_control_revocations_total":                    "inference_pool outcome",
		"flow_control_revocation_confirmation_seconds":      pool,
		"flow_control_reclaim_target":                       pool,
		"flow_control_pending_reclaim":                      pool,
		"ready_endpoints":                                   "name", "per_endpoint_queue_size": "model_server_endpoint name",
	}
	for _, name := range []string{
		"duration_seconds", "ntpot_seconds", "streaming_tpot_seconds", "streaming_itl_seconds",
		"size_bytes", "input_tokens", "output_tokens", "cached_tokens",
	} {
		all["request_"+name] = request
	}
	all["response_size_bytes"] = request
	for _, of := range []string{"queue_size", "running_requests", "kv_cache_utilization"} {
		all["average_"+of], all["std_dev_"+of] = "name", "name"
	}
	return all
}

// labelsOf are the labels of each metric of llm-d's that the registry has.
func labelsOf(t *testing.T, r *prometheus.Registry) map[string]string {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, f := range families {
		name, ours := strings.CutPrefix(f.GetName(), "llm_d_epp_")
		if !ours {
			continue
		}
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		all[name] = strings.Join(labels, " ")
	}
	return all
}

func TestMetricsHaveTheNamesAndLabelsOfLLMD(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	e := serve(t, events(chunk("a", 1), usageEvent, doneEvent), answers(400, `{"error":{"message":"no"}}`), func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		hang(w, r)
	})
	h := build(t, []string{e.URL})
	h.pools.queue.SetConfig(scheduler.Config{MaxBytes: 1 << 30})
	h.pools.queue.SetLoad("e1", scheduler.Load{Running: 1, At: time.Now()})
	h.metrics.MustRegister(pool.NewCollector(func() map[string]pool.Snapshot {
		return map[string]pool.Snapshot{poolName: {State: h.pools.queue.State()}}
	}))
	for _, want := range []gateway.Cause{gateway.Success, gateway.UpstreamRefused} {
		if got := causeOf(h.Run(t.Context(), h.call(stream), &caller{})); got != want {
			t.Fatalf("ended as %s, want %s", got, want)
		}
	}
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx, h.call(stream), &caller{}) }()
	<-arrived
	got, want := labelsOf(t, h.metrics), llmdMetrics()
	leave()
	if err := <-ended; causeOf(err) != gateway.ClientGone {
		t.Errorf("the one that ran ended as %v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if labels, has := got[name]; !has {
			t.Errorf("no %s", name)
		} else if labels != want[name] {
			t.Errorf("%s has labels %q, want %q", name, labels, want[name])
		}
	}
	for name := range got {
		if _, known := want[name]; !known {
			t.Errorf("%s is none of llm-d's", name)
		}
	}
}

// What runs counts its prompt until the first token, and a stream's gaps are
// those between pieces of output.
func TestWhatRunsIsCountedAtEachScrape(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var metrics *prometheus.Registry
		running := func() string {
			return samples(t, metrics, "llm_d_epp_inflight") + samples(t, metrics, "llm_d_epp_request_running")
		}
		const at = "{endpoint_name=e1,fairness_id=f_a,namespace=main,priority=0,producer_name=inflight-load-producer}"
		const who = "llm_d_epp_request_running{fairness_id=f_a,model_name=pub,priority=0,target_model_name=org/engine}"
		var before, after string
		_, _, _, err := inBubble(t, then(
			func(http.ResponseWriter, *http.Request) { before = running() },
			events(chunk("a", 1)), wait(time.Second), events(chunk("b", 2)), wait(time.Second),
			func(http.ResponseWriter, *http.Request) { after = running() },
			events(usageEvent, doneEvent),
		), stream, func(h *house) { metrics = h.metrics })
		if err != nil {
			t.Fatal(err)
		}
		if want := "llm_d_epp_inflight_requests" + at + " 1\nllm_d_epp_inflight_tokens" + at + " 16\n" + who + " 1\n"; before != want {
			t.Errorf("before the first token:\n%swant\n%s", before, want)
		}
		if want := "llm_d_epp_inflight_requests" + at + " 1\nllm_d_epp_inflight_tokens" + at + " 0\n" + who + " 1\n"; after != want {
			t.Errorf("after it:\n%swant\n%s", after, want)
		}
		if got, want := running(), who+" 0\n"; got != want {
			t.Errorf("at the end:\n%swant\n%s", got, want)
		}
		if n, sum := histogram(t, metrics, "llm_d_epp_request_streaming_itl_seconds"); n != 1 || sum != 1 {
			t.Errorf("%d gaps of %v s in sum, want one of a second", n, sum)
		}
	})
}

// histogram is the count and the sum of the one series of a histogram.
func histogram(t *testing.T, r *prometheus.Registry, name string) (n uint64, sum float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			h := f.GetMetric()[0].GetHistogram()
			return h.GetSampleCount(), h.GetSampleSum()
		}
	}
	return 0, 0
}
