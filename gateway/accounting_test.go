package gateway

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/billing"
	"weir/scheduler"
)

// BenchmarkAccounting is what it costs each request to be seen while it waits
// and counted afterwards.
func BenchmarkAccounting(b *testing.B) {
	m, set := newEPP(prometheus.NewRegistry(), 1000), newWaiters()
	r := billing.Receipt{
		Outcome: string(Success), Attempts: 1, Stream: true, Duration: time.Second, TTFT: time.Millisecond,
		Usage: billing.Usage{InputUncached: 10, InputCached: 20, Output: 30},
	}
	b.ReportAllocs()
	b.RunParallel(func(p *testing.PB) {
		var w waiter
		for p.Next() {
			w = waiter{
				shown: Waiting{ID: "req_1", Model: "pub", Pool: "main"}, owner: owner{"ten_a", "prj_a"},
				series: m.series(seriesKey{fairness: "flow_a", pool: "main", model: "pub", target: "org/engine"}),
			}
			set.add(&w)
			set.remove(&w)
			m.waited(w.series, outcomeOf(context.Background(), nil), time.Millisecond)
			m.ended(w.series, &r, 100, 1000)
		}
	})
}

func TestEveryRefusalHasAnOutcome(t *testing.T) {
	t.Parallel()
	for reason, want := range map[scheduler.Reason]string{
		scheduler.FlowFull: "RejectedCapacity", scheduler.BandFull: "RejectedCapacity", scheduler.PoolFull: "RejectedCapacity", scheduler.ShedLoad: "RejectedCapacity",
		scheduler.QueueTimeout: "RejectedCapacity", scheduler.NoEndpoints: "RejectedNoEndpoints", scheduler.Cancelled: "EvictedContextCancelled",
		scheduler.ShuttingDown: "EvictedOther", scheduler.Internal: "RejectedOther",
	} {
		if got := outcomeOf(t.Context(), &scheduler.Refusal{Reason: reason}); got != want {
			t.Errorf("%s: %s, want %s", reason, got, want)
		}
	}
	for reason, want := range map[scheduler.Reason]string{scheduler.QueueTimeout: "EvictedTTL", scheduler.NoEndpoints: "EvictedNoEndpoints"} {
		if got := outcomeOf(t.Context(), &scheduler.Refusal{Reason: reason, Waited: true}); got != want {
			t.Errorf("%s in the queue: %s, want %s", reason, got, want)
		}
	}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if got := outcomeOf(gone, context.Canceled); got != "EvictedContextCancelled" {
		t.Errorf("a caller who left: %s", got)
	}
	if got := outcomeOf(t.Context(), context.DeadlineExceeded); got != "RejectedOther" {
		t.Errorf("an error that is no refusal: %s", got)
	}
}

// The whole set of series is bounded, whatever tenants, models and pools there
// are; and a key that is known stays what it was.
func TestSeriesAreBounded(t *testing.T) {
	t.Parallel()
	m := newEPP(nil, maxSeries)
	first := m.series(seriesKey{fairness: "flow_0", model: "m"})
	for i := range 3 * maxSeries {
		m.series(seriesKey{fairness: "flow_" + string(rune('0'+i%7)), model: "m", priority: i / 2})
	}
	if got := m.series(seriesKey{fairness: "flow_0", model: "m"}); got != first {
		t.Error("a known series was lost")
	}
	named, others := 0, 0
	m.each(func(s *series) {
		if s.fairness == otherID {
			others++
		} else {
			named++
		}
	})
	if named > maxSeries || others == 0 {
		t.Errorf("%d series name a tenant, %d don't", named, others)
	}
}
