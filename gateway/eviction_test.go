package gateway_test

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/billing"
	"weir/gateway"
	"weir/scheduler"
	"weir/tenants"
)

// TestEvictionEndToEnd: a request of a negative band gives way to one of a
// higher band that is held up. It costs nothing, and it runs again if its
// caller had seen nothing.
func TestEvictionEndToEnd(t *testing.T) {
	t.Parallel()
	whole := events(chunk("a", 1), usageEvent, doneEvent)
	usage := billing.Usage{InputUncached: 7, InputCached: 4, Output: 3, Reasoning: 2}
	cost := int64((7*1_000_000 + 4*500_000 + 3*2_000_000 + 2*3_000_000) / 1000)
	completed := func(attempts int, cost int64) billing.Receipt {
		return billing.Receipt{Outcome: "completed", Attempts: attempts, UsageSource: billing.UpstreamFinal, Usage: usage, CostNano: cost}
	}
	for _, tt := range []struct {
		name    string
		runs    step // what the evicted request gets of the engine
		seen    string
		cause   gateway.Cause
		failed  int
		results []scheduler.Result
		receipt billing.Receipt
	}{
		{
			name: "its caller sees an error after what it saw, and pays nothing", runs: events(chunk("x", 1)),
			seen: shown("x"), cause: gateway.Evicted, failed: 1,
			results: []scheduler.Result{scheduler.Abandoned, scheduler.Completed},
			receipt: billing.Receipt{Outcome: "evicted", Attempts: 1, UsageSource: billing.NoUsage},
		},
		{
			name: "it runs again if its caller had seen nothing", runs: func(http.ResponseWriter, *http.Request) {},
			seen: shown("a") + doneEvent, cause: gateway.Success,
			results: []scheduler.Result{scheduler.Abandoned, scheduler.Completed, scheduler.Completed},
			receipt: completed(2, cost),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			running := make(chan struct{})
			begun := func(http.ResponseWriter, *http.Request) {
				if tt.failed == 0 {
					close(running)
				}
			}
			engine := serve(t, then(tt.runs, begun, hang), whole)
			h := build(t, []string{engine.URL}, func(h *house) {
				h.pools.queue.SetConfig(scheduler.Config{MaxConcurrency: 1, Eviction: true})
				h.plan.Limits = tenants.Limits{}
				h.plan.Bands[tenants.TierDefault] = "spare"
			})
			low, high := &caller{}, &caller{}
			if tt.failed > 0 {
				low.onSend = func(string) { close(running) }
			}
			lowEnded := make(chan error, 1)
			go func() {
				lowEnded <- h.Run(t.Context(), h.call(func(c *gateway.Call) { c.Stream = true }), low)
			}()
			<-running

			if err := h.Run(t.Context(), h.call(func(c *gateway.Call) { c.ID, c.Stream, c.Tier = "req_2", true, tenants.TierPriority }), high); err != nil {
				t.Fatalf("the higher band: %v", err)
			}
			err := <-lowEnded

			if got := causeOf(err); got != tt.cause {
				t.Errorf("the low band ended as %q (%v), want %q", got, err, tt.cause)
			}
			if diff := cmp.Diff(tt.seen, low.text()); diff != "" || len(low.failed) != tt.failed {
				t.Errorf("it was told of a failure %d times, want %d, and saw (-want +got):\n%s", len(low.failed), tt.failed, diff)
			}
			if diff := cmp.Diff(tt.results, h.pools.results()); diff != "" {
				t.Errorf("leases (-want +got):\n%s", diff)
			}
			got := map[string]billing.Receipt{}
			for _, r := range h.ledger.all() {
				got[r.RequestID] = billing.Receipt{Outcome: r.Outcome, Attempts: r.Attempts, UsageSource: r.UsageSource, Usage: r.Usage, CostNano: r.CostNano}
			}
			if diff := cmp.Diff(map[string]billing.Receipt{"req_1": tt.receipt, "req_2": completed(1, cost*7/4)}, got); diff != "" {
				t.Errorf("receipts (-want +got):\n%s", diff)
			}
			h.idle(t)
		})
	}
}

// A pool has a budget for retries, since it may fail as a whole. What gives way
// to others didn't fail: it runs again even where the budget is spent.
func TestARetryAfterAnEvictionTakesNothingOfTheBudget(t *testing.T) {
	t.Parallel()
	const rounds = 5 // more than a new pool's budget holds
	whole := events(chunk("a", 1), usageEvent, doneEvent)
	running := make(chan struct{}, rounds)
	begun := func(http.ResponseWriter, *http.Request) { running <- struct{}{} }
	var steps []step
	for range rounds {
		steps = append(steps, then(begun, hang), whole, whole)
	}
	engine := serve(t, steps...)
	h := build(t, []string{engine.URL}, func(h *house) {
		h.pools.queue.SetConfig(scheduler.Config{MaxConcurrency: 1, Eviction: true})
		h.plan.Limits = tenants.Limits{}
		h.plan.Bands[tenants.TierDefault] = "spare"
	})
	for i := range rounds {
		lowEnded := make(chan error, 1)
		go func() {
			lowEnded <- h.Run(t.Context(), h.call(func(c *gateway.Call) { c.ID, c.Stream = fmt.Sprint("req_low", i), true }), &caller{})
		}()
		<-running
		if err := h.Run(t.Context(), h.call(func(c *gateway.Call) {
			c.ID, c.Stream, c.Tier = fmt.Sprint("req_high", i), true, tenants.TierPriority
		}), &caller{}); err != nil {
			t.Fatalf("the higher band: %v", err)
		}
		if err := <-lowEnded; err != nil {
			t.Fatalf("round %d: what gave way did not run again: %v", i, err)
		}
	}
	h.idle(t)
}
