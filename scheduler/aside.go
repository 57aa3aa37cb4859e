package scheduler

import (
	"slices"
	"time"
)

// This file is the rule of standing aside. Where more sessions are at work than
// all caches hold, each turn drives out what another comes back for, and the
// pool computes the same prompts again and again: it thrashes, like a machine
// that runs more programs than have room in its memory. The remedy is the same:
// let some wait until others are through (Denning, The Working Set Model for
// Program Behavior, 1968). A request that would begin, or begin again, at the
// expense of others stands aside: those that find their prompt cached go before
// it.
//
// It is bounded: a request stands aside for asideFor at most, or half of the time
// that it may wait, or in which its first token is wanted, and then takes its
// turn whatever it drives out. While it stands aside it is in no queue, so that nobody is held by it.
const (
	// asideFrom is from how many tokens on, that others are expected to come back
	// for, a request stands aside: half a second of an engine's work.
	asideFrom = 8192
	asideFor  = time.Minute
	// asideEvery is how often one of those that stand aside is looked at, while
	// other requests come and go, and asideRest while none do.
	asideEvery = 20 * time.Millisecond
	asideRest  = time.Second
)

// displaced is how many tokens the request would drive out at the i-th endpoint
// that are expected to be used again. One that has most of its prompt there
// drives out nobody: it is at work.
func (f *fleet) displaced(a *sheet, i int) float64 {
	if a.rules.prefill == 0 {
		return 0 // not Weir's own profile, which alone weighs this
	}
	c := f.cost(a, &a.weighing, i)
	if 2*c.Uncached < float64(a.input) {
		return 0
	}
	return c.Evicts / evictionCost
}

// standsAside reports whether a request for which there is room lets others go
// first. Who has a guarantee does not, nor a retry, nor a band above one that is
// at work: it would stand aside for a lower one. And standing aside refuses
// nobody.
func (e *Embedded) standsAside(c *choice, b *band, f *flow, r *Request, entered, now time.Time) bool {
	if c.displaces < asideFrom || f.held < f.reserved || !r.QueuedAt.IsZero() || len(r.Exclude) > 0 || e.queues.busyBelow(b) {
		return false
	}
	if _, full := e.queues.full(b, f, int64(len(r.Body))); full {
		return false
	}
	return now.Before(e.patience(b, r, entered))
}

// patience is until when a request may stand aside.
func (e *Embedded) patience(b *band, r *Request, entered time.Time) time.Time {
	until := entered.Add(asideFor)
	if b.cfg.Ordering == SLODeadline && r.TTFT > 0 {
		until = earlier(until, entered.Add(r.TTFT/2))
	}
	if deadline := e.deadline(b, r.TTL, entered); !deadline.IsZero() {
		until = earlier(until, entered.Add(deadline.Sub(entered)/2))
	}
	return until
}

// rejoin returns to their queues those whose time to stand aside is over, and,
// of the others, the one that goes next if it would not displace others any more.
func (e *Embedded) rejoin(now time.Time) {
	if len(e.queues.aside) == 0 {
		return
	}
	if now.Before(e.asideAt) {
		e.wakeAt(e.asideAt, now)
		return
	}
	e.asideAt = now.Add(asideEvery)
	var next *waiter
	for _, w := range slices.Clone(e.queues.aside) {
		switch {
		case e.queues.busyBelow(w.band), !now.Before(e.patience(w.band, &w.request, w.entered)):
			e.queues.rejoin(w)
		case next == nil, w.asideBefore(next):
			next = w
		}
	}
	if next != nil {
		c, _ := e.fleet.pick(&next.request, now)
		if len(c.endpoints) > 0 && c.displaces < asideFrom {
			e.queues.rejoin(next)
		}
	}
	if len(e.queues.aside) > 0 {
		e.wakeAt(now.Add(asideRest), now)
	}
}

// asideBefore reports whether w rejoins before o, which came earlier: for a
// higher band, and where flows share by tokens for less served.
func (w *waiter) asideBefore(o *waiter) bool {
	if w.band != o.band {
		return w.band.priority > o.band.priority
	}
	return w.band.cfg.Fairness.Policy == VirtualTokenCounter && w.flow.served < o.flow.served
}

// busyBelow reports whether a lower band has requests waiting or running.
func (q *queues) busyBelow(b *band) bool {
	return slices.ContainsFunc(q.bands, func(o *band) bool {
		return o.priority < b.priority && o.idle.n < len(o.flows)
	})
}

// stand has a waiter stand aside that is in no queue. It counts against the caps
// of the queue.
func (q *queues) stand(b *band, f *flow, w *waiter) {
	w.band, w.flow, w.isAside = b, f, true
	if w.order.seq == 0 {
		q.arrive(w)
	}
	q.aside = append(q.aside, w)
	b.aside++
	f.aside++
	b.rest(f)
	q.enlist(w)
}

// stepAside has one stand aside that is in its queue.
func (q *queues) stepAside(w *waiter) {
	b, f := w.band, w.flow
	f.aside++ // or the flow might be forgotten in between
	q.remove(w)
	f.aside--
	q.stand(b, f, w)
}

// rejoin puts one that stood aside into its queue, as it came.
func (q *queues) rejoin(w *waiter) {
	b, f := w.band, w.flow
	q.leaveAside(w)
	q.push(b, f, w)
}

func (q *queues) leaveAside(w *waiter) {
	i := slices.Index(q.aside, w)
	q.aside = slices.Delete(q.aside, i, i+1)
	w.isAside = false
	w.band.aside--
	w.flow.aside--
	q.delist(w)
}

// enlist and delist keep what is known of all that wait, in a queue or aside.
func (q *queues) enlist(w *waiter) {
	w.band.bytes += int64(len(w.request.Body))
	q.bytes += int64(len(w.request.Body))
	if w.request.ID != "" {
		q.byID[w.request.ID] = w
	}
}

func (q *queues) delist(w *waiter) {
	w.band.bytes -= int64(len(w.request.Body))
	q.bytes -= int64(len(w.request.Body))
	if q.byID[w.request.ID] == w {
		delete(q.byID, w.request.ID)
	}
}
