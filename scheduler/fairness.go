package scheduler

import (
	"container/heap"
	"time"
)

// fairness says whose turn it is among the flows of a band that have a
// backlog, which the band keeps in a heap.
type fairness interface {
	// before orders the heap. What it looks at changes only while one of the
	// methods below is called, or with the head of the flow.
	before(a, b *flow) bool
	// next is the flow whose turn it is. The heap is not empty.
	next(backlog *flowHeap) *flow
	// arrives takes a flow without a backlog that begins to wait or is served at
	// once; first is the first of the heap, nil when that is empty.
	arrives(f, first *flow, now time.Time)
	// charge books what the flow is about to be served. A flow that waited for
	// it is still in the heap.
	charge(f *flow, c *charge, now time.Time)
	// correct replaces the charge by what was served.
	correct(c *charge, s service, now time.Time)
}

func (q *queues) fairness(f Fairness) fairness {
	switch f.Policy {
	case GlobalStrict:
		return globalStrict{}
	case RoundRobin:
		return &roundRobin{}
	case LeastAttainedService:
		return &leastAttained{programs: q.programsOf(f), cfg: f}
	case TurnPriority:
		return &turnPriority{programs: q.programsOf(f), cfg: f}
	default:
		return &tokenCounter{outputCost: q.cfg.OutputCost}
	}
}

// globalStrict has one queue for all flows: the band's ordering decides.
type globalStrict struct{}

func (globalStrict) before(a, b *flow) bool              { return a.head().order.before(&b.head().order) }
func (globalStrict) next(backlog *flowHeap) *flow        { return backlog.flows[0] }
func (globalStrict) arrives(_, _ *flow, _ time.Time)     {}
func (globalStrict) charge(*flow, *charge, time.Time)    {}
func (globalStrict) correct(*charge, service, time.Time) {}

// roundRobin lets one request of each flow go, in the order of their ids from
// the one that went last.
type roundRobin struct {
	cursor string // the flow that went last; "" when none waited since
	round  uint64 // how often the ids were gone through
}

func (*roundRobin) before(a, b *flow) bool {
	if a.round != b.round {
		return a.round < b.round
	}
	return a.id < b.id
}

func (*roundRobin) next(backlog *flowHeap) *flow { return backlog.flows[0] }

func (r *roundRobin) arrives(f, first *flow, _ time.Time) {
	if first == nil {
		r.cursor = ""
	}
	f.round = r.round
	if f.id <= r.cursor {
		f.round++
	}
}

// charge moves the cursor, unless the flow goes out of turn.
func (r *roundRobin) charge(f *flow, _ *charge, _ time.Time) {
	if f.backlog != 0 {
		return
	}
	r.round = max(r.round, f.round)
	r.cursor = f.id
	f.round = r.round + 1
}

func (*roundRobin) correct(*charge, service, time.Time) {}

// flowHeap is a heap of flows with a backlog.
type flowHeap struct {
	flows  []*flow
	before func(a, b *flow) bool
}

var _ heap.Interface = (*flowHeap)(nil)

func (h *flowHeap) Len() int           { return len(h.flows) }
func (h *flowHeap) Less(i, j int) bool { return h.before(h.flows[i], h.flows[j]) }
func (h *flowHeap) Swap(i, j int) {
	h.flows[i], h.flows[j] = h.flows[j], h.flows[i]
	h.flows[i].backlog, h.flows[j].backlog = i, j
}

// Push and Pop belong to heap.Interface.
func (h *flowHeap) Push(x any) {
	f := x.(*flow)
	f.backlog = len(h.flows)
	h.flows = append(h.flows, f)
}

// Pop removes the last flow.
func (h *flowHeap) Pop() any {
	last := len(h.flows) - 1
	f := h.flows[last]
	h.flows[last] = nil
	h.flows = h.flows[:last]
	f.backlog = -1
	return f
}
