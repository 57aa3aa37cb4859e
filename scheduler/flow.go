package scheduler

import (
	"container/list"
	"time"
)

// waiter is a request in the queue. Everything but done and timer.C, on which
// its own goroutine waits, is held under the scheduler's mutex.
type waiter struct {
	request  Request
	flow     *flow // nil when not queued
	band     *band
	queuedAt time.Time // orders the flow: of the first attempt
	entered  time.Time // when this attempt began to wait
	deadline time.Time // zero: none
	timer    *time.Timer
	came     arrival // what it met when it came
	held     Hold    // what held it last

	done    chan struct{} // one token once lease or refusal is set by another
	lease   *lease
	refusal *Refusal

	prev, next *waiter
}

// flow is one tenant's queue in one band, oldest first, and its account: the
// tokens that it was served, divided by its weight.
type flow struct {
	id     string
	weight int

	served  float64 // virtual token counter
	lifted  float64 // how much of served was never served, in sum
	turn    uint64  // of its last dispatch: equal counters take turns
	output  float64 // running mean of output tokens, for estimates
	backlog int     // place in the band's heap; -1 when nothing waits
	used    *list.Element

	head, tail *waiter
	queued     int
}

// push puts w behind those that began to wait before it. A retry brings the
// time of its first attempt, and so goes to the head. Looking from the tail
// for newcomers and from the head for retries makes both short.
func (f *flow) push(w *waiter) {
	f.queued++
	if f.tail == nil {
		f.head, f.tail = w, w
		return
	}
	if !w.queuedAt.Before(f.tail.queuedAt) {
		w.prev, f.tail.next, f.tail = f.tail, w, w
		return
	}
	at := f.head
	for !w.queuedAt.Before(at.queuedAt) {
		at = at.next
	}
	w.prev, w.next = at.prev, at
	at.prev = w
	if w.prev == nil {
		f.head = w
	} else {
		w.prev.next = w
	}
}

func (f *flow) remove(w *waiter) {
	f.queued--
	if w.prev == nil {
		f.head = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		f.tail = w.prev
	} else {
		w.next.prev = w.prev
	}
	w.prev, w.next = nil, nil
}

// assumedOutput is the output estimate of a flow of which nothing is known.
const assumedOutput = 128

// expectedOutput estimates the output of a request: callers' bounds are mostly
// far above what is made, so the flow's own past counts, up to the bound.
func (f *flow) expectedOutput(bound int) int {
	expected := int(f.output)
	if bound > 0 {
		expected = min(expected, bound)
	}
	return expected
}

func (f *flow) learn(output int) { f.output += (float64(output) - f.output) / 8 }

// byService orders the flows with a backlog: least served first, and among
// equals the one whose last turn is longest ago.
type byService []*flow

func (h byService) Len() int { return len(h) }
func (h byService) Less(i, j int) bool {
	if h[i].served != h[j].served {
		return h[i].served < h[j].served
	}
	return h[i].turn < h[j].turn
}

func (h byService) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].backlog, h[j].backlog = i, j
}

// Push and Pop belong to heap.Interface.
func (h *byService) Push(x any) {
	f := x.(*flow)
	f.backlog = len(*h)
	*h = append(*h, f)
}

// Pop removes the last flow.
func (h *byService) Pop() any {
	last := len(*h) - 1
	f := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	f.backlog = -1
	return f
}
