package scheduler

import "time"

// choice is what picking came to. Its slices belong to the picker and are
// valid until it picks again.
type choice struct {
	endpoints  []*endpoint // that may take the request, best first; none: no room
	cached     int         // tokens of the prompt that the first one is expected to have cached
	considered int         // endpoints that could take it
	candidates []Candidate // the best of them
	left       []leftOut   // those that could not
}

// cycle is one look at the pool: how full it is, and so which bands may fill it
// further. It is good for one request, since that changes the pool.
type cycle struct {
	saturation float64
	ceiling    float64 // of the band that was asked about last
	again      time.Time
}

// look begins a cycle.
func (e *Embedded) look(now time.Time) {
	e.cycle = cycle{}
	e.cycle.saturation, e.cycle.again = e.saturation(now)
}

// admits reports whether the band may fill the pool further.
func (e *Embedded) admits(b *band) bool {
	e.cycle.ceiling = e.ceiling(b)
	return e.cycle.saturation < e.cycle.ceiling
}

// direct dispatches a newcomer while nothing waits, or returns nil.
func (e *Embedded) direct(b *band, f *flow, r *Request, now time.Time) *lease {
	e.look(now)
	for _, higher := range e.queues.bands {
		if !e.admits(higher) {
			e.wakeAt(e.cycle.again, now)
			return nil
		}
		if higher == b {
			break
		}
	}
	c, again := e.pick(r, now)
	if len(c.endpoints) == 0 {
		e.wakeAt(again, now)
		return nil
	}
	return e.grant(c, b, f, r, arrival{at: now}, "", now)
}

// dispatch sends who waits, in order, while the pool has room for them.
func (e *Embedded) dispatch(now time.Time) {
	for e.queues.queued > 0 {
		e.look(now)
		w := e.queues.next(e.admit)
		if w == nil {
			e.heldByCeiling(now)
			return
		}
		c, again := e.pick(&w.request, now)
		if len(c.endpoints) == 0 {
			w.held = HeldByEndpoints
			if !e.populated {
				w.held = HeldByNoEndpoint
			}
			e.wakeAt(again, now)
			return
		}
		w.lease = e.grant(c, w.band, w.flow, &w.request, w.came, w.held, now)
		e.queues.remove(w)
		w.done <- struct{}{}
	}
	e.wake.Stop()
}

// heldByCeiling marks who would go next, but for the ceilings.
func (e *Embedded) heldByCeiling(now time.Time) {
	if w := e.queues.next(func(*band) bool { return true }); w != nil {
		w.held = HeldByCeiling
		if !e.populated {
			w.held = HeldByNoEndpoint
		}
	}
	e.wakeAt(e.cycle.again, now)
}

// wakeAt sets the timer for an endpoint that will have room by itself.
func (e *Embedded) wakeAt(again, now time.Time) {
	if again.IsZero() {
		e.wake.Stop()
		return
	}
	e.wake.Reset(again.Sub(now))
}

func (e *Embedded) tick() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.dispatch(e.now())
	}
}

// refused remembers a refusal.
func (e *Embedded) refused(r *Request, came arrival, held Hold, reason Reason, now time.Time) {
	if d := e.ring.add(); d != nil {
		d.begin(r, came, now)
		d.held, d.refused, d.saturation, d.ceiling = held, reason, e.cycle.saturation, e.cycle.ceiling
	}
}

// pick chooses where the request goes.
func (e *Embedded) pick(r *Request, now time.Time) (c choice, again time.Time) {
	p, again := e.fleet.pick(r.Exclude, now)
	if p != nil {
		c.endpoints = append(e.picked[:0], p)
		e.picked = c.endpoints
	}
	return c, again
}
