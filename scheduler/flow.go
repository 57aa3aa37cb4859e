package scheduler

import (
	"container/heap"
	"time"
)

// waiter is a request in the queue. Everything but done and timer.C, on which
// its own goroutine waits, is held under the scheduler's mutex.
type waiter struct {
	request  Request
	flow     *flow // nil when not queued
	band     *band
	queuedAt time.Time // of the first attempt
	entered  time.Time // when this attempt began to wait
	deadline time.Time // zero: none
	moved    bool      // the deadline has changed since the timer may have fired
	timer    *time.Timer
	came     arrival // what it met when it came
	held     held    // what held it last
	order    order
	isAside  bool
	place    int // in the flow's heap

	done    chan struct{} // one token once lease or refusal is set by another
	lease   *lease
	refusal *Refusal
}

// flow is one tenant's queue in one band and its account.
type flow struct {
	id   string
	band *band

	weight   int // these two as the latest request says
	reserved int

	waiting  waiters
	live     map[*charge]struct{} // one for each lease
	held     int                  // tokens of the live ones
	aside    int                  // of its requests, who stand aside
	backlog  int                  // place in the band's heap; -1 when nothing waits
	promised int                  // place in the pool's heap of flows below their reservation; -1

	output       float64 // running mean of output tokens, for estimates
	older, newer *flow   // in the band's list of idle flows
	idle         bool    // is in it

	account
}

// account is what the fairness policies know of a flow, each its own part.
type account struct {
	served float64 // VirtualTokenCounter: tokens divided by weight
	lifted float64 // how much of served was never served, in sum
	turn   uint64  // of its last dispatch: equal counters take turns

	round uint64 // RoundRobin: in which it goes next

	program *program // the program policies
	slot    int      // LeastAttainedService: place among those that wait, from 1; 0: none
}

func newFlow(id string, b *band) *flow {
	return &flow{id: id, band: b, live: map[*charge]struct{}{}, backlog: -1, promised: -1, output: assumedOutput}
}

func (f *flow) head() *waiter { return f.waiting[0] }

func (f *flow) queued() int { return len(f.waiting) }

func (f *flow) busy() bool { return len(f.waiting) > 0 || f.aside > 0 || len(f.live) > 0 }

func (f *flow) push(w *waiter)   { heap.Push(&f.waiting, w) }
func (f *flow) remove(w *waiter) { heap.Remove(&f.waiting, w.place) }

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

// idleFlows is a list of flows in which nothing waits or runs.
type idleFlows struct {
	oldest, newest *flow
	n              int
}

// add puts f behind those that are idle for longer.
func (l *idleFlows) add(f *flow) {
	f.idle, f.older, f.newer = true, l.newest, nil
	if l.newest == nil {
		l.oldest = f
	} else {
		l.newest.newer = f
	}
	l.newest = f
	l.n++
}

func (l *idleFlows) remove(f *flow) {
	if f.older == nil {
		l.oldest = f.newer
	} else {
		f.older.newer = f.newer
	}
	if f.newer == nil {
		l.newest = f.older
	} else {
		f.newer.older = f.older
	}
	f.idle, f.older, f.newer = false, nil, nil
	l.n--
}
