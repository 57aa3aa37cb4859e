package admission

import (
	"math"
	"time"
)

// rate is an allowance in whole microseconds, so that a store in process and a
// script with floating point numbers compute the same.
type rate struct {
	perMinute int
	burst     int64 // what an idle node may spend at once: one minute's allowance
}

const minute = int64(time.Minute / time.Microsecond)

// rateOf is the rate of a meter for a limit above zero.
func rateOf(m Meter, perMinute int) rate {
	r := rate{perMinute: perMinute, burst: minute}
	if m == RequestMeter { // exactly so many fit
		r.burst = r.cost(1) * int64(perMinute)
	}
	return r
}

// cost is what n of the things cost. It is rounded once, so that many tokens
// cost no more than they should.
func (r rate) cost(n int) int64 {
	if n == 1 {
		return max(1, minute/int64(r.perMinute))
	}
	return int64(math.Ceil(float64(n) * float64(minute) / float64(r.perMinute)))
}

// spend returns the arrival time that stands after so much more at now, and how
// long the caller must wait before it may be spent; 0 is now. Who has spent
// nothing need not wait, whatever it costs.
func (r rate) spend(arrival, now, cost int64) (next, wait int64) {
	next = max(arrival, now) + cost
	if arrival <= now {
		return next, 0
	}
	return next, max(0, next-now-r.burst)
}

// correct is the arrival time after a charge was replaced by another that is
// larger by so much. Nobody saves up: a credit ends at now.
func correct(arrival, now, by int64) int64 {
	if by > 0 {
		return max(arrival, now) + by
	}
	return arrival + by
}

// allowance is what is left of a limit, debt being nothing.
func (r rate) allowance(ahead int64) Allowance {
	ahead = max(0, ahead)
	return Allowance{
		Limit: r.perMinute,
		Left:  int(float64(max(0, r.burst-ahead)) * float64(r.perMinute) / float64(r.burst)),
		Reset: micros(ahead),
	}
}

// tighter returns the allowance that binds more closely, by the part that is
// left of its limit.
func (a Allowance) tighter(b Allowance) Allowance {
	switch {
	case a.Limit == 0:
		return b
	case b.Limit == 0:
		return a
	case float64(b.Left)*float64(a.Limit) < float64(a.Left)*float64(b.Limit):
		return b
	default:
		return a
	}
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
