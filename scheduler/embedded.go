package scheduler

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Embedded schedules one pool in this process.
//
// It is a mutex around plain data structures, not a goroutine that owns them:
// a decision takes microseconds, and handing it to another goroutine and back
// would cost two switches for each request, most of which need not wait at
// all. The invariant that makes the short path right: while anything waits, the
// pool has no room for it. So whoever makes room (a lease that ends, a changed
// endpoint, a backoff that runs out) calls dispatch before unlocking, and
// whoever may change which request goes next (one that comes or leaves) calls
// follow: the next one may fit where the other didn't.
type Embedded struct {
	cfg Config
	now func() time.Time

	mu        sync.Mutex
	queues    queues
	fleet     fleet
	gauge     gauge
	pulse     pulse
	eviction  eviction
	drain     drain
	ring      ring
	chance    *rand.Rand
	seed      uint64     // of chance
	given     []Endpoint // as they were set
	populated bool       // whether there is an endpoint to wait for
	changed   time.Time  // when populated last changed
	cycle     cycle
	stuck     *waiter          // who would go next and was found to have no place
	cycles    Timing           // of looks for an endpoint
	admit     func(*band) bool // is admits
	wake      *time.Timer      // runs when something may go that waits
	waking    time.Time        // when it fires; zero: it is stopped
	spare     []*waiter        // to be reused: a waiter has a channel and a timer
	asideAt   time.Time        // when those that stand aside may be looked at again
	closed    bool

	firstTokens latencies
}

var _ Scheduler = (*Embedded)(nil)

// maxSpare bounds the waiters that are kept for reuse.
const maxSpare = 1024

// New builds a scheduler without endpoints. Time is read from now (time.Now
// when nil) and waited for by timers, so that both must go at one pace. Close
// it when done.
func New(cfg Config, now func() time.Time) *Embedded {
	if now == nil {
		now = time.Now
	}
	e := &Embedded{now: now}
	e.admit = e.admits
	e.configure(cfg, e.now())
	e.wake = time.AfterFunc(time.Hour, e.tick)
	e.wake.Stop()
	return e
}

// Schedule waits in the request's flow until an endpoint may take it. The
// error is a *Refusal.
//
// A request waits for the pool's TTL while there is an endpoint that is not
// unhealthy, and for the NoEndpointTTL while there is none; when that changes
// the wait begins anew, but both limits together are never exceeded. The
// request's own TTL bounds the whole wait of this attempt; a negative one lets
// it wait not at all. When ctx ends first the answer is Cancelled, and no
// endpoint is held.
func (e *Embedded) Schedule(ctx context.Context, r Request) (Lease, error) {
	if ctx.Err() != nil {
		return nil, cancelled(ctx)
	}
	r.chain, r.Prompt = e.fleet.hasher.Load().chain(&r), nil
	switch {
	case r.Tokens == nil:
	case r.Tokens.tokens > 0:
		r.InputTokens = r.Tokens.tokens
	default: // who told that knows nothing
		r.Tokens = nil
	}
	l, w, refusal := e.enter(&r)
	e.fleet.free(r.chain) // unless the waiter or the lease has it
	switch {
	case refusal != nil:
		return nil, refusal
	case l != nil:
		return l, nil
	default:
		return e.wait(ctx, w)
	}
}

// enter dispatches the request at once, or refuses it, or queues it.
func (e *Embedded) enter(r *Request) (*lease, *waiter, *Refusal) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, nil, &Refusal{Reason: ShuttingDown, RetryAfter: minRetryAfter}
	}
	now := e.now()
	defer e.follow(now)
	b, f := e.queues.flow(r)
	if e.sheds(b, now) {
		return nil, nil, e.reject(b, f, r, ShedLoad, now)
	}
	l, h := e.direct(b, f, r, now)
	e.cycles.observe(e.now().Sub(now))
	if l != nil {
		return l, nil, nil
	}
	came := arrival{at: now, queued: e.queues.queued, ahead: e.queues.ahead(b, f)}
	if reason, full := e.queues.full(b, f, int64(len(r.Body))); full {
		if reason != FlowFull && !e.populated { // the queue is full since nobody serves it
			reason = NoEndpoints
		}
		return nil, nil, e.reject(b, f, r, reason, now)
	}
	deadline := e.deadline(b, r.TTL, now)
	if !deadline.IsZero() && !now.Before(deadline) {
		return nil, nil, e.reject(b, f, r, e.timeout(), now)
	}
	w := e.waiter()
	w.request, w.entered, w.queuedAt = *r, now, r.QueuedAt
	r.chain = nil
	w.came, w.held = came, h
	if w.queuedAt.IsZero() || w.queuedAt.After(now) {
		w.queuedAt = now
	}
	if h.by == HeldByCaches {
		e.queues.stand(b, f, w)
		e.wakeAt(now.Add(asideRest), now)
	} else {
		e.queues.push(b, f, w)
	}
	w.limit(deadline, now)
	b.enqueued.observe(e.now().Sub(now))
	if h.by != HeldByOrder && !w.isAside {
		e.stuck = w
		if e.cycle.saturation >= b.ceiling {
			e.wakeAt(e.reclaim(w, now), now)
		}
	}
	return nil, w, nil
}

// reject refuses a newcomer.
func (e *Embedded) reject(b *band, f *flow, r *Request, reason Reason, now time.Time) *Refusal {
	came := arrival{at: now, queued: e.queues.queued, ahead: e.queues.ahead(b, f)}
	e.refused(r, b, came, held{}, reason, now)
	return e.refuse(b, f, reason, now)
}

// wait blocks until the waiter has its answer.
func (e *Embedded) wait(ctx context.Context, w *waiter) (Lease, error) {
	for {
		select {
		case <-w.done:
		case <-ctx.Done():
			e.cancel(w, cancelled(ctx))
		case <-w.timer.C:
			if !e.expire(w) {
				continue // the deadline has moved
			}
		}
		return e.leave(w)
	}
}

// cancel takes the waiter out of the queue. If it was dispatched in the same
// instant, the endpoint that it will not use goes to the next in the queue.
func (e *Embedded) cancel(w *waiter, refusal *Refusal) {
	e.mu.Lock()
	l := w.lease
	if w.flow != nil {
		now := e.now()
		e.drop(w, refusal, now)
		e.follow(now)
	}
	w.refusal = refusal
	e.mu.Unlock()
	if l != nil {
		l.End(Outcome{Result: CallerFault}) // costs nothing and says nothing of the endpoint
	}
}

// expire refuses the waiter if its time is up.
func (e *Embedded) expire(w *waiter) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if w.flow == nil {
		return true // answered in the same instant
	}
	now := e.now()
	if w.early(now) {
		return false
	}
	f := w.flow
	e.queues.remove(w)
	w.refusal = e.refuse(w.band, f, e.timeout(), now)
	w.refusal.Waited = true
	e.refused(&w.request, w.band, w.came, w.held, w.refusal.Reason, now)
	e.follow(now)
	return true
}

// drop takes a waiter out that leaves for a reason of its own or of the whole
// scheduler.
func (e *Embedded) drop(w *waiter, refusal *Refusal, now time.Time) {
	w.band.refused[refusal.Reason]++
	e.queues.remove(w)
	w.refusal = refusal
	e.refused(&w.request, w.band, w.came, w.held, refusal.Reason, now)
}

// leave returns the waiter's answer and keeps the waiter for reuse.
func (e *Embedded) leave(w *waiter) (Lease, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l, refusal := w.lease, w.refusal
	e.recycle(w)
	if refusal != nil {
		return nil, refusal
	}
	return l, nil
}

// Close refuses all that waits and all that comes. Leases that are live go on
// and are still to be ended. It may be called again.
func (e *Embedded) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.sleep()
	now := e.now()
	e.queues.each(func(w *waiter) {
		e.drop(w, &Refusal{Reason: ShuttingDown, RetryAfter: minRetryAfter}, now)
		w.done <- struct{}{}
	})
}
