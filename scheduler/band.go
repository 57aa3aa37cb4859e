package scheduler

import (
	"cmp"
	"container/heap"
	"container/list"
	"slices"
	"time"
)

// maxIdleFlows is how many flows without a backlog a band remembers. A
// forgotten flow returns as a new one: what it was served beyond the others is
// forgiven.
const maxIdleFlows = 4096

// band is one priority level: its flows, and whose turn it is among them. It
// is a virtual token counter: the flow that was served least, by weight, goes
// next; and a flow that comes back starts level with the least served one, so
// that nobody saves up by staying away.
type band struct {
	priority int
	flows    map[string]*flow
	backlog  byService  // flows in which something waits
	recent   *list.List // all flows, the longest unused first
	queued   int
	level    float64 // counter of the flow that was served last, before it was
	turn     uint64

	dispatched uint64
	waited     time.Duration // in sum, by those dispatched
	refused    map[Reason]uint64
}

// flow returns the flow of this id, with the weight of its latest request.
func (b *band) flow(id string, weight int) *flow {
	f := b.flows[id]
	if f == nil {
		f = &flow{id: id, backlog: -1, output: assumedOutput}
		f.used = b.recent.PushBack(f)
		b.flows[id] = f
		b.forget()
	} else {
		b.recent.MoveToBack(f.used)
	}
	f.weight = max(weight, 1)
	return f
}

// forget drops the longest unused flows beyond the bound, never one with a
// backlog.
func (b *band) forget() {
	for len(b.flows)-len(b.backlog) > maxIdleFlows {
		f := b.recent.Front().Value.(*flow)
		if f.backlog >= 0 {
			b.recent.MoveToBack(f.used)
			continue
		}
		b.recent.Remove(f.used)
		delete(b.flows, f.id)
	}
}

// lift brings a flow without a backlog level with the least served flow.
func (b *band) lift(f *flow) {
	level := b.level
	if len(b.backlog) > 0 {
		level = b.backlog[0].served
	}
	if level > f.served {
		f.lifted += level - f.served
		f.served = level
	}
}

// charge books an estimate of what the flow is about to be served.
func (b *band) charge(f *flow, tokens int) charge {
	b.level = f.served
	b.turn++
	f.turn = b.turn
	c := charge{amount: float64(tokens) / float64(f.weight), weight: f.weight, lifted: f.lifted}
	b.book(f, c.amount)
	return c
}

// correct replaces a charge by what was used. What the flow was charged too
// much is returned, but for as much as it was lifted meanwhile: without the
// charge it would have been lifted by that much more.
func (b *band) correct(f *flow, c charge, tokens int) {
	by := float64(tokens)/float64(c.weight) - c.amount
	if by < 0 {
		by = min(by+f.lifted-c.lifted, 0)
	}
	b.book(f, by)
}

func (b *band) book(f *flow, by float64) {
	f.served += by
	if f.backlog >= 0 {
		heap.Fix(&b.backlog, f.backlog)
	}
}

// charge is what a flow's counter was charged for one lease.
type charge struct {
	amount float64
	weight int
	lifted float64 // the flow's, at that time
}

// queues is all that waits in a pool: bands, highest first, with their flows.
// Bands come from the operator's catalogue, so there are few.
type queues struct {
	bands  []*band
	queued int
}

func (q *queues) band(priority int) *band {
	i, ok := slices.BinarySearchFunc(q.bands, priority, func(b *band, priority int) int {
		return cmp.Compare(priority, b.priority)
	})
	if !ok {
		q.bands = slices.Insert(q.bands, i, &band{
			priority: priority,
			flows:    map[string]*flow{},
			recent:   list.New(),
			refused:  map[Reason]uint64{},
		})
	}
	return q.bands[i]
}

func (q *queues) push(b *band, f *flow, w *waiter) {
	w.band, w.flow = b, f
	if f.queued == 0 {
		b.lift(f)
		heap.Push(&b.backlog, f)
	}
	f.push(w)
	b.queued++
	q.queued++
}

// next returns the waiter whose turn it is, or nil. It changes nothing. The
// search ends at the first band that may not fill the pool further, even if
// nothing waits in it: what is held back for a band is not for lower ones.
func (q *queues) next(ceiling func(b *band) bool) *waiter {
	if q.queued == 0 {
		return nil
	}
	for _, b := range q.bands {
		if !ceiling(b) {
			return nil
		}
		if len(b.backlog) > 0 {
			return b.backlog[0].head
		}
	}
	return nil
}

func (q *queues) remove(w *waiter) {
	w.flow.remove(w)
	w.band.queued--
	q.queued--
	if w.flow.queued == 0 {
		heap.Remove(&w.band.backlog, w.flow.backlog)
		w.band.forget()
	}
	w.flow = nil
}

// each calls do for every waiter, which may remove the one that it is given.
func (q *queues) each(do func(*waiter)) {
	for _, b := range q.bands {
		for _, f := range slices.Clone(b.backlog) {
			for w := f.head; w != nil; {
				next := w.next
				do(w)
				w = next
			}
		}
	}
}

// ahead estimates how many go before a newcomer to the flow: all of the higher
// bands, and of its own band one of each other flow for each one of its own.
func (q *queues) ahead(b *band, f *flow) int {
	n := 0
	for _, higher := range q.bands {
		if higher.priority <= b.priority {
			break
		}
		n += higher.queued
	}
	return n + min(b.queued, (f.queued+1)*max(len(b.backlog), 1))
}
