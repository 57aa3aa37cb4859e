package gateway_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"weir/gateway"
	"weir/scheduler"
)

// A refusal tells how long the request waited for it, and where.
func TestFailuresTellHowLongTheyWaited(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		call   func(*gateway.Call)
		cause  gateway.Cause
		band   string
		waited time.Duration
	}{
		{"time is up", func(c *gateway.Call) { c.QueueTTL = 3 * time.Second }, gateway.QueueTimeout, "standard", 3 * time.Second},
		{"refused at once", func(c *gateway.Call) { c.QueueTTL = -1 }, gateway.QueueTimeout, "standard", 0},
		{"never came to the queue", func(c *gateway.Call) { c.Model = "nothing" }, gateway.ModelNotFound, "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := build(t, []string{"http://engine.test"}, func(h *house) { h.plan.Limits.Concurrency = 0 })
				var held []scheduler.Lease
				for range 8 {
					l, err := h.pools.queue.Schedule(t.Context(), scheduler.Request{Flow: scheduler.Flow{FairnessID: "other"}})
					if err != nil {
						t.Fatal(err)
					}
					held = append(held, l)
				}
				err := h.Run(t.Context(), h.call(tt.call), &caller{})
				failure, _ := errors.AsType[*gateway.Error](err)
				if failure == nil || failure.Cause != tt.cause || failure.Band != tt.band || failure.QueueTime != tt.waited {
					t.Errorf("failed with %+v", failure)
				}
				for _, l := range held {
					l.End(scheduler.Outcome{})
				}
			})
		})
	}
}
