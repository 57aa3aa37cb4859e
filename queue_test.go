package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// narrowCatalogue has room for one request at a time.
const narrowCatalogue = `apiVersion: weir/v1
bands: [{name: standard, priority: 0}]
plans: {basic: {bands: {default: standard}, weight: 1, reserved_tokens: 100, ttft_ms: 500}}
pools: [{name: main, scheduler: {max_concurrency: 1}, endpoints: [{id: a, url: "ENGINE", engine: sim}]}]
models: [{name: org/chat-1, engine_model: sim-chat, operations: [chat], routes: [{pool: main}]}]
prices: [{model: org/chat-1, input: "0.10", output: "0.40"}]
`

// queued is /v1/queue.
type queued struct {
	Data []struct {
		ID         string `json:"id"`
		ClientID   string `json:"client_request_id"`
		ResponseID string `json:"response_id"`
		Model      string
		Band       string
		Waited     float64
		Position   *int
	}
	More bool `json:"has_more"`
}

// A request that waits is seen by its project, explained to the operator, and
// tells afterwards how long it waited: in a header, in its usage, in metrics
// and in its receipt.
func TestARequestThatWaitsIsExplained(t *testing.T) {
	t.Parallel()
	w := &whole{sound: startEngine(t)}
	w.installation = installWith(t, strings.ReplaceAll(narrowCatalogue, "ENGINE", w.sound))
	w.url, _ = w.serve(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	running, err := post(ctx, w.url+"/v1/chat/completions", w.key, chatWith("org/chat-1", `"stream":true,"max_tokens":5000,"min_tokens":5000`))
	if err != nil {
		t.Fatal(err)
	}
	defer running.Body.Close()
	if _, err := io.ReadFull(running.Body, make([]byte, 100)); err != nil {
		t.Fatal(err)
	}

	answers := make(chan answer, 1)
	go func() {
		answers <- w.chat(t, "org/chat-1", `"max_tokens":1`, "X-Client-Request-Id", "job-7", "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	}()
	var list queued
	eventually(t, 20*time.Second, func() string {
		list = queued{}
		if status := getJSON(t, w.url+"/v1/queue?request=job-7", w.key, &list); status != http.StatusOK || len(list.Data) != 1 {
			return "it is not shown as waiting"
		}
		return ""
	})
	shown := list.Data[0]
	if shown.ClientID != "job-7" || shown.Model != "org/chat-1" || shown.Band != "standard" || shown.Position == nil || *shown.Position != 1 || list.More {
		t.Errorf("shown as %+v", list)
	}
	if status := getJSON(t, w.url+"/v1/queue?request=job-8", w.key, &list); status != http.StatusOK || len(list.Data) != 0 {
		t.Errorf("another name finds %+v", list)
	}
	stranger := lastWord(runWeir(t, w.dir, w.environment, "tenant", "create", "other", "--plan", "basic", "--quiet"))
	strangersKey := lastWord(runWeir(t, w.dir, w.environment, "key", "create", "--tenant", stranger, "--name", "x", "--quiet"))
	if status := getJSON(t, w.url+"/v1/queue", strangersKey, &list); status != http.StatusOK || len(list.Data) != 0 {
		t.Errorf("another tenant sees %+v", list)
	}
	environment := append([]string{"WEIR_OPS_URLS=" + strings.TrimPrefix(w.ops, "http://")}, w.environment...)
	if out := runWeir(t, w.dir, environment, "explain", shown.ID); !strings.Contains(out, shown.ID+" waits at ") || !strings.Contains(out, "with about 0 before it") {
		t.Errorf("explained while it waits:\n%s", out)
	}

	leave()
	a := <-answers
	if a.status != http.StatusOK || a.id != shown.ID {
		t.Fatalf("answered %d as %s: %s", a.status, a.id, a.text)
	}
	var body struct {
		Usage struct {
			QueueTime float64 `json:"queue_time"`
		} `json:"usage"`
	}
	if err := json.Unmarshal([]byte(a.text), &body); err != nil || body.Usage.QueueTime <= 0 {
		t.Errorf("usage tells no queue time: %s", a.text)
	}
	if ms := a.header.Get("X-Weir-Queue-Ms"); ms == "" || ms == "0" || a.header.Get("X-Weir-Band") != "standard" {
		t.Errorf("headers %v", a.header)
	}
	if r := w.receipt(t, a.id); r.QueueTime.Seconds() < body.Usage.QueueTime-0.001 || r.QueueTime.Seconds() > body.Usage.QueueTime+0.001 {
		t.Errorf("the receipt says %v, the usage %v s", r.QueueTime, body.Usage.QueueTime)
	}
	if got := arrivedAt(t, w.sound, a.id).Header; got.Get("Traceparent") != "" {
		t.Errorf("the caller's trace goes on at the engine: %v", got)
	}
	out := runWeir(t, w.dir, environment, "explain", a.id)
	if !regexp.MustCompile(`waited +[0-9.]+m?s, at the end because `).MatchString(out) || !strings.Contains(out, "went to     a") {
		t.Errorf("explained afterwards:\n%s", out)
	}
	metrics := w.metrics(t)
	for _, want := range []string{
		`llm_d_epp_flow_control_requests_total{inference_pool="main",outcome="Dispatched",priority="0"} 2`,
		`llm_d_epp_flow_control_pool_saturation{inference_pool="main",stage="effective"} 0`,
		`target_model_name="sim-chat"`, `fairness_id="flow_`,
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
}

// metrics is the text of /metrics.
func (w *whole) metrics(t *testing.T) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.ops+"/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
