package scheduler

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// Demand is what a pool is asked for and what it has to serve it: what a
// decision on its size needs.
type Demand struct {
	Queued       int             // requests that wait
	QueuedTokens int             // of their prompts
	Oldest       time.Duration   // that one of them has waited, earlier attempts included
	FirstTokens  Latencies       // times to first token since the scheduler was built
	Endpoints    []EndpointState // as in State
}

// Demand takes a snapshot. It costs time in proportion to what waits, under the
// scheduler's lock: for once a second, not for every request.
func (e *Embedded) Demand() Demand {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	d := Demand{Queued: e.queues.queued + len(e.queues.aside), FirstTokens: e.firstTokens.read()}
	e.queues.each(func(w *waiter) {
		d.QueuedTokens += w.request.InputTokens
		d.Oldest = max(d.Oldest, now.Sub(w.queuedAt))
	})
	for _, p := range slices.Concat(e.fleet.endpoints, e.fleet.leaving) {
		d.Endpoints = together(d.Endpoints, p, p.state(now))
	}
	return d
}

// Latencies counts durations in buckets whose bounds grow by the fourth root of
// two from 1 ms to 3 minutes. Counts only grow: the difference of two is what
// came between them.
type Latencies [latencyBuckets]uint64

const (
	latencyBuckets = 72
	perDoubling    = 4
)

// Sub is what came since an earlier count.
func (l Latencies) Sub(earlier Latencies) Latencies {
	for i := range l {
		l[i] -= earlier[i]
	}
	return l
}

// Quantile is a duration that the part q of those counted did not exceed, too
// high by a fifth at most; 0 where none was counted.
func (l Latencies) Quantile(q float64) time.Duration {
	var all uint64
	for _, n := range l {
		all += n
	}
	rank := uint64(math.Ceil(q * float64(all)))
	for i, n := range l {
		if n >= rank && n > 0 {
			return time.Duration(float64(time.Millisecond) * math.Exp2(float64(i)/perDoubling))
		}
		rank -= min(n, rank)
	}
	return 0
}

// latencies are Latencies that several may add to at once.
type latencies [latencyBuckets]atomic.Uint64

func (l *latencies) observe(d time.Duration) {
	doublings := math.Log2(max(d.Seconds()*1000, 1))
	l[min(int(math.Ceil(doublings*perDoubling)), latencyBuckets-1)].Add(1)
}

func (l *latencies) read() (counts Latencies) {
	for i := range l {
		counts[i] = l[i].Load()
	}
	return counts
}
