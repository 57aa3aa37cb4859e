package scheduler

import "time"

// leg is a lease's part at one endpoint: where the answer is made, or where the
// prompt of it is computed.
type leg struct {
	endpoint  *endpoint
	tokens    int  // that it counts for there now
	probation bool // granted while the endpoint had yet to prove itself

	work   int // uncached tokens, while they are pending
	behind int // uncached tokens to be computed until its first token, when it was granted
	scrape int // of the endpoint then

	stamp    uint32 // of its use of the cache
	had      int    // blocks that the endpoint had of the prompt before
	blocks   int    // that the prompt has
	aged     uint32 // stamp, before this use, of the last block that it had
	sure     bool   // whether that block was computed by then
	expected int    // tokens of the prompt that it should find by what it reports; negative: that says nothing
}

// computing is the leg at which the prompt is computed.
func (l *lease) computing() *leg {
	if l.prefill != nil {
		return l.prefill
	}
	return &l.leg
}

// prefilling reports whether another endpoint computes the lease's prompt now.
func (l *lease) prefilling() bool {
	if l.prefill == nil {
		return false
	}
	_, live := l.prefill.endpoint.live[l]
	return live
}

// blame says how a lease ended for the endpoint that answers, and for the one
// that computes its prompt if it still does.
//
// A failure before the first token may be that of either, where the first one's
// sidecar lived to tell of it: all that is seen is its answer. It is laid to the
// leg that showed last that it works before the other did, or else to the one
// that computes the prompt, which its pool can do without. So one that is dead
// is found out by the many that ask it, and not held against them; and one that
// fails whoever computes for it is found out just the same. Who is full is asked
// first to compute, and so the one that said so.
func (l *lease) blame(o Outcome) (answers, computes Result) {
	if !l.prefilling() {
		return o.Result, o.Result
	}
	p, q := l.endpoint, l.prefill.endpoint
	switch {
	case o.Result == Overloaded, o.Result == EndpointFault && o.Reached && !q.worked.After(p.worked):
		return Abandoned, o.Result
	case o.Result == EndpointFault:
		return o.Result, Abandoned
	default:
		return o.Result, o.Result
	}
}

// occupy makes a leg of a lease live.
func (e *Embedded) occupy(l *lease, g *leg, now time.Time) {
	p := g.endpoint
	g.probation = p.open() || p.health == Unknown
	p.tokens += g.tokens
	p.began(l)
	e.follows(p, now)
}

// vacate ends a leg of a lease, with what its endpoint is to learn from it.
func (e *Embedded) vacate(l *lease, g *leg, result Result, now time.Time) {
	p := g.endpoint
	e.fleet.release(l, g, result, now)
	p.tokens -= g.tokens
	g.tokens = 0
	if result == Completed {
		p.worked = now
	}
	p.ended(l, result, e.cfg.Breaker, e.cfg.OverloadPause, now)
	e.follows(p, now)
}

// follows does what follows from a change of an endpoint: the ranks of a server
// have one health and one circuit, the sums change, and with the endpoint its
// revision may become ready or cease to be.
func (e *Embedded) follows(p *endpoint, now time.Time) {
	for _, q := range p.ranks {
		if q != p {
			q.condition = p.condition
			e.gauge.update(q, now)
		}
	}
	e.gauge.update(p, now)
	if e.fleet.rollout.on && p.counted != e.fleet.ready(p) {
		e.rescreen(now)
	}
}

// rescreen counts the revisions anew, and what may be used of the pool.
func (e *Embedded) rescreen(now time.Time) {
	e.fleet.screen()
	for _, p := range e.fleet.endpoints {
		e.gauge.update(p, now)
	}
}
