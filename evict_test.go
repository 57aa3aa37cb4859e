package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// evictingCatalogue has room for one request at a time, which a higher band may
// take from a negative one.
const evictingCatalogue = `apiVersion: weir/v1
bands: [{name: interactive, priority: 100}, {name: standard, priority: 0}, {name: night, priority: -10}]
plans: {basic: {bands: {default: standard, priority: interactive, flex: night}, weight: 1}}
pools:
  - name: main
    scheduler:
      apiVersion: llm-d.ai/v1
      kind: EndpointPickerConfig
      featureGates: [flowControl]
      plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 1}}]
      flowControl: {saturationDetector: {pluginRef: concurrency-detector}, enableEviction: true}
    endpoints: [{id: a, url: "ENGINE", engine: sim}]
models: [{name: org/chat-1, engine_model: sim-chat, operations: [chat], routes: [{pool: main}]}]
prices: [{model: org/chat-1, input: "0.10", output: "0.40"}]
`

// A request of a negative band that runs gives way to one of a higher band: its
// stream ends with an error, nobody pays for it, and the operator is told why
// the other one waited and where it went.
func TestAnEvictedRequestEndsWithAnErrorAndIsFree(t *testing.T) {
	t.Parallel()
	w := &whole{sound: startEngine(t)}
	w.installation = installWith(t, strings.ReplaceAll(evictingCatalogue, "ENGINE", w.sound))
	w.url, _ = w.serve(t)
	low, err := post(t.Context(), w.url+"/v1/chat/completions", w.key, chatWith("org/chat-1", `"stream":true,"service_tier":"flex","max_tokens":5000,"min_tokens":5000`))
	if err != nil {
		t.Fatal(err)
	}
	defer low.Body.Close()
	begun := make([]byte, 400) // beyond the first event: it can't begin anew
	if _, err := io.ReadFull(low.Body, begun); err != nil {
		t.Fatal(err)
	}

	high := w.chat(t, "org/chat-1", `"service_tier":"priority","max_tokens":2`)
	if high.status != http.StatusOK {
		t.Fatalf("the higher band was answered %d: %s", high.status, high.text)
	}
	rest, err := io.ReadAll(low.Body)
	if err != nil {
		t.Fatalf("the stream broke off instead of ending: %v", err)
	}
	if text := string(rest); !strings.Contains(text, `"error"`) || !strings.Contains(text, "gave way to others") {
		t.Errorf("the stream ends with %q", text[max(0, len(text)-400):])
	}

	if r := w.receipt(t, low.Header.Get("X-Request-Id")); r.Outcome != "evicted" || r.CostNano != 0 || r.Usage.Output != 0 {
		t.Errorf("the receipt of what was evicted: %+v", r)
	}
	if r := w.receipt(t, high.id); r.Outcome != "completed" || r.CostNano == 0 || r.Band != "interactive" {
		t.Errorf("the receipt of what took its place: %+v", r)
	}
	environment := append([]string{"WEIR_OPS_URLS=" + strings.TrimPrefix(w.ops, "http://")}, w.environment...)
	out := runWeir(t, w.dir, environment, "explain", high.id)
	for _, want := range []string{"band interactive (100)", "held        with the pool at 1.00", "went to     a"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the explanation:\n%s", want, out)
		}
	}
	if metrics := w.metrics(t); !strings.Contains(metrics, `llm_d_epp_flow_control_revocations_issued_total{inference_pool="main",priority="100"} 1`) {
		t.Error("the metrics show no eviction")
	}
}
