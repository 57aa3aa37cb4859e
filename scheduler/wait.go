package scheduler

import (
	"context"
	"time"
)

// This file is how long a request may wait and what it is told when it may
// not: deadlines, refusals, and the waiters themselves.

// limit sets when the waiter's time is up.
func (w *waiter) limit(deadline, now time.Time) {
	w.moved = !w.deadline.IsZero() // the timer may have fired for the old one
	w.deadline = deadline
	w.arm(now)
}

func (w *waiter) arm(now time.Time) {
	if w.deadline.IsZero() {
		w.timer.Stop()
		return
	}
	w.timer.Reset(w.deadline.Sub(now))
}

// early reports whether the timer fired for a deadline that has moved since. It
// trusts the timer otherwise, which no jump of the clock disturbs.
func (w *waiter) early(now time.Time) bool {
	if !w.moved {
		return false
	}
	w.moved = false
	if w.deadline.IsZero() || now.Before(w.deadline) {
		w.arm(now)
		return true
	}
	return false
}

// deadline is that of a request which begins to wait now.
func (e *Embedded) deadline(b *band, ttl time.Duration, now time.Time) time.Time {
	return e.deadlineFrom(b, now, now, ttl)
}

// deadlineOf is that of a waiter after the pool filled or emptied.
func (e *Embedded) deadlineOf(w *waiter) time.Time {
	return e.deadlineFrom(w.band, w.entered, e.changed, w.request.TTL)
}

// deadlineFrom is the earliest of three: the limit of the pool as it is now,
// counted since it is so; both limits of the pool together; the request's own.
// Zero is none. The limit of a pool with endpoints is the band's.
func (e *Embedded) deadlineFrom(b *band, entered, since time.Time, ttl time.Duration) time.Time {
	filled, empty := b.cfg.TTL, max(e.cfg.NoEndpointTTL, 0)
	var deadline time.Time
	switch {
	case !e.populated:
		deadline = since.Add(empty)
	case filled > 0:
		deadline = since.Add(filled)
	default: // negative: no limit
	}
	if filled > 0 {
		deadline = earlier(deadline, entered.Add(filled).Add(empty))
	}
	if ttl != 0 {
		deadline = earlier(deadline, entered.Add(ttl))
	}
	return deadline
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// timeout is the reason to give when a request's time is up: no endpoint works,
// or those that do were busy with others.
func (e *Embedded) timeout() Reason {
	if e.fleet.serving() {
		return QueueTimeout
	}
	return NoEndpoints
}

// refuse counts and builds a refusal of the scheduler's own.
func (e *Embedded) refuse(b *band, f *flow, reason Reason, now time.Time) *Refusal {
	b.refused[reason]++
	return &Refusal{Reason: reason, RetryAfter: e.retryAfter(b, f, reason, now)}
}

// retryAfter is when a new try would not have to wait long: when what stands
// before it is worked off, at the measured rate.
func (e *Embedded) retryAfter(b *band, f *flow, reason Reason, now time.Time) time.Duration {
	ahead := e.queues.ahead(b, f)
	if reason == PoolFull {
		ahead = e.queues.queued
	}
	return e.drain.retryAfter(ahead, now)
}

// cancelled is the refusal of a request whose caller has left.
func cancelled(ctx context.Context) *Refusal {
	return &Refusal{Reason: Cancelled, Err: context.Cause(ctx)}
}

// waiter returns a used waiter, or a new one, with its timer stopped.
func (e *Embedded) waiter() *waiter {
	if last := len(e.spare) - 1; last >= 0 {
		w := e.spare[last]
		e.spare = e.spare[:last]
		return w
	}
	w := &waiter{done: make(chan struct{}, 1), timer: time.NewTimer(time.Hour)}
	w.timer.Stop()
	return w
}

// recycle keeps a waiter that has left the queue. Whoever answered it did so
// under the mutex, so that an unread token is there by now.
func (e *Embedded) recycle(w *waiter) {
	w.timer.Stop()
	select {
	case <-w.done:
	default:
	}
	e.fleet.free(w.request.chain)
	if e.stuck == w { // as it will be another request
		e.stuck = nil
	}
	*w = waiter{done: w.done, timer: w.timer}
	if len(e.spare) < maxSpare {
		e.spare = append(e.spare, w)
	}
}
