package billing

import (
	"fmt"
	"sync"
	"time"
)

// group lets settlements share transactions. It has no goroutine of its own:
// the first of those that wait leads, which means that it commits for all of
// them. One that finds nobody at work leads at once.
//
// Few large transactions cost less than many small ones. So a second one runs
// beside the first only when a whole batch has gathered, and a leader lingers
// until as many have come as there were callers a moment ago: those whose
// answers went out together tend to come back together. A lone caller never
// waits.
type group struct {
	maxBatch, maxInFlight, maxPending int
	linger                            time.Duration

	mu        sync.Mutex
	idle      sync.Cond     // signalled when nobody commits or waits
	pending   []*settlement // in order of arrival
	running   int           // leaders
	gathering bool          // one of them still waits for others; it is pending[0]
	crowd     int           // callers seen at once, lately
	crowded   chan struct{} // tells the one who gathers that a crowd is there
}

func (g *group) init(cfg SettleConfig) {
	g.maxBatch, g.maxInFlight, g.maxPending = cfg.MaxBatch, cfg.MaxInFlight, cfg.MaxPending
	g.linger = cfg.Linger
	g.idle.L = &g.mu
	g.crowded = make(chan struct{}, 1)
}

// enter joins the line. The error is ErrUnavailable when it is full.
func (g *group) enter(it *settlement) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.pending) >= g.maxPending {
		return fmt.Errorf("%w: %d receipts wait already", ErrUnavailable, len(g.pending))
	}
	g.pending = append(g.pending, it)
	g.advance()
	return nil
}

// advance names the next leader, where one may begin. Callers hold mu.
// Afterwards nobody waits while nobody leads.
func (g *group) advance() {
	switch n := len(g.pending); {
	case n == 0:
	case g.gathering:
		if n >= g.crowd {
			select {
			case g.crowded <- struct{}{}:
			default: // it knows
			}
		}
	case g.running == 0, g.running < g.maxInFlight && n >= g.maxBatch:
		g.running++
		g.gathering = true
		g.pending[0].turn <- struct{}{}
	default:
	}
}

// gather is what a leader calls first: its batch, itself included.
func (g *group) gather() []*settlement {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.pending) < g.crowd && g.linger > 0 {
		g.mu.Unlock()
		timer := time.NewTimer(g.linger)
		select {
		case <-g.crowded:
		case <-timer.C:
		}
		timer.Stop()
		g.mu.Lock()
	}
	select {
	case <-g.crowded: // for this leader, not for the next one
	default:
	}
	n := min(len(g.pending), g.maxBatch)
	batch := g.pending[:n:n]
	g.pending = g.pending[n:]
	g.gathering = false
	g.advance()
	return batch
}

// leave lets the callers of a stored batch go, and the next leader begin.
func (g *group) leave(batch []*settlement) {
	g.mu.Lock()
	g.running--
	g.crowd = min(len(batch)+len(g.pending), g.maxBatch)
	g.advance()
	if g.running == 0 {
		g.idle.Broadcast()
	}
	g.mu.Unlock()
	for _, it := range batch {
		close(it.turn)
	}
}

// drain waits until nobody leads, and so until nobody waits.
func (g *group) drain() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.running > 0 {
		g.idle.Wait()
	}
}
