package scheduler

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkTurn is a dispatch from a queue and what takes its place: whose turn
// it is, the booking, the end of the lease and the next request of that flow.
func BenchmarkTurn(b *testing.B) {
	for _, policy := range []FairnessPolicy{VirtualTokenCounter, GlobalStrict, RoundRobin, TurnPriority, LeastAttainedService} {
		for _, flows := range []int{1, 100, 10_000} {
			b.Run(fmt.Sprintf("%s/flows=%d", policy, flows), func(b *testing.B) {
				q := newQueues(Config{DefaultBand: BandConfig{Fairness: Fairness{Policy: policy}}})
				now := time.Unix(1_700_000_000, 0)
				for i := range 2 * flows {
					q.wait(in(fmt.Sprintf("flow-%d", i%flows), 0), now)
				}
				b.ReportAllocs()
				for b.Loop() {
					now = now.Add(time.Millisecond)
					w := q.next(always)
					c := &charge{band: w.band, flow: w.flow}
					q.began(c, &w.request, service{input: 100, output: 100}, now)
					q.remove(w)
					q.ended(c, service{input: 100, output: 100}, now)
					w.entered, w.queuedAt = now, now
					q.push(c.band, c.flow, w)
				}
			})
		}
	}
}
