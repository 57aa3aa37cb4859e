package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"
)

// floodedCatalogue leaves two of the engine's four places to the top band.
const floodedCatalogue = `apiVersion: weir/v1
bands: [{name: top, priority: 10}, {name: standard, priority: 0}]
plans:
  basic: {bands: {default: standard}, weight: 1}
  top: {bands: {default: top}, weight: 1}
pools:
  - name: real
    scheduler:
      apiVersion: llm-d.ai/v1
      kind: EndpointPickerConfig
      featureGates: [flowControl]
      plugins:
        - {type: concurrency-detector, parameters: {maxConcurrency: 4}}
        - {type: priority-holdback-policy, parameters: {minCeiling: 0.5}}
        - {type: queue-scorer}
        - {type: max-score-picker}
      schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}, {pluginRef: max-score-picker}]}]
      flowControl:
        defaultRequestTTL: 10m
        saturationDetector: {pluginRef: concurrency-detector}
        usageLimitPolicyPluginRef: priority-holdback-policy
        priorityBands: [{priority: 10}, {priority: 0}]
    endpoints: [{id: real, url: "ENGINE", engine: llamacpp}]
models: [{name: real-chat, operations: [chat], routes: [{pool: real}]}]
prices: [{model: real-chat, input: "0.10", output: "0.40"}]
`

// theTopBandPassesAFlood has forty requests of the low band at the gateway. From
// when one of the top band is sent until its first token no more of them may
// begin than fill the engine twice: it waits for what runs there, not for what is
// queued.
func theTopBandPassesAFlood(t *testing.T, engine string) {
	t.Helper()
	const flood, places = 40, 4
	in := installWith(t, strings.ReplaceAll(floodedCatalogue, "ENGINE", engine))
	url, _ := in.serve(t)
	tenant := lastWord(runWeir(t, in.dir, in.environment, "tenant", "create", "people", "--plan", "top", "--quiet"))
	key := lastWord(runWeir(t, in.dir, in.environment, "key", "create", "--tenant", tenant, "--name", "x", "--quiet"))
	ask := func(key string, first func()) error {
		res, err := post(t.Context(), url+"/v1/chat/completions", key,
			`{"model":"real-chat","stream":true,"max_tokens":16,"ignore_eos":true,"messages":[{"role":"user","content":"How deep is the river?"}]}`)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(res.Body)
			return fmt.Errorf("%s: %s", res.Status, text)
		}
		seen := false
		for lines := bufio.NewScanner(res.Body); lines.Scan(); {
			if !seen && strings.Contains(lines.Text(), `"content":"`) {
				seen = true
				first()
			}
			if lines.Text() == "data: [DONE]" {
				return nil
			}
		}
		return fmt.Errorf("a stream without end; content: %v", seen)
	}
	if err := ask(key, func() {}); err != nil { // the key is known from now on
		t.Fatal(err)
	}
	var begun atomic.Int64
	some := make(chan struct{}, flood)
	var low errgroup.Group
	for range flood {
		low.Go(func() error {
			return ask(in.key, func() { begun.Add(1); some <- struct{}{} })
		})
	}
	<-some
	for i := range 3 {
		before, met := begun.Load(), int64(0)
		if err := ask(key, func() { met = begun.Load() }); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d of %d had begun before the top band's request, %d before its first token", before, flood, met)
		if met-before > 2*places || flood-met < places {
			t.Errorf("request %d of the top band waited for what was queued below it, or nothing was", i)
		}
	}
	if err := low.Wait(); err != nil {
		t.Errorf("the low band: %v", err)
	}
}
