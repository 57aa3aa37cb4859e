package scheduler

import (
	"slices"
	"time"
)

// SetConfig changes every setting of the scheduler. What waits keeps its
// place, with the time limits that now hold, even where the new caps would not
// have let it in; what runs goes on.
func (e *Embedded) SetConfig(cfg Config) {
	e.change(func(now time.Time) {
		e.configure(cfg)
		e.queues.each(func(w *waiter) { w.limit(e.deadlineOf(w), now) })
	})
}

func (e *Embedded) configure(cfg Config) {
	e.cfg = cfg.withDefaults()
	e.ring.resize(e.cfg.Decisions)
	e.queues.configure(&e.cfg)
	e.fleet.set(e.given, e.cfg.MaxConcurrency)
}

// SetEndpoints replaces the pool's endpoints without touching the queue: those
// that stay keep their leases and health, new ones begin with unknown health,
// and removed ones finish what runs on them.
func (e *Embedded) SetEndpoints(endpoints []Endpoint) {
	endpoints = slices.Clone(endpoints)
	e.change(func(time.Time) {
		e.given = endpoints
		e.fleet.set(e.given, e.cfg.MaxConcurrency)
	})
}

// SetHealth tells what a probe found. An id that the pool lacks is ignored:
// the endpoint was removed while it was probed.
func (e *Embedded) SetHealth(id string, h Health) {
	e.change(func(time.Time) {
		if p := e.fleet.byID[id]; p != nil {
			p.probed(h)
		}
	})
}

// SetLoad tells what an endpoint said of itself. An id that the pool lacks is
// ignored.
func (e *Embedded) SetLoad(id string, l Load) {
	e.change(func(time.Time) {
		if p := e.fleet.byID[id]; p != nil {
			p.load = l
		}
	})
}

// change alters the endpoints or settings, then does what follows from it for
// the queue.
func (e *Embedded) change(alter func(now time.Time)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	alter(now)
	if populated := e.fleet.populated(); populated != e.populated {
		e.populated, e.changed = populated, now
		e.queues.each(func(w *waiter) { w.limit(e.deadlineOf(w), now) })
	}
	if !e.closed {
		e.dispatch(now)
	}
}
