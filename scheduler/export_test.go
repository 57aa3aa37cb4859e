package scheduler

import "fmt"

// Audit compares what the scheduler keeps by adding and taking off with what
// its sets of live leases say.
func (e *Embedded) Audit() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	e.gauge.catchUp(now)
	var prefill, decode, pressure sum
	for _, p := range e.fleet.endpoints {
		want := e.gauge.measure(p, now)
		if got := p.share; got.sum != want.sum || got.pressure != want.pressure || got.prefill != want.prefill || got.decode != want.decode {
			return fmt.Errorf("endpoint %s counts as %+v, measured it is %+v", p.ID, got, want)
		}
		add := func(to *sum, s sum) {
			*to = sum{to.load + s.load, to.room + s.room, to.within + s.within, to.idle + s.idle}
		}
		if want.prefill {
			add(&prefill, want.sum)
		}
		if want.decode {
			add(&decode, want.sum)
		}
		add(&pressure, want.pressure)
	}
	if g := &e.gauge; g.prefill != prefill || g.decode != decode || g.pressure != pressure {
		return fmt.Errorf("the pool counts as %v, %v, %v; measured it is %v, %v, %v", g.prefill, g.decode, g.pressure, prefill, decode, pressure)
	}
	exposed := map[*lease]bool{}
	for _, p := range append(e.fleet.leaving, e.fleet.endpoints...) {
		tokens, pending, unseen := 0, 0, 0
		for l := range p.live {
			g := &l.leg
			if g.endpoint != p {
				g = l.prefill
			}
			tokens, pending = tokens+g.tokens, pending+g.work
			if g.scrape == p.scrape {
				unseen++
			}
			if l.evicted != nil && l.round == 0 {
				exposed[l] = true
			}
		}
		if p.held != len(p.live) || p.pending != pending || p.unseen != unseen {
			return fmt.Errorf("endpoint %s is said to hold %d leases, %d of them new, with %d tokens to compute; it holds %d, %d and %d", p.ID, p.held, p.unseen, p.pending, len(p.live), unseen, pending)
		}
		if p.tokens != tokens {
			return fmt.Errorf("endpoint %s has %d tokens, its leases %d", p.ID, p.tokens, tokens)
		}
	}
	if err := e.fleet.prefix.audit(); err != nil {
		return err
	}
	for _, b := range e.queues.bands {
		for l := b.newest; l != nil; l = l.older {
			if !exposed[l] {
				return fmt.Errorf("band %d lists a lease that can't be evicted", b.priority)
			}
			delete(exposed, l)
		}
	}
	if len(exposed) > 0 {
		return fmt.Errorf("%d leases can be evicted, which no band lists", len(exposed))
	}
	return nil
}

// audit compares the parts of the index with each other.
func (x *prefixIndex) audit() error {
	entries, listed := 0, 0
	for _, s := range x.shelves {
		if s == nil {
			continue
		}
		newer, n := uint32(0), 0
		for i := s.newest; i != 0; i = x.at(i).older {
			e := x.at(i)
			switch {
			case e.newer != newer || e.shelf != s.number:
				return fmt.Errorf("entry %d is not where its neighbours say", i)
			case x.entryOf(s, e.hash) != i:
				return fmt.Errorf("the holders of block %d don't name its entry", e.hash)
			case e.before != 0 && x.at(e.before).shelf != s.number:
				return fmt.Errorf("block %d outlived the one before it", e.hash)
			}
			newer, n = i, n+1
		}
		if s.oldest != newer || n != s.size || n > s.capacity || n > 0 && s.tail != x.at(s.oldest).stamp {
			return fmt.Errorf("an endpoint has %d blocks of at most %d, said to be %d", n, s.capacity, s.size)
		}
		entries += n
	}
	for i := range x.blocks {
		for _, h := range x.blocks[i].slots {
			listed += int(h.count)
		}
	}
	if entries != listed {
		return fmt.Errorf("endpoints have %d blocks, blocks %d holders", entries, listed)
	}
	return nil
}
