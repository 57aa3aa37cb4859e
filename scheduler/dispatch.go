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
	displaces  float64     // tokens that it would drive out at the first one and that are used again
	pair
}

// computed is how many tokens are expected to be cached where the prompt is
// computed.
func (c *choice) computed() int {
	if c.prefill != nil {
		return c.found
	}
	return c.cached
}

// cycle is one look at the pool: how full it is, and so which bands may fill it
// further. It is good for one request, since that changes the pool.
type cycle struct {
	saturation float64
	again      time.Time // when that may change by itself; zero: it won't
}

// look begins a cycle.
func (e *Embedded) look(now time.Time) {
	e.cycle.saturation, e.cycle.again = e.gauge.saturation(now)
	if closed := e.setCeilings(e.cycle.saturation); closed {
		e.cycle.again = earlier(e.cycle.again, now.Add(pulsePeriod))
	}
}

// admits reports whether the band may fill the pool further.
func (e *Embedded) admits(b *band) bool { return e.cycle.saturation < b.ceiling }

// direct dispatches a newcomer whom nobody who waits goes before. Where it
// can't, it says what holds the request.
func (e *Embedded) direct(b *band, f *flow, r *Request, now time.Time) (*lease, held) {
	if e.behind(b, f) {
		return nil, held{by: HeldByOrder}
	}
	e.look(now)
	if !e.open(b, f) {
		e.wakeAt(e.cycle.again, now)
		return nil, e.barred(b)
	}
	c, again := e.fleet.pick(r, now)
	if len(c.endpoints) == 0 {
		e.wakeAt(again, now)
		return nil, e.placeless(b)
	}
	if e.standsAside(&c, b, f, r, now, now) {
		return nil, e.heldBy(HeldByCaches, b)
	}
	return e.grant(c, b, f, r, arrival{at: now}, held{}, now), held{}
}

// behind and open are to a newcomer what queues.next is to those who wait:
// whether others go before it, and whether the ceilings let it through.
func (e *Embedded) behind(b *band, f *flow) bool {
	if f.held < f.reserved { // it goes before strict order
		return len(e.queues.promised) > 0
	}
	for _, higher := range e.queues.bands {
		if higher.queued > 0 || higher != b && higher.aside > 0 {
			return true
		}
		if higher == b {
			break
		}
	}
	return false
}

func (e *Embedded) open(b *band, f *flow) bool {
	for _, higher := range e.queues.bands {
		if !e.admits(higher) {
			return false
		}
		if higher == b || f.held < f.reserved {
			break
		}
	}
	return true
}

// dispatch sends who waits, in order, while the pool has room for them.
func (e *Embedded) dispatch(now time.Time) {
	e.sleep()
	e.rejoin(now)
	for began := now; e.queues.queued > 0; began = e.timed(began) {
		e.look(now)
		w := e.queues.next(e.admit)
		if w == nil {
			e.holdBack(now)
			return
		}
		c, again := e.fleet.pick(&w.request, now)
		if len(c.endpoints) == 0 {
			w.held, e.stuck = e.placeless(w.band), w
			e.wakeAt(again, now)
			return
		}
		if e.standsAside(&c, w.band, w.flow, &w.request, w.entered, now) {
			w.held = e.heldBy(HeldByCaches, w.band)
			e.queues.stepAside(w)
			e.wakeAt(now.Add(asideRest), now)
			continue
		}
		w.lease = e.grant(c, w.band, w.flow, &w.request, w.came, w.held, now)
		e.queues.remove(w)
		w.done <- struct{}{}
	}
}

// timed notes how long a cycle took that ends now, as the next one begins.
func (e *Embedded) timed(began time.Time) (now time.Time) {
	now = e.now()
	e.cycles.observe(now.Sub(began))
	return now
}

// holdBack deals with what waits while a ceiling ends the cycle: it marks who
// would go next, and takes endpoints back for it.
func (e *Embedded) holdBack(now time.Time) {
	e.wakeAt(e.cycle.again, now)
	if w := e.queues.next(anyBand); w != nil {
		w.held, e.stuck = e.barred(w.band), w
		e.wakeAt(e.reclaim(w, now), now)
	}
}

// follow dispatches if another goes next now than the one that was found to
// have no place: whoever came, left or was given a new rank may have changed
// that without making room.
func (e *Embedded) follow(now time.Time) {
	if !e.closed && e.queues.queued > 0 && e.queues.next(anyBand) != e.stuck {
		e.dispatch(now)
	}
}

// anyBand is the admission by which queues.next tells who would go next but
// for the ceilings.
func anyBand(*band) bool { return true }

// wakeAt has dispatch called then, or earlier where that is due; zero changes
// nothing.
func (e *Embedded) wakeAt(at, now time.Time) {
	if at.IsZero() || !e.waking.IsZero() && !at.Before(e.waking) {
		return
	}
	e.waking = at
	e.wake.Reset(at.Sub(now))
}

// sleep forgets when to wake: whoever calls it looks now.
func (e *Embedded) sleep() {
	if !e.waking.IsZero() {
		e.waking = time.Time{}
		e.wake.Stop()
	}
}

func (e *Embedded) tick() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.dispatch(e.now())
	}
}

// refused remembers a refusal.
func (e *Embedded) refused(r *Request, b *band, came arrival, h held, reason Reason, now time.Time) {
	if d := e.ring.add(); d != nil {
		d.begin(r, came, now)
		d.held, d.refused, d.ceiling = h, reason, b.ceiling
		d.saturation, _ = e.gauge.saturation(now)
	}
}
