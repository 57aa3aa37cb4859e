package scheduler

import "time"

// What the picker keeps of a lease.
type placed struct {
	targets []Target

	chain   *chain // until the engine has shown a token; nil: none
	key     bindingKey
	at      time.Time
	streams bool // its first token will be told when it comes
}

// place books a lease on the endpoints that it was granted.
func (f *fleet) place(l *lease, c choice, r *Request, now time.Time) {
	l.placed = placed{chain: r.chain, key: keyOf(r), at: now, streams: r.Streams}
	l.targets = f.aim(&c)
	r.chain = nil
	work := max(r.InputTokens-c.computed(), 1)
	if l.prefill != nil {
		f.book(l, l.prefill, work, now)
		work = 0
	}
	f.book(l, &l.leg, work, now)
	f.bindings.bind(r, l.endpoint, l.blocks, now)
}

// book puts a leg on its endpoint, with so many tokens of the prompt to compute.
func (f *fleet) book(l *lease, g *leg, work int, now time.Time) {
	p := g.endpoint
	p.live[l] = struct{}{}
	p.held = len(p.live)
	g.work, g.scrape = work, p.scrape
	if p.pending == 0 && work > 0 {
		p.busy = f.prefix.clock
	}
	f.pend(l, g, work, now)
	p.unseen++
	g.behind = p.pending
	g.expected = f.expect(&f.sheet, p)
	if l.chain != nil && l.chain.block == f.hasher.Load().block && p.cache.number != 0 {
		g.had, g.blocks = f.prefix.have(&p.cache), len(l.chain.hashes)
		if g.had > 0 {
			g.aged = f.prefix.at(p.cache.last).stamp
			g.sure = p.pending == work || before(g.aged, p.busy+1)
		}
		f.prefix.use(&p.cache, l.chain.hashes)
		g.stamp = f.prefix.clock
		if f.sheet.most == 0 {
			p.coldAt = f.prefix.clock
		}
	}
}

// started takes the first token of a lease: its prompt is computed.
func (f *fleet) started(l *lease, now time.Time) {
	g := l.computing()
	p := g.endpoint
	if _, live := p.live[l]; !live || g.work == 0 {
		return
	}
	if took := now.Sub(l.at); took > 0 {
		slow, weight := f.speed.observe(g.behind, took.Seconds())
		p.pace.observe(slow, weight, now)
	}
	f.computed(l, g, now)
	f.forget(l)
}

// computed takes a leg's prompt off the work that is pending.
func (f *fleet) computed(l *lease, g *leg, now time.Time) {
	f.pend(l, g, -g.work, now)
	g.work = 0
}

// forget gives back the memory of the lease's prompt.
func (f *fleet) forget(l *lease) {
	f.free(l.chain)
	l.chain = nil
}

// pend changes the work that stands in front of who comes next.
func (f *fleet) pend(l *lease, g *leg, work int, now time.Time) {
	p := g.endpoint
	if l.streams {
		p.told += work
	}
	p.usual.add(float64(p.pending), f.recency.weight(now))
	p.pending += work
}

// release takes a leg off its endpoint.
func (f *fleet) release(l *lease, g *leg, result Result, now time.Time) {
	p := g.endpoint
	delete(p.live, l)
	p.held = len(p.live)
	if g.scrape == p.scrape {
		p.unseen--
	}
	switch result {
	case EndpointFault, CallerFault, Overloaded:
		if l.chain != nil && g.stamp != 0 { // it showed nothing of having computed the prompt
			f.prefix.undo(&p.cache, l.chain.hashes, g.had, g.stamp)
		}
	case Completed, Abandoned:
		// As far as it came, the prompt is in the cache.
	}
	f.computed(l, g, now)
	if p.Draining && len(p.live) == 0 {
		f.leaving = without(f.leaving, p)
	}
}

// released learns from how a lease ended.
func (f *fleet) released(l *lease, o Outcome) {
	if o.Result == Completed {
		f.check(l.computing(), o)
		f.bindings.served(l.key, l.endpoint, o)
	}
	f.forget(l)
}

// check compares what the endpoint had cached of a prompt with what it was
// expected to have. If it had much less, it has lost what it used at the time
// of the missing block or before: it was started anew, or its cache is smaller
// than it says. Engines that never tell are not taken at their word, and what
// other requests were about to compute is not counted as missing.
func (f *fleet) check(g *leg, o Outcome) {
	p := g.endpoint
	if o.CachedTokens > 0 {
		p.tells = true
	}
	if p.tells && p.reports != nil {
		p.reports.verify(g.expected, o.CachedTokens, f.profile.precise.BlockTokens)
	}
	whole := o.CachedTokens + o.InputTokens
	if !p.tells || !g.sure || whole == 0 || p.cache.number == 0 {
		return
	}
	expected := float64(g.had) / float64(g.blocks)
	if found := float64(o.CachedTokens) / float64(whole); 2*found < expected {
		f.prefix.lost(&p.cache, g.aged)
	}
}

func without(all []*endpoint, p *endpoint) []*endpoint {
	kept := all[:0]
	for _, q := range all {
		if q != p {
			kept = append(kept, q)
		}
	}
	clear(all[len(kept):])
	return kept
}
