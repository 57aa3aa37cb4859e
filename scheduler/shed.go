package scheduler

import (
	"math"
	"time"
)

// sheds decides by chance whether a request of a negative band is refused
// before the pool is full: with p = min(pressure^Power * K, 1), as llm-d's
// probabilistic admitter does. Pressure is the mean over the endpoints of the
// larger of queue and KV use; an endpoint that says nothing counts by our own
// leases. With llm-d's numbers everything is refused from a pressure of 0.32.
//
// It is asked when a request comes, not when its turn has come as in llm-d:
// nobody then waits for a refusal.
func (e *Embedded) sheds(b *band, now time.Time) bool {
	s := &e.cfg.Shed
	if !s.Enabled || b.priority >= 0 {
		return false
	}
	e.gauge.catchUp(now)
	pressure, known := e.gauge.pressure.full()
	if !known {
		return false // no endpoint: the queue has its own answer to that
	}
	return e.chance.Float64() < math.Pow(pressure, s.Power)*s.K
}
