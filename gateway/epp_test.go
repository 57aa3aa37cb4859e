package gateway_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"weir/gateway"
	"weir/scheduler"
	"weir/tenants"
)

// samples are the metrics of a name prefix, a line each: a histogram by its
// count.
func samples(t *testing.T, r *prometheus.Registry, prefix string) string {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if !strings.HasPrefix(f.GetName(), prefix) {
				continue
			}
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			fmt.Fprintf(&b, "%s{%s} %g\n", f.GetName(), strings.Join(labels, ","), value)
		}
	}
	return b.String()
}

func TestRequestsAreCountedUnderLLMDsNames(t *testing.T) {
	t.Parallel()
	e := serve(t, events(chunk("a", 1), chunk("b", 2), usageEvent, doneEvent), answers(200, document), answers(400, `{"error":{"message":"no"}}`))
	h := build(t, []string{e.URL})
	run := func(change func(*gateway.Call), want gateway.Cause) {
		if got := causeOf(h.Run(t.Context(), h.call(change), &caller{})); got != want {
			t.Errorf("ended as %s, want %s", got, want)
		}
	}
	run(stream, gateway.Success)
	run(nil, gateway.Success)
	run(nil, gateway.UpstreamRefused)
	run(func(c *gateway.Call) { c.Model = "nothing" }, gateway.ModelNotFound)
	h.pools.other = refusing{&scheduler.Refusal{Reason: scheduler.BandFull}}
	run(nil, gateway.BandFull)

	const who = "fairness_id=f_a,model_name=pub,priority=0,target_model_name=org/engine"
	got := samples(t, h.metrics, "llm_d_epp_")
	for _, want := range []string{
		"llm_d_epp_request_total{" + who + "} 4",
		"llm_d_epp_request_error_total{error_code=upstream_rejected," + who + "} 1",
		"llm_d_epp_request_error_total{error_code=band_full," + who + "} 1",
		"llm_d_epp_request_duration_seconds{" + who + "} 3",
		"llm_d_epp_request_ttft_seconds{" + who[:len("fairness_id=f_a,model_name=pub,priority=0,")] + "streaming=true,target_model_name=org/engine} 1",
		"llm_d_epp_request_ttft_seconds{" + who[:len("fairness_id=f_a,model_name=pub,priority=0,")] + "streaming=false,target_model_name=org/engine} 1",
		"llm_d_epp_request_streaming_tpot_seconds{" + who + "} 1",
		"llm_d_epp_request_ntpot_seconds{" + who + "} 2",
		"llm_d_epp_request_input_tokens{" + who + "} 2",
		"llm_d_epp_request_output_tokens{" + who + "} 2",
		"llm_d_epp_request_cached_tokens{" + who + "} 2",
		"llm_d_epp_request_size_bytes{" + who + "} 3",
		"llm_d_epp_response_size_bytes{" + who + "} 2",
		"llm_d_epp_request_running{" + who + "} 0",
		"llm_d_epp_flow_control_requests_total{inference_pool=main,outcome=Dispatched,priority=0} 3",
		"llm_d_epp_flow_control_requests_total{inference_pool=main,outcome=RejectedCapacity,priority=0} 1",
		"llm_d_epp_flow_control_request_queue_duration_seconds{fairness_id=f_a,inference_pool=main,model_name=pub,outcome=Dispatched,priority=0,target_model_name=org/engine} 3",
		"llm_d_epp_flow_control_queue_size{fairness_id=f_a,inference_pool=main,model_name=pub,priority=0,target_model_name=org/engine} 0",
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
}

func TestWhatWaitsIsCountedAtEachScrape(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := build(t, []string{"http://engine.test"}, func(h *house) { h.plan.Limits.Concurrency = 0 })
		free := busy(t, h)
		ctx, leave := context.WithCancel(t.Context())
		ends := make(chan error)
		for i := range 3 {
			go func() {
				ends <- h.Run(ctx, h.call(func(c *gateway.Call) { c.ID = fmt.Sprintf("req_%d", i) }), &caller{})
			}()
		}
		synctest.Wait()
		got := samples(t, h.metrics, "llm_d_epp_flow_control_queue_")
		bytes := 3 * len(h.pools.requests[0].Body)
		const labels = "{fairness_id=f_a,inference_pool=main,model_name=pub,priority=0,target_model_name=org/engine}"
		if want := fmt.Sprintf("llm_d_epp_flow_control_queue_bytes%s %d\nllm_d_epp_flow_control_queue_size%s 3\n", labels, bytes, labels); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		leave()
		for range 3 {
			if got := causeOf(<-ends); got != gateway.ClientGone {
				t.Errorf("ended as %s", got)
			}
		}
		free()
		got = samples(t, h.metrics, "llm_d_epp_flow_control_")
		for _, want := range []string{"queue_size" + labels + " 0\n", "queue_bytes" + labels + " 0\n", "requests_total{inference_pool=main,outcome=EvictedContextCancelled,priority=0} 3\n"} {
			if !strings.Contains(got, want) {
				t.Errorf("no %s in %s", want, got)
			}
		}
	})
}

func TestMetricsTellABoundedNumberOfTenantsApart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		most  int
		shown []string
		other string
	}{
		{"the first two, then none", 2, []string{"fairness_id=f_0,", "fairness_id=f_1,"}, "} 3\n"},
		{"none at all", -1, nil, "} 5\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := build(t, []string{serve(t, answers(200, document)).URL}, func(h *house) { h.config.FairnessIDs = tt.most })
			for i := range 5 {
				c := h.call(nil)
				c.Principal = &tenants.Principal{Tenant: "ten_a", Project: "prj_a", Key: "key_a", Plan: h.plan, FairnessID: fmt.Sprintf("f_%d", i)}
				if err := h.Run(t.Context(), c, &caller{}); err != nil {
					t.Fatal(err)
				}
			}
			got := samples(t, h.metrics, "llm_d_epp_request_total")
			for _, want := range append(tt.shown, "fairness_id=other,") {
				if !strings.Contains(got, want) {
					t.Errorf("no %s in %s", want, got)
				}
			}
			if lines := strings.Count(got, "\n"); lines != len(tt.shown)+1 || !strings.Contains(got, tt.other) {
				t.Errorf("%d lines: %s", lines, got)
			}
		})
	}
}
