package scheduler

import (
	"fmt"
	"time"
)

// Health is what probes say of an endpoint.
type Health int

// The states of an endpoint's health. Unknown is neither healthy nor dead: an
// endpoint that no probe has judged yet may hold a quarter of its leases, at
// least one, until a probe or a completed request vouches for it.
const (
	Unknown Health = iota
	Healthy
	Unhealthy
)

func (h Health) String() string {
	switch h {
	case Unknown:
		return "unknown"
	case Healthy:
		return "healthy"
	case Unhealthy:
		return "unhealthy"
	default:
		return fmt.Sprintf("health(%d)", int(h))
	}
}

// MarshalText makes a Health readable in JSON.
func (h Health) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// unknownShare is the part of its leases that an unjudged endpoint may hold.
const unknownShare = 4

// maxPauseFactor bounds how often the pause of an overloaded endpoint doubles.
const maxPauseFactor = 16

// condition is what is known of an endpoint's fitness: probes from outside,
// and a circuit that the outcomes of its own requests open. It has no clock;
// every method is told the time.
type condition struct {
	health  Health
	backoff time.Duration // non-zero while the circuit is open
	pause   time.Duration // grows while the endpoint keeps saying that it is full

	faults      int       // in a row, while the circuit is closed
	retryAt     time.Time // when the open circuit lets a trial through
	trial       *lease    // the one request that tries an open circuit
	pausedUntil time.Time
}

func (c *condition) open() bool { return c.backoff > 0 }

// sound reports whether nothing is wrong with the endpoint.
func (c *condition) sound() bool { return c.health == Healthy && c.backoff == 0 && c.pause == 0 }

// limit is how many leases the endpoint may hold of most. When that is none
// for now, again says when to look once more; zero: not by itself.
func (c *condition) limit(most int, now time.Time) (n int, again time.Time) {
	switch {
	case c.health == Unhealthy:
		return 0, time.Time{}
	case now.Before(c.pausedUntil):
		return 0, c.pausedUntil
	case c.open() && c.trial != nil:
		return 0, time.Time{} // the trial's end decides
	case c.open() && now.Before(c.retryAt):
		return 0, c.retryAt
	case c.health == Unknown:
		return max(1, most/unknownShare), time.Time{}
	default:
		return most, time.Time{}
	}
}

// probed takes a probe's verdict. An endpoint that comes back gets its trial
// at once: its backoff was measured against the process that died.
func (c *condition) probed(h Health) {
	if c.health == Unhealthy && h == Healthy && c.open() {
		c.retryAt = time.Time{}
	}
	c.health = h
}

// began notes a lease. While the circuit is open that lease is its trial.
func (c *condition) began(l *lease) {
	if c.open() {
		c.trial = l
	}
}

// proved takes the first sign that a doubtful endpoint serves the lease.
func (c *condition) proved(l *lease) {
	if c.trial == l {
		c.trial, c.faults, c.backoff = nil, 0, 0
	}
	if c.health == Unknown {
		c.health = Healthy
	}
}

// ended takes the result of a lease. Only the endpoint's own faults count
// against it. While the circuit is open only the trial's result counts: what
// was sent earlier says nothing that is not known.
func (c *condition) ended(l *lease, r Result, b Breaker, pause time.Duration, now time.Time) {
	trial := c.trial == l
	if trial {
		c.trial = nil
	}
	switch r {
	case Completed:
		c.pause = 0
		if trial || !c.open() {
			c.faults, c.backoff = 0, 0
		}
		if c.health == Unknown {
			c.health = Healthy
		}
	case EndpointFault:
		switch {
		case trial:
			c.trip(min(2*c.backoff, b.MaxBackoff), now)
		case !c.open():
			if c.faults++; c.faults >= b.Faults {
				c.trip(min(b.Backoff, b.MaxBackoff), now)
			}
		}
	case Overloaded:
		// One burst of refusals is one statement: don't double within a pause.
		if !now.Before(c.pausedUntil) {
			c.pause = min(max(pause, 2*c.pause), maxPauseFactor*pause)
			c.pausedUntil = now.Add(c.pause)
		}
	case CallerFault, Abandoned:
		// Nothing is learned. An open circuit may try the next request.
	}
}

func (c *condition) trip(backoff time.Duration, now time.Time) {
	c.backoff, c.retryAt = backoff, now.Add(backoff)
}
