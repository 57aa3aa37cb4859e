package llmd

import (
	"sync"
	"time"

	"weir/scheduler"
)

const (
	minRetryAfter     = time.Second
	maxRetryAfter     = time.Minute
	unknownRetryAfter = 5 * time.Second
	paceWeight        = 0.2 // of the newest wait
	maxBands          = 64
)

// pace is how long requests of each band waited lately. Who meets a full queue
// may come back after about that time: the queue's present content has left
// it then (Little's law, with the wait of those who leave for the wait of
// those who came last).
type pace struct {
	mu    sync.Mutex
	waits map[int]float64 // band -> seconds, exponentially weighted; at most maxBands
}

func newPace() *pace { return &pace{waits: make(map[int]float64)} }

func (p *pace) note(band int, waited time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old, known := p.waits[band]
	switch {
	case known:
		p.waits[band] = old + paceWeight*(waited.Seconds()-old)
	case len(p.waits) < maxBands:
		p.waits[band] = waited.Seconds()
	}
}

// retryAfter is at least a second and at most a minute.
func (p *pace) retryAfter(band int, reason scheduler.Reason) time.Duration {
	if reason == scheduler.ShuttingDown {
		return minRetryAfter
	}
	p.mu.Lock()
	seconds, known := p.waits[band]
	p.mu.Unlock()
	if !known || reason == scheduler.NoEndpoints {
		return unknownRetryAfter
	}
	return min(max(time.Duration(seconds*float64(time.Second)), minRetryAfter), maxRetryAfter)
}
