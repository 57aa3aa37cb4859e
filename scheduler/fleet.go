package scheduler

import (
	"slices"
	"time"
)

// endpoint is a model server, the leases that it holds and what is known of
// its health. How much runs on it is the size of live, never a counter.
type endpoint struct {
	Endpoint
	condition

	load    Load     // what it last said of itself; zero: nothing
	targets []Target // what its leases hand out; shared, so never changed
	live    map[*lease]struct{}
	tokens  int // that its leases count for, in sum
	share   share
}

// room reports whether the endpoint may take one more lease now; if not, again
// says when that may change by the mere passing of time.
func (p *endpoint) room(now time.Time) (ok bool, again time.Time) {
	if p.Draining {
		return false, time.Time{}
	}
	limit, again := p.limit(p.MaxConcurrency, now)
	return len(p.live) < limit, again
}

// present reports whether the pool counts on the endpoint: one that is
// draining or found dead is not worth waiting for.
func (p *endpoint) present() bool { return !p.Draining && p.health != Unhealthy }

// fleet is the endpoints of a pool.
type fleet struct {
	endpoints []*endpoint
	byID      map[string]*endpoint // the same
	leaving   []*endpoint          // removed, with leases still live
	next      int                  // where the next pick begins to look, so that ties rotate
}

// set replaces the endpoints. What stays keeps its leases and its health; one
// whose URL changed is another server.
func (f *fleet) set(endpoints []Endpoint, maxConcurrency int) {
	type server struct{ id, url string }
	old := map[server]*endpoint{}
	for _, p := range slices.Concat(f.leaving, f.endpoints) {
		old[server{p.ID, p.URL}] = p
	}
	*f = fleet{byID: make(map[string]*endpoint, len(endpoints))}
	for _, e := range endpoints {
		if f.byID[e.ID] != nil {
			continue // ids are unique; the first one counts
		}
		if e.MaxConcurrency <= 0 {
			e.MaxConcurrency = maxConcurrency
		}
		p := old[server{e.ID, e.URL}]
		if p == nil {
			p = &endpoint{
				targets: []Target{{Endpoint: e.ID, URL: e.URL}},
				live:    map[*lease]struct{}{},
			}
		}
		delete(old, server{e.ID, e.URL})
		p.Endpoint = e
		f.endpoints = append(f.endpoints, p)
		f.byID[e.ID] = p
	}
	for _, p := range old {
		p.Draining = true
		if len(p.live) > 0 {
			f.leaving = append(f.leaving, p)
		}
	}
}

// pick returns the least loaded endpoint with room, by the part of its limit
// that is taken; an excluded one only if no other has room. When none has, it
// returns nil and when time alone may change that (zero: it won't).
//
// It looks at every endpoint: a scan of a few microseconds at a thousand
// endpoints leaves nothing to keep in order when loads change.
func (f *fleet) pick(exclude []string, now time.Time) (best *endpoint, again time.Time) {
	n, bestAt, bestExcluded := len(f.endpoints), 0, false
	for i := range n {
		at := f.next + i
		if at >= n {
			at -= n
		}
		p := f.endpoints[at]
		ok, later := p.room(now)
		if !ok {
			if !later.IsZero() && (again.IsZero() || later.Before(again)) {
				again = later
			}
			continue
		}
		excluded := len(exclude) > 0 && slices.Contains(exclude, p.ID)
		if best == nil || better(p, excluded, best, bestExcluded) {
			best, bestAt, bestExcluded = p, at, excluded
		}
	}
	if best != nil {
		f.next = (bestAt + 1) % n
	}
	return best, again
}

func better(a *endpoint, aExcluded bool, b *endpoint, bExcluded bool) bool {
	if aExcluded != bExcluded {
		return bExcluded
	}
	return len(a.live)*b.MaxConcurrency < len(b.live)*a.MaxConcurrency
}

// running is how many leases are live.
func (f *fleet) running() int {
	n := 0
	for _, p := range f.endpoints {
		n += len(p.live)
	}
	for _, p := range f.leaving {
		n += len(p.live)
	}
	return n
}

// populated reports whether there is an endpoint to wait for.
func (f *fleet) populated() bool { return slices.ContainsFunc(f.endpoints, (*endpoint).present) }

// serving reports whether some endpoint works, be it full.
func (f *fleet) serving() bool {
	return slices.ContainsFunc(f.endpoints, func(p *endpoint) bool { return p.present() && !p.open() })
}

// release takes a lease off its endpoint.
func (f *fleet) release(l *lease) {
	p := l.endpoint
	delete(p.live, l)
	if p.Draining && len(p.live) == 0 {
		f.leaving = slices.DeleteFunc(f.leaving, func(q *endpoint) bool { return q == p })
	}
}
