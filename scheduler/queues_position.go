package scheduler

import "time"

// maxCounted is how far a Position counts those that go before it.
const maxCounted = 4096

// Position tells where the waiting request with this Request.ID stands. Ahead
// is exact within the request's flow and an estimate for the others; Expected
// is how long so many take at the present rate of dispatches. False means that
// no such request waits: it was dispatched, refused or never came.
func (e *Embedded) Position(id string) (Position, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.queues.byID[id]
	if w == nil {
		return Position{}, false
	}
	now := e.now()
	p := Position{Ahead: e.queues.aheadOfWaiter(w), Waited: max(now.Sub(w.entered), 0), Hold: w.held.by}
	if p.Ahead > 0 && !w.isAside {
		p.Hold = HeldByOrder
	}
	if !e.populated {
		p.Hold = HeldByNoEndpoint
	}
	p.Expected = e.drain.expected(p.Ahead+1, now)
	return p, true
}

func (q *queues) aheadOfWaiter(w *waiter) int {
	if w.isAside {
		return q.ahead(w.band, w.flow)
	}
	own := w.flow.waiting.before(&w.order, maxCounted)
	if w.band.cfg.Fairness.Policy != GlobalStrict {
		return q.aheadOf(w.band, w.flow, own)
	}
	n := 0
	for _, b := range q.bands {
		if b.priority <= w.band.priority {
			break
		}
		n += b.queued
	}
	return n + w.band.before(&w.order, maxCounted)
}

// before counts those of all flows that go before o where one order holds for
// all, at most so many. It follows the heap as waiters.before does.
func (b *band) before(o *order, most int) int {
	n := 0
	var walk func(i int)
	walk = func(i int) {
		if i >= len(b.backlog.flows) || n >= most || !b.backlog.flows[i].head().order.before(o) {
			return
		}
		n += b.backlog.flows[i].waiting.before(o, most-n)
		walk(2*i + 1)
		walk(2*i + 2)
	}
	walk(0)
	return n
}

// expected is how long it takes to dispatch so many requests; 0 when nothing is
// known of the rate.
func (d *drain) expected(n int, now time.Time) time.Duration {
	rate := d.perSecond(now)
	if rate <= 0 {
		return 0
	}
	return time.Duration(min(float64(n)/rate, maxExpected.Seconds()) * float64(time.Second))
}

// maxExpected is where an expected wait is no longer an estimate.
const maxExpected = time.Hour
