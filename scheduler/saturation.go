package scheduler

import "time"

// saturation is how full the pool is: what runs, as part of what may; and when
// that may change by the mere passing of time (zero: it won't).
func (e *Embedded) saturation(now time.Time) (full float64, again time.Time) {
	live, most := 0, 0
	for _, p := range e.fleet.endpoints {
		if p.Draining {
			continue
		}
		n, later := p.limit(p.MaxConcurrency, now)
		if !later.IsZero() {
			again = earlier(again, later)
			continue
		}
		live, most = live+len(p.live), most+n
	}
	if most == 0 {
		return 1, again
	}
	return float64(live) / float64(most), again
}

// ceiling is how full the band may make the pool.
func (e *Embedded) ceiling(*band) float64 { return 1 }
