package scheduler

import (
	"math/rand/v2"
	"slices"
	"time"
)

// SetConfig changes every setting of the scheduler. What waits keeps its
// place, with the time limits that now hold, even where the new caps would not
// have let it in; what runs goes on.
func (e *Embedded) SetConfig(cfg Config) {
	e.change(func(now time.Time) {
		e.configure(cfg, now)
		e.queues.each(func(w *waiter) { w.limit(e.deadlineOf(w), now) })
	})
}

func (e *Embedded) configure(cfg Config, now time.Time) {
	e.cfg = cfg.withDefaults()
	e.ring.resize(e.cfg.Decisions)
	e.queues.configure(&e.cfg)
	if e.chance == nil || e.seed != e.cfg.Seed {
		e.chance = rand.New(rand.NewPCG(e.cfg.Seed, 0)) //nolint:gosec // chance that can be repeated
		e.seed = e.cfg.Seed
	}
	e.fleet.configure(&e.cfg)
	e.equip(now)
}

// equip takes the endpoints as they were given.
func (e *Embedded) equip(now time.Time) {
	e.fleet.set(e.given, now)
	e.fleet.screen()
	e.gauge.reset(&e.cfg, &e.fleet, now)
}

// SetEndpoints replaces the pool's endpoints without touching the queue: those
// that stay keep their leases and health, new ones begin with unknown health,
// and removed ones finish what runs on them.
func (e *Embedded) SetEndpoints(endpoints []Endpoint) {
	endpoints = slices.Clone(endpoints)
	e.change(func(now time.Time) {
		e.given = endpoints
		e.equip(now)
	})
}

// SetHealth tells what a probe found. An id that the pool lacks is ignored:
// the endpoint was removed while it was probed.
func (e *Embedded) SetHealth(id string, h Health) {
	e.change(func(now time.Time) {
		if p := e.fleet.byID[id]; p != nil {
			p.probed(h)
			e.follows(p, now)
			if r := &e.fleet.rollout; !r.judged {
				r.judged = true
				e.rescreen(now)
			}
		}
	})
}

// SetLoad tells what an endpoint said of itself, or a rank of one whose name is
// the id. What an endpoint of several ranks says of all of them together is taken
// for equal parts. An id that the pool lacks is ignored.
func (e *Embedded) SetLoad(id string, l Load) {
	if !(l.KVUsage > 0) { // also what is no number
		l.KVUsage = 0
	}
	l.Waiting, l.Running = max(l.Waiting, 0), max(l.Running, 0)
	e.change(func(now time.Time) {
		p := e.fleet.byID[id]
		switch {
		case p == nil:
		case p.ranks != nil && id == p.ID:
			part := l.divided(len(p.ranks))
			for _, q := range p.ranks {
				e.fleet.loaded(q, part)
				e.gauge.update(q, now)
			}
		default:
			e.fleet.loaded(p, l)
			e.gauge.update(p, now)
		}
	})
}

// change alters the endpoints or settings, then does what follows from it for
// the queue.
func (e *Embedded) change(alter func(now time.Time)) {
	defer e.sweep()
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
