package scheduler

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// endpoint is a model server, the leases that it holds and what is known of
// it. How much runs on it is the size of live, never a counter.
//
// What every pick reads of every endpoint stands together: in a large pool a
// pick takes as long as that takes to come from memory.
type endpoint struct {
	cache shelf
	pace  pace
	prefill
	condition
	Endpoint

	revision int       // its number among the rollout's; 0: none
	screened bool      // its revision may take nothing
	counted  bool      // among the ready ones of its revision
	load     Load      // what it last said of itself; zero: nothing
	tells    bool      // whether it ever told how much of a prompt was cached
	since    time.Time // when the pool got it
	worked   time.Time // when it last showed that it does
	coldAt   uint32    // when it last got a prompt of which nobody had anything

	name    string      // its id, with the rank where it is one of several
	rank    int         // of its server
	ranks   []*endpoint // all of the server's; nil: it is the only one
	targets []Target    // what its leases hand out; shared, so never changed
	live    map[*lease]struct{}
	share   share
	reports *reported // what it reports of its cache; nil: nothing
}

// prefill is the prompt work of an endpoint that is not done: that of its live
// leases which have shown no token yet.
type prefill struct {
	held    int     // the size of live
	pending int     // uncached tokens; the sum of its leases' work
	told    int     // of pending, what streams: its end is told when it comes
	usual   average // of pending
	tokens  int     // that its leases count for, in sum
	busy    uint32  // the index's clock when it last began to have some
	unseen  int     // live leases that it got since it last told its load
	scrape  int     // counts the loads that it told
}

// fleet is the endpoints of a pool, and how one of them is picked.
type fleet struct {
	endpoints []*endpoint
	byID      map[string]*endpoint // the same by id, and by name
	leaving   []*endpoint          // removed, with leases still live
	stage                          // the pick of who answers
	apart     *stage               // that of who computes the prompt, in a split pool
	rollout   rollout

	maxConcurrency int
	profile        profile
	prefix         prefixIndex
	blockTokens    int         // of a block of the index
	cut            PrefixCache // how prompts are cut into them
	exact          exactIndex  // of the endpoints that report what they have
	marks          marks
	followed       int // tokens of the blocks that are reported; 0: reports are dropped
	somewhere      int // the endpoint that was asked something last
	hasher         atomic.Pointer[hasher]
	chains         sync.Pool
	bindings       bindings
	speed          speed
	faded          time.Time // when paces faded last
	recency        recency
	grown          time.Time // when the last endpoint's slow start is over
	splits         Splits
}

// configure takes the settings that picking has. The endpoints are to be set
// anew after it.
func (f *fleet) configure(cfg *Config) {
	f.maxConcurrency = cfg.MaxConcurrency
	f.profile = compile(cfg.Profile, cfg.Seed)
	f.bindings.ttl, f.bindings.most = cfg.Profile.Session.ttl(), maxBindings
	f.sheet.record = cfg.Decisions > 0
	f.rollout.configure(cfg)
}

// set replaces the endpoints. What stays keeps its leases, its health and what
// is known of its cache; one whose URL changed is another server.
func (f *fleet) set(endpoints []Endpoint, now time.Time) {
	type place struct {
		id, url string
		rank    int
	}
	old := map[place]*endpoint{}
	for _, p := range slices.Concat(f.leaving, f.endpoints) {
		old[place{p.ID, p.URL, p.rank}] = p
	}
	fresh := make([]endpoint, 0, places(endpoints)) // side by side
	f.endpoints, f.leaving, f.grown = nil, nil, time.Time{}
	f.byID = make(map[string]*endpoint, len(endpoints))
	for _, e := range endpoints {
		if f.byID[e.ID] != nil {
			continue // ids are unique; the first one counts
		}
		if e.MaxConcurrency <= 0 {
			e.MaxConcurrency = f.maxConcurrency
		}
		first := len(f.endpoints)
		for rank := range e.places() {
			p := old[place{e.ID, e.URL, rank}]
			if p == nil {
				fresh = append(fresh, endpoint{live: map[*lease]struct{}{}, since: now})
				p = &fresh[len(fresh)-1]
			}
			delete(old, place{e.ID, e.URL, rank})
			p.Endpoint, p.rank = e, rank
			if grown := p.since.Add(f.profile.slowStart); grown.After(f.grown) {
				f.grown = grown
			}
			if p.cache.number == 0 {
				f.prefix.join(&p.cache)
			}
			f.endpoints = append(f.endpoints, p)
		}
		f.join(f.endpoints[first:])
	}
	f.assign()
	for _, p := range old {
		p.Draining, p.ranks, p.counted = true, nil, false
		f.prefix.leave(&p.cache)
		f.forgetReports(p)
		if len(p.live) > 0 {
			f.leaving = append(f.leaving, p)
		}
	}
	f.rate()
	f.measure()
}

// rate sets what is expected of each endpoint's speed before it shows any: what
// the operator says, else that it goes with how much it may hold.
func (f *fleet) rate() {
	said, speeds, caps := 0, 0.0, 0.0
	for _, p := range f.endpoints {
		if p.Speed > 0 {
			said, speeds = said+1, speeds+p.Speed
		}
		caps += float64(p.MaxConcurrency)
	}
	for _, p := range f.endpoints {
		switch {
		case p.Speed > 0:
			p.pace.prior = speeds / float64(said) / p.Speed
		case said > 0:
			p.pace.prior = 1
		default:
			p.pace.prior = caps / float64(len(f.endpoints)) / float64(p.MaxConcurrency)
		}
		p.pace.settle()
	}
}

// fade lets paces go back where they came from, once in a while, and what was
// sent lately go by.
func (f *fleet) fade(now time.Time) {
	if by := f.recency.rebase(now); by != 1 {
		for _, p := range slices.Concat(f.endpoints, f.leaving) {
			p.usual.rebase(by)
		}
	}
	if now.Sub(f.faded) < paceRefresh {
		return
	}
	f.faded = now
	for _, p := range f.endpoints {
		p.pace.fade(now)
	}
}

// measure sets how large the endpoints' caches are, and of what blocks.
func (f *fleet) measure() {
	cfg := f.profile.prefix
	tokens := cfg.BlockTokens
	if tokens <= 0 {
		tokens = minBlockTokens
		for _, p := range f.endpoints {
			tokens = max(tokens, p.load.BlockSize)
		}
	}
	f.follow()
	if tokens != f.blockTokens || cfg != f.cut { // nothing that is known fits any more
		f.blockTokens, f.cut = tokens, cfg
		f.hasher.Store(newHasher(cfg, tokens, &f.chains))
		for _, p := range f.endpoints {
			f.prefix.clear(&p.cache)
		}
	}
	most := maxEntries / max(len(f.endpoints), 1)
	for _, p := range f.endpoints {
		capacity := cfg.EndpointBlocks
		size := tokens
		if p.load.BlockSize > 0 {
			size = p.load.BlockSize
		}
		switch {
		case p.CacheBlocks > 0:
			capacity = p.CacheBlocks * size / tokens
		case p.load.Blocks > 0:
			capacity = p.load.Blocks * size / tokens
		}
		f.prefix.resize(&p.cache, min(max(capacity, 1), most))
	}
}

// loaded takes what an endpoint says of itself.
func (f *fleet) loaded(p *endpoint, l Load) {
	resized := l.BlockSize != p.load.BlockSize || l.Blocks != p.load.Blocks
	p.load, p.unseen = l, 0
	p.scrape++
	if resized {
		f.measure()
	}
}

// running is how many leases are live.
func (f *fleet) running() int {
	n := 0
	for _, p := range f.endpoints {
		n += p.answering(f)
	}
	for _, p := range f.leaving {
		n += p.answering(f)
	}
	return n
}

// answering is how many of the endpoint's leases are those of answers.
func (p *endpoint) answering(f *fleet) int {
	if f.splits.Apart == 0 {
		return len(p.live)
	}
	n := 0
	for l := range p.live {
		if l.endpoint == p {
			n++
		}
	}
	return n
}

// populated reports whether there is an endpoint to wait for.
func (f *fleet) populated() bool { return slices.ContainsFunc(f.places, (*endpoint).present) }

// serving reports whether some endpoint works, be it full.
func (f *fleet) serving() bool {
	return slices.ContainsFunc(f.places, func(p *endpoint) bool { return p.present() && !p.open() })
}

// present reports whether the pool counts on the endpoint: one that is
// draining, found dead or of a revision that may take nothing is not worth
// waiting for.
func (p *endpoint) present() bool { return !p.Draining && !p.screened && p.health != Unhealthy }
