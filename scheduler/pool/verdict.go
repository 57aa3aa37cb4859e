package pool

import (
	"time"

	"weir/scheduler"
)

// maxDamping bounds how many times over an endpoint that flaps has to prove
// itself.
const maxDamping = 8

// verdict is what an endpoint's probes say of its health. One result that
// contradicts it changes nothing, so that a lost packet doesn't take an
// endpoint out; only the very first good one is enough. An endpoint that falls
// again soon after it came back has to show twice as many good probes the next
// time, and so on, until it has stood for a while.
type verdict struct {
	health scheduler.Health
	streak int // results in a row that contradict health

	roseAt  time.Time // when it last came back
	damping int       // times Config.UpAfter; 0 counts as 1
}

// count takes one result and reports whether it changes the verdict.
func (v *verdict) count(good bool, cfg Config, now time.Time) bool {
	next, needed := scheduler.Unhealthy, cfg.DownAfter
	if good {
		next, needed = scheduler.Healthy, cfg.UpAfter*max(v.damping, 1)
	}
	if good && v.health == scheduler.Unknown {
		needed, v.streak = 1, 0
	}
	if v.health == next {
		v.streak = 0
		return false
	}
	if v.streak++; v.streak < needed {
		return false
	}
	v.damp(next, cfg, now)
	v.health, v.streak = next, 0
	return true
}

// damp takes a change to next. An endpoint stands firm once it has stayed up
// for as long as ten falls would have taken.
func (v *verdict) damp(next scheduler.Health, cfg Config, now time.Time) {
	firm := 10 * time.Duration(cfg.DownAfter) * cfg.Interval
	switch {
	case next == scheduler.Healthy:
		if v.health == scheduler.Unhealthy {
			v.roseAt = now
		}
	case v.roseAt.IsZero() || now.Sub(v.roseAt) >= firm:
		v.damping = 1
	default:
		v.damping = min(2*max(v.damping, 1), maxDamping)
	}
}
