package admission

import "time"

// rate is a node's allowance in whole microseconds, so that a store in process
// and a script with floating point numbers compute the same.
type rate struct {
	interval int64 // what one request costs
	burst    int64 // what an idle node may spend at once: one minute's allowance
}

// rateOf is the rate for a limit above zero. Limits above 60 million a minute
// count as that.
func rateOf(perMinute int) rate {
	interval := max(1, time.Minute.Microseconds()/int64(perMinute))
	return rate{interval: interval, burst: interval * int64(perMinute)}
}

// spend returns the arrival time that stands after one more request at now,
// and how long the caller must wait before it may be spent; 0 is now.
func (r rate) spend(arrival, now int64) (next, wait int64) {
	next = max(arrival, now) + r.interval
	return next, max(0, next-now-r.burst)
}

// left returns how many requests still fit at now.
func (r rate) left(arrival, now int64) int64 {
	return max(0, r.burst-max(0, arrival-now)) / r.interval
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
