package scheduler

import "time"

// What the picker keeps of a lease.
type placed struct {
	targets []Target

	chain   *chain // until the engine has shown a token; nil: none
	key     bindingKey
	at      time.Time
	streams bool // its first token will be told when it comes
	work    int  // uncached tokens, while they are pending
	behind  int  // uncached tokens to be computed until its first token, when it was granted
	scrape  int  // of the endpoint then

	stamp  uint32 // of its use of the cache
	had    int    // blocks that the endpoint had of the prompt before
	blocks int    // that the prompt has
	aged   uint32 // stamp, before this use, of the last block that it had
	sure   bool   // whether that block was computed by then
}

// place books a lease on the endpoint that it was granted.
func (f *fleet) place(l *lease, c choice, r *Request, now time.Time) {
	p := l.endpoint
	p.live[l] = struct{}{}
	p.held = len(p.live)
	l.placed = placed{
		chain: r.chain, key: keyOf(r), at: now, work: max(r.InputTokens-c.cached, 1), streams: r.Streams, scrape: p.scrape,
	}
	if p.pending == 0 {
		p.busy = f.prefix.clock
	}
	l.targets = p.targets
	if len(c.endpoints) > 1 {
		l.targets = nil
		for _, q := range c.endpoints {
			l.targets = append(l.targets, q.targets...)
		}
	}
	f.pend(l, l.work, now)
	p.unseen++
	l.behind = p.pending
	r.chain = nil
	if l.chain != nil && l.chain.block == f.hasher.Load().block && p.cache.number != 0 {
		l.had, l.blocks = f.prefix.have(&p.cache), len(l.chain.hashes)
		if l.had > 0 {
			l.aged = f.prefix.at(p.cache.last).stamp
			l.sure = p.pending == l.work || before(l.aged, p.busy+1)
		}
		f.prefix.use(&p.cache, l.chain.hashes)
		l.stamp = f.prefix.clock
		if f.sheet.most == 0 {
			p.coldAt = f.prefix.clock
		}
	}
	f.bindings.bind(r, p, l.blocks, now)
}

// started takes the first token of a lease: its prompt is computed.
func (f *fleet) started(l *lease, now time.Time) {
	p := l.endpoint
	if _, live := p.live[l]; !live || l.work == 0 {
		return
	}
	if took := now.Sub(l.at); took > 0 {
		slow, weight := f.speed.observe(l.behind, took.Seconds())
		p.pace.observe(slow, weight, now)
	}
	f.computed(l, now)
}

// computed takes the lease's prompt off the work that is pending.
func (f *fleet) computed(l *lease, now time.Time) {
	f.pend(l, -l.work, now)
	l.work = 0
	f.free(l.chain)
	l.chain = nil
}

// pend changes the work that stands in front of who comes next.
func (f *fleet) pend(l *lease, work int, now time.Time) {
	p := l.endpoint
	if l.streams {
		p.told += work
	}
	p.usual.add(float64(p.pending), f.recency.weight(now))
	p.pending += work
}

// release takes a lease off its endpoint and learns from how it ended.
func (f *fleet) release(l *lease, o Outcome, now time.Time) {
	p := l.endpoint
	delete(p.live, l)
	p.held = len(p.live)
	if l.scrape == p.scrape {
		p.unseen--
	}
	switch o.Result {
	case EndpointFault, CallerFault, Overloaded:
		if l.chain != nil && l.stamp != 0 { // it showed nothing of having computed the prompt
			f.prefix.undo(&p.cache, l.chain.hashes, l.had, l.stamp)
		}
	case Completed:
		f.check(l, o)
		f.bindings.served(l.key, p, o)
	case Abandoned:
		// As far as it came, the prompt is in the cache.
	}
	f.computed(l, now)
	if p.Draining && len(p.live) == 0 {
		f.leaving = without(f.leaving, p)
	}
}

// check compares what the endpoint had cached of a prompt with what it was
// expected to have. If it had much less, it has lost what it used at the time
// of the missing block or before: it was started anew, or its cache is smaller
// than it says. Engines that never tell are not taken at their word, and what
// other requests were about to compute is not counted as missing.
func (f *fleet) check(l *lease, o Outcome) {
	p := l.endpoint
	if o.CachedTokens > 0 {
		p.tells = true
	}
	whole := o.CachedTokens + o.InputTokens
	if !p.tells || !l.sure || whole == 0 || p.cache.number == 0 {
		return
	}
	expected := float64(l.had) / float64(l.blocks)
	if found := float64(o.CachedTokens) / float64(whole); 2*found < expected {
		f.prefix.lost(&p.cache, l.aged)
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
