package scheduler

import (
	"math"
	"time"
)

// pulsePeriod is how often a closed pulse is looked at again while nothing
// else happens: llm-d's dispatch tick.
const pulsePeriod = time.Millisecond

// pulse lets a band through now and then that is at its soft ceiling. All
// bands share it.
type pulse struct{ tick uint64 }

// setCeilings says how full each band may make the pool, by the usage-limit
// policy. Bands are in order, highest first, those without requests too: a
// place in the order is the band's, whether it is used or not. It reports
// whether some ceiling opens again by itself.
//
// The formulas are llm-d's. With N bands, i counted from the highest, and s
// the saturation: priority-holdback by rank is max - i*(max-min)/(N-1), by
// value min + (p-pMin)/(pMax-pMin)*(max-min), and max for a single band;
// soft-reflective is 1 - i*s/(N-1), and where s is beyond that and the pool
// isn't full, one cycle in round(s/(1-s)) is let through.
func (e *Embedded) setCeilings(saturation float64) (closed bool) {
	bands, u := e.queues.bands, &e.cfg.UsageLimit
	switch u.Kind {
	case PriorityHoldback:
		holdback(bands, u)
	case SoftReflective:
		return e.pulse.soften(bands, saturation)
	default:
		for _, b := range bands {
			b.ceiling = 1
		}
	}
	return false
}

func holdback(bands []*band, u *UsageLimit) {
	last := len(bands) - 1
	for i, b := range bands {
		height := 1.0 // of 1
		switch {
		case last == 0:
		case u.ByValue:
			low, high := bands[last].priority, bands[0].priority
			height = float64(b.priority-low) / float64(high-low)
		default:
			height = float64(last-i) / float64(last)
		}
		b.ceiling = u.MinCeiling + height*(u.MaxCeiling-u.MinCeiling)
	}
}

func (p *pulse) soften(bands []*band, saturation float64) (closed bool) {
	full := saturation >= 1
	if !full && saturation >= 1-saturation {
		p.tick++
	}
	period := uint64(1)
	if !full {
		period = uint64(max(1, math.Round(saturation/(1-saturation+1e-9))))
	}
	for i, b := range bands {
		b.ceiling = 1
		if i > 0 {
			b.ceiling -= float64(i) * saturation / float64(len(bands)-1)
		}
		switch {
		case i > 0 && full:
			b.ceiling = 0
		case full || saturation < b.ceiling:
		case p.tick%period == 0:
			b.ceiling = 1
		default:
			b.ceiling, closed = 0, true
		}
	}
	return closed
}
