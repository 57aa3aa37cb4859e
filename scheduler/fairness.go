package scheduler

import (
	"container/heap"
	"time"
)

// fairness says whose turn it is among the flows of a band that have a
// backlog, which the band keeps in a heap by an order of the policy's. What
// that order looks at changes only while one of these methods is called, or
// with the head of the flow.
type fairness interface {
	// next is the flow whose turn it is. The heap is not empty.
	next(backlog *flowHeap) *flow
	// arrives takes a flow without a backlog that begins to wait or is served at
	// once; first is the first of the heap, nil when that is empty.
	arrives(f, first *flow, now time.Time)
	// follow takes note of a flow whose head, backlog or account has changed. It
	// is in the heap if it has a backlog.
	follow(f *flow)
	// charge books what the flow is about to be served. A flow that waited for
	// it is still in the heap.
	charge(f *flow, c *charge, now time.Time)
	// correct replaces the charge by what was served.
	correct(c *charge, s service, now time.Time)
}

// fairness returns the policy and the order of its heap.
func (q *queues) fairness(cfg Fairness) (f fairness, before func(a, b *flow) bool) {
	switch cfg.Policy {
	case GlobalStrict: // one queue for all flows: the band's ordering decides
		return byOrder{}, byHead
	case RoundRobin:
		return &roundRobin{}, byRound
	case LeastAttainedService:
		return &leastAttained{programs: q.programsOf(cfg), cfg: cfg}, byHead
	case TurnPriority:
		t := &turnPriority{programs: q.programsOf(cfg), cfg: cfg}
		return t, t.before
	default:
		return &tokenCounter{outputCost: q.cfg.OutputCost}, byService
	}
}

// byOrder is a policy that knows nothing but the order of its heap.
type byOrder struct{}

func (byOrder) next(backlog *flowHeap) *flow        { return backlog.flows[0] }
func (byOrder) arrives(_, _ *flow, _ time.Time)     {}
func (byOrder) follow(*flow)                        {}
func (byOrder) charge(*flow, *charge, time.Time)    {}
func (byOrder) correct(*charge, service, time.Time) {}

func byHead(a, b *flow) bool { return a.head().order.before(&b.head().order) }

// roundRobin lets one request of each flow go, in the order of their ids from
// the one that went last.
type roundRobin struct {
	byOrder
	cursor string // the flow that went last; "" when none waited since
	round  uint64 // how often the ids were gone through
}

func byRound(a, b *flow) bool {
	if a.round != b.round {
		return a.round < b.round
	}
	return a.id < b.id
}

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
