package scheduler

import (
	"container/heap"
	"math"
	"time"
)

// order is where a waiter stands among others. It is fixed when the waiter is
// queued, so that a heap holds it: what grows with time grows for all alike.
type order struct {
	fresh bool          // not a retry; retries go first, the oldest request before the others
	due   time.Duration // by the ordering, since the queues' epoch; maxDue when nothing is due
	turn  float64       // by the turns of sessions: less for a deeper one and for one that waits longer
	seq   uint64        // of arrival

	came time.Duration // when that was, since the epoch; never less than of an earlier one
}

const maxDue time.Duration = math.MaxInt64

func (a *order) before(b *order) bool {
	switch {
	case a.fresh != b.fresh:
		return b.fresh
	case a.due != b.due:
		return a.due < b.due
	case a.turn != b.turn:
		return a.turn < b.turn
	default:
		return a.seq < b.seq
	}
}

// arrive notes when w came. A clock that goes back makes nobody come earlier
// than those before.
func (q *queues) arrive(w *waiter) {
	if q.epoch.IsZero() {
		q.epoch = w.entered
	}
	q.seq++
	q.latest = max(q.latest, w.entered.Sub(q.epoch))
	w.order.seq, w.order.came = q.seq, q.latest
}

// rank gives w its order in its band. Where sessions take turns, their score is
// turn + TurnTimeWeight * seconds waited, the highest first; the ordering goes
// before it, and leaves all to it where it is FirstCome.
func (q *queues) rank(w *waiter) {
	b, r := w.band, &w.request
	o := order{fresh: r.QueuedAt.IsZero(), seq: w.order.seq, came: w.order.came}
	switch {
	case !o.fresh:
		o.due = w.queuedAt.Sub(q.epoch)
	case b.cfg.Ordering == Earliest:
		o.due = due(o.came, b.cfg.ttl(r.TTL))
	case b.cfg.Ordering == SLODeadline:
		o.due = due(w.queuedAt.Sub(q.epoch), r.TTFT)
	default: // FirstCome: as they arrived
	}
	if o.fresh && b.cfg.sessions() {
		o.turn = b.cfg.Fairness.TurnTimeWeight*o.came.Seconds() - float64(q.turn(b, r, w.entered))
	}
	w.order = o
}

// due is at plus after; maxDue where after is no limit or reaches beyond that.
func due(at, after time.Duration) time.Duration {
	if after <= 0 || at > maxDue-after {
		return maxDue
	}
	return at + after
}

// turn is which turn of its session the request is.
func (q *queues) turn(b *band, r *Request, now time.Time) int {
	switch {
	case r.Turn > 0:
		return r.Turn
	case r.Session == "":
		return 1
	default:
		return q.sessions.turn(r.Session, b.cfg.Fairness.TurnInactivity, now)
	}
}

// waiters is a heap by order.
type waiters []*waiter

func (h waiters) Len() int           { return len(h) }
func (h waiters) Less(i, j int) bool { return h[i].order.before(&h[j].order) }
func (h waiters) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h waiters) init() { heap.Init(&h) }

// Push and Pop belong to heap.Interface.
func (h *waiters) Push(x any) {
	w := x.(*waiter)
	w.place = len(*h)
	*h = append(*h, w)
}

// Pop removes the last waiter.
func (h *waiters) Pop() any {
	last := len(*h) - 1
	w := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return w
}

// before counts those that go before o, at most so many. A subtree whose root
// doesn't holds none that does, so it costs time in proportion to the count.
func (h waiters) before(o *order, most int) int {
	n := 0
	var walk func(i int)
	walk = func(i int) {
		if i >= len(h) || n >= most || !h[i].order.before(o) {
			return
		}
		n++
		walk(2*i + 1)
		walk(2*i + 2)
	}
	walk(0)
	return n
}
