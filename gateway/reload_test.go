package gateway_test

import (
	"log/slog"
	"strings"
	"testing"

	"weir/gateway"
	"weir/scheduler"
)

// What waits in a pool keeps its place through every change of how the pool
// schedules: its limits, its policies, the whole document.
func TestReloadKeepsTheQueue(t *testing.T) {
	t.Parallel()
	const endpoints = `endpoints: [{id: a, url: "http://127.0.0.1:1"}]`
	document := func(fairness, ordering string) string {
		return `scheduler: {apiVersion: llm-d.ai/v1, kind: EndpointPickerConfig, featureGates: [flowControl], ` +
			`plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 1}}, {type: ` + fairness + `, name: fair}, {type: ` + ordering + `, name: order}], ` +
			`flowControl: {saturationDetector: {pluginRef: concurrency-detector}, priorityBands: [{priority: 0, fairnessPolicyRef: fair, orderingPolicyRef: order}]}}, `
	}
	s := newShelf(t, `{name: main, scheduler: {max_concurrency: 1}, `+endpoints+`}`)
	fleet := gateway.NewFleet(slog.New(slog.DiscardHandler), s, nil)
	t.Cleanup(fleet.Close)
	go func() { _ = fleet.Run(t.Context()) }()

	queue, _ := fleet.Scheduler("main")
	running, err := queue.Schedule(t.Context(), scheduler.Request{ID: "0.1"})
	if err != nil {
		t.Fatal(err)
	}
	leases := make(chan scheduler.Lease)
	for _, id := range []string{"1.1", "2.1"} {
		go func() {
			l, err := queue.Schedule(t.Context(), scheduler.Request{ID: id, Flow: scheduler.Flow{FairnessID: id}})
			if err != nil {
				t.Errorf("%s was refused: %v", id, err)
			}
			leases <- l
		}()
	}
	queued := func() bool { return fleet.Pools()["main"].State.Queued == 2 }
	until(t, "both wait", queued)

	for i, settings := range []string{
		"scheduler: {max_concurrency: 1, max_queued: 1, max_flow_queued: 5, queue_ttl: 50s}, ", // less than waits
		document("round-robin-fairness-policy", "fcfs-ordering-policy"),
		document("program-aware-fairness", "edf-ordering-policy"),
		document("weir-token-fairness-policy", "slo-deadline-ordering-policy"),
		"scheduler: {max_concurrency: 1}, ",
	} {
		marker := "z" + strings.Repeat("z", i) // a pool that is made after main was changed
		s.put(t, `{name: main, `+settings+endpoints+`}, {name: `+marker+`, endpoints: []}`)
		until(t, "the change has arrived", func() bool { _, ok := fleet.Scheduler(marker); return ok })
		if again, _ := fleet.Scheduler("main"); again != queue {
			t.Fatalf("%s: another scheduler", settings)
		}
		if !queued() {
			t.Fatalf("%s: %d wait, want 2", settings, fleet.Pools()["main"].State.Queued)
		}
	}
	for range 2 {
		running.End(scheduler.Outcome{})
		running = <-leases
		if running == nil {
			t.Fatal("refused")
		}
	}
	running.End(scheduler.Outcome{})
	if left := fleet.Pools()["main"].State; left.Queued != 0 || left.Live != 0 {
		t.Errorf("%d wait and %d run at the end", left.Queued, left.Live)
	}
}
