package scheduler

import "container/heap"

// This file is what goes before strict order: reservations of flows and shares
// of bands. Neither holds anything back: what nobody claims is everyone's, and
// nothing that runs is stopped for it.
//
// A flow with a reservation (Request.Reserved, the latest one counts) and a
// backlog goes first while the tokens of its leases are less than it. A lease
// counts its prompt without what was expected to be cached, and its expected
// output, from dispatch to end. So a flow holds at least its reservation once
// enough places were freed since it came, and at most one request more by this
// rule. Among several the higher band goes first, then who has the least part
// of its reservation.
//
// A band with a MinShare is owed that part of every token that the pool serves
// while the band has a backlog, and pays with what it is served while it is
// owed. It goes first while it is owed something. So over any time with a
// backlog it is behind its share by no more than what it waits for a place and
// the size of a request; what it gets beyond by its own rank costs it nothing.
// A band without a backlog is owed nothing, but keeps what it owes.

// promised is a heap of flows with a backlog that hold less than is reserved.
type promised []*flow

func (h promised) Len() int { return len(h) }
func (h promised) Less(i, j int) bool {
	a, b := h[i], h[j]
	if a.band.priority != b.band.priority {
		return a.band.priority > b.band.priority
	}
	// held/reserved, multiplied out
	x, y := float64(a.held)*float64(b.reserved), float64(b.held)*float64(a.reserved)
	if x != y {
		return x < y
	}
	return a.head().order.before(&b.head().order)
}

func (h promised) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].promised, h[j].promised = i, j
}

// Push and Pop belong to heap.Interface.
func (h *promised) Push(x any) {
	f := x.(*flow)
	f.promised = len(*h)
	*h = append(*h, f)
}

// Pop removes the last flow.
func (h *promised) Pop() any {
	last := len(*h) - 1
	f := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	f.promised = -1
	return f
}

// promise puts the flow among those below their reservation, or takes it out.
func (q *queues) promise(f *flow) {
	behind, in := f.held < f.reserved && f.queued() > 0, f.promised >= 0
	switch {
	case behind && in:
		heap.Fix(&q.promised, f.promised)
	case behind:
		heap.Push(&q.promised, f)
	case in:
		heap.Remove(&q.promised, f.promised)
	}
}

// guaranteed is the waiter that goes before strict order, or nil.
func (q *queues) guaranteed() *waiter {
	if len(q.promised) > 0 {
		return q.promised[0].head()
	}
	for _, b := range q.bands {
		if b.owed > 0 && b.queued > 0 {
			return b.next()
		}
	}
	return nil
}

// share books a dispatch with the bands' shares.
func (q *queues) share(c *charge) {
	if c.band.owed > 0 {
		c.paid = float64(c.cost)
		c.band.owed -= c.paid
	}
	q.accrue(float64(c.cost))
}

// reshare corrects that to what was served.
func (q *queues) reshare(c *charge, cost int) {
	if c.paid > 0 {
		c.band.owe(c.paid - float64(cost))
	}
	q.accrue(float64(cost - c.cost))
}

// accrue owes each band its part of so many tokens.
func (q *queues) accrue(tokens float64) {
	for _, b := range q.bands {
		if b.cfg.MinShare > 0 {
			b.owe(b.cfg.MinShare * tokens)
		}
	}
}

// owe changes what the band is owed. Without a backlog it only pays off.
func (b *band) owe(tokens float64) {
	b.owed += tokens
	if b.queued == 0 {
		b.owed = min(b.owed, 0)
	}
}
