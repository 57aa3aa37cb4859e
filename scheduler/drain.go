package scheduler

import (
	"math"
	"time"
)

// drainWindow is how far back the drain rate remembers: long enough to smooth
// bursts, short enough that Retry-After follows a pool that grows or stalls.
const drainWindow = 10 * time.Second

// Retry-After is at least a second, since the header has no smaller unit, and
// at most a minute, since no estimate reaches further.
const (
	minRetryAfter     = time.Second
	maxRetryAfter     = time.Minute
	unknownRetryAfter = 5 * time.Second // before anything was dispatched
)

// drain measures how fast requests leave the queue, as an exponentially
// decaying count of dispatches.
type drain struct {
	since time.Time // of the first dispatch
	at    time.Time // when count was last decayed
	count float64
}

func (d *drain) dispatched(now time.Time) {
	if d.since.IsZero() {
		d.since, d.at = now, now
	}
	d.count = d.decayed(now) + 1
	d.at = now
}

func (d *drain) decayed(now time.Time) float64 {
	elapsed := max(now.Sub(d.at), 0) // a clock may jump back
	return d.count * math.Exp(-elapsed.Seconds()/drainWindow.Seconds())
}

// perSecond is the rate of dispatches; 0 before the first.
func (d *drain) perSecond(now time.Time) float64 {
	if d.since.IsZero() {
		return 0
	}
	// A young measurement covers less than the window.
	elapsed := max(now.Sub(d.since).Seconds(), 1)
	window := drainWindow.Seconds()
	return d.decayed(now) / (window * (1 - math.Exp(-elapsed/window)))
}

// retryAfter is how long it takes to work off so many requests.
func (d *drain) retryAfter(ahead int, now time.Time) time.Duration {
	rate := d.perSecond(now)
	if rate == 0 {
		return unknownRetryAfter
	}
	seconds := math.Ceil(float64(ahead) / rate)
	if seconds >= maxRetryAfter.Seconds() {
		return maxRetryAfter
	}
	return max(time.Duration(seconds)*time.Second, minRetryAfter)
}
