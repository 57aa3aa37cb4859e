package scheduler

import "time"

// Pressure says how busy the pool is for a request of the band that would come
// now: how full it is, 1 being full, as its detector measures it, and how long
// those would take that wait in the band and above it, at the present rate (0
// when nothing waits or no rate is known). A pool that can take nothing is full.
func (e *Embedded) Pressure(band int) (saturation float64, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, queued := e.now(), 0
	for _, b := range e.queues.bands {
		if b.priority >= band {
			queued += b.queued + b.aside
		}
	}
	saturation, _ = e.gauge.saturation(now)
	return saturation, e.drain.expected(queued, now)
}
