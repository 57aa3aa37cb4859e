package scheduler

// This file is the rule of what holds a request, and what is remembered of it.

// held is what held a request when it was last looked at, and what the pool
// was like then. Who is held by the order was not looked at.
type held struct {
	by         Hold
	saturation float64
	ceiling    float64 // of the request's band
}

// barred is what holds a request of the band when the ceilings let nothing
// through: its ceiling while the pool has room beyond it, which is kept for
// others, else the endpoints, which have none for anybody.
func (e *Embedded) barred(b *band) held {
	if e.cycle.saturation < 1 {
		return e.heldBy(HeldByCeiling, b)
	}
	return e.heldBy(HeldByEndpoints, b)
}

// placeless is what holds a request of the band for which the picker found no
// endpoint.
func (e *Embedded) placeless(b *band) held { return e.heldBy(HeldByEndpoints, b) }

// heldBy is the hold, unless there is no endpoint at all.
func (e *Embedded) heldBy(h Hold, b *band) held {
	if !e.populated {
		h = HeldByNoEndpoint
	}
	return held{by: h, saturation: e.cycle.saturation, ceiling: b.ceiling}
}
