package scheduler

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// sheet is what one pick works on. It is used again for the next one, so that
// a pick costs no memory.
type sheet struct {
	record bool // whether the choice is to be explained

	request *Request
	now     time.Time
	chain   *chain   // of the prompt; nil: none, or of no interest
	most    int      // blocks of it that some endpoint has
	session *binding // that the request belongs to, or nil
	input   int      // tokens of the prompt
	live    int      // leases of the pool

	endpoints []*endpoint // that are still in question
	cached    []int       // of each: tokens of the prompt that it is expected to have
	scores    []float64   // of each: the weighted sum
	values    [][]float64 // by scorer, of each: what it said
	keys      []float64   // of each: the picker's order, highest first

	order  []int // places of the best by score
	picked []*endpoint
	best   []Candidate
	left   []leftOut
}

// The hard conditions that leave out an endpoint, in the words of a Decision.
const (
	leftDraining   = "draining"
	leftUnhealthy  = "unhealthy"
	leftOpen       = "circuit_open"
	leftOverloaded = "overloaded"
	leftFull       = "full"
	leftFullTokens = "full_tokens"
	leftSlowStart  = "slow_start"
	leftExcluded   = "excluded"
)

// pick chooses the endpoints that may take a request: those that can take one
// at all, less those that the filters leave out, rated by the scorers and
// chosen by the picker. An endpoint that the request excludes is chosen only if
// no other is left. When none is left, again says when time alone may change
// that (zero: it won't).
func (f *fleet) pick(r *Request, now time.Time) (c choice, again time.Time) {
	a := &f.sheet
	a.begin(r, now)
	again = f.able(a)
	if len(a.endpoints) == 0 {
		return choice{left: a.left}, again
	}
	f.recall(a)
	for i := range f.profile.filters {
		f.profile.filters[i].apply(f, a)
	}
	if len(r.Exclude) > 0 {
		a.keep(leftExcluded, true, func(p *endpoint) bool { return !slices.Contains(r.Exclude, p.ID) })
	}
	if len(a.endpoints) == 0 {
		return choice{left: a.left}, again
	}
	f.score(a)
	return f.choose(a), time.Time{}
}

func (a *sheet) begin(r *Request, now time.Time) {
	a.request, a.now, a.chain, a.most, a.session, a.input, a.live = r, now, nil, 0, nil, r.InputTokens, 0
	a.endpoints, a.left = a.endpoints[:0], a.left[:0]
}

// able collects the endpoints that can take a request now. They come in an
// order that begins elsewhere each time, for those that are rated the same.
func (f *fleet) able(a *sheet) (again time.Time) {
	n := len(f.endpoints)
	ramping := f.established(a.now)
	for i := range n {
		at := f.next + i
		if at >= n {
			at -= n
		}
		p := f.endpoints[at]
		a.live += len(p.live)
		bar, later := f.bar(p, ramping, a.now)
		if bar == "" {
			a.endpoints = append(a.endpoints, p)
			continue
		}
		a.leave(bar, 1)
		if !later.IsZero() {
			again = earlier(again, later)
		}
	}
	return again
}

// bar is what keeps an endpoint from taking a request, or "", and when that may
// end by the mere passing of time.
func (f *fleet) bar(p *endpoint, ramping bool, now time.Time) (bar string, again time.Time) {
	if p.Draining {
		return leftDraining, time.Time{}
	}
	limit, again := p.limit(p.MaxConcurrency, now)
	switch {
	case limit == 0 && p.health == Unhealthy:
		return leftUnhealthy, again
	case limit == 0 && now.Before(p.pausedUntil):
		return leftOverloaded, again
	case limit == 0:
		return leftOpen, again
	case len(p.live) >= limit:
		return leftFull, time.Time{}
	case p.MaxTokens > 0 && p.tokens >= p.MaxTokens:
		return leftFullTokens, time.Time{}
	case ramping:
		if ramp, later := f.ramp(p, limit, now); len(p.live) >= ramp {
			return leftSlowStart, later
		}
	}
	return "", time.Time{}
}

// established reports whether some endpoint is past its slow start and serves.
// While none is, a new one is not spared: it would be at the expense of nobody
// but those who wait.
func (f *fleet) established(now time.Time) bool {
	slow := f.profile.slowStart
	if slow <= 0 {
		return false
	}
	for _, p := range f.endpoints {
		if now.Sub(p.since) >= slow && p.present() && !p.open() {
			return true
		}
	}
	return false
}

// ramp is how many leases a new endpoint may hold by now, and when it will be
// one more.
func (f *fleet) ramp(p *endpoint, limit int, now time.Time) (n int, more time.Time) {
	slow := f.profile.slowStart
	age := now.Sub(p.since)
	if age >= slow {
		return limit, time.Time{}
	}
	n = max(1, int(float64(limit)*max(age, 0).Seconds()/slow.Seconds()))
	return n, p.since.Add(time.Duration(math.Ceil(float64(slow) * float64(n+1) / float64(limit))))
}

// leave counts endpoints that were left out.
func (a *sheet) leave(by string, n int) {
	for i := range a.left {
		if a.left[i].by == by {
			a.left[i].n += n
			return
		}
	}
	a.left = append(a.left, leftOut{by: by, n: n})
}

// keep leaves out the endpoints that don't pass. A filter that fails open lets
// all pass if none would.
func (a *sheet) keep(by string, failOpen bool, pass func(*endpoint) bool) {
	kept := 0
	for i, p := range a.endpoints {
		if pass(p) {
			// What doesn't pass stays behind, for a filter that fails open.
			a.endpoints[kept], a.endpoints[i] = p, a.endpoints[kept]
			kept++
		}
	}
	if kept == len(a.endpoints) || kept == 0 && failOpen {
		return
	}
	a.leave(by, len(a.endpoints)-kept)
	a.endpoints = a.endpoints[:kept]
}

// recall finds out what the endpoints have of the request.
func (f *fleet) recall(a *sheet) {
	r := a.request
	if h := f.hasher.Load(); r.chain != nil && r.chain.block == h.block {
		a.chain = r.chain
		a.most = f.prefix.search(a.chain.hashes)
		if a.input == 0 {
			a.input = a.chain.bytes / f.profile.prefix.BytesPerToken
		}
	}
	a.session = f.bindings.find(r, a.now)
}

// has is how many tokens of the request's prompt the endpoint is expected to
// have cached.
func (f *fleet) has(a *sheet, p *endpoint) int {
	blocks, tokens := 0, 0
	if a.chain != nil {
		if blocks = f.prefix.have(&p.cache); blocks > 0 {
			tokens = int(a.chain.part(blocks) * float64(a.input))
		}
	}
	// It also has what it answered in the session's last turn, if it still has
	// the prompt of that turn.
	if s := a.session; s != nil && s.endpoint == p && (a.chain == nil || blocks >= min(s.blocks, len(a.chain.hashes))) {
		tokens = max(tokens, min(s.tokens, a.input))
	}
	return tokens
}

// score rates the endpoints that are left.
func (f *fleet) score(a *sheet) {
	n := len(a.endpoints)
	a.cached = slices.Grow(a.cached[:0], n)[:n]
	a.scores = slices.Grow(a.scores[:0], n)[:n]
	for i, p := range a.endpoints {
		a.cached[i], a.scores[i] = f.has(a, p), 0
	}
	for i := range f.profile.scorers {
		if len(a.values) <= i {
			a.values = append(a.values, nil)
		}
		values := slices.Grow(a.values[i][:0], n)[:n]
		a.values[i] = values
		s := &f.profile.scorers[i]
		s.rate(f, a, values)
		for j, v := range values {
			a.scores[j] += s.weight * min(max(v, 0), 1)
		}
	}
}

// choose applies the picker.
func (f *fleet) choose(a *sheet) choice {
	keys := a.scores
	if f.profile.kind != MaxScore {
		keys = f.draw(a)
	}
	a.order = top(a.order[:0], keys, f.profile.max)
	a.picked = a.picked[:0]
	for _, i := range a.order {
		a.picked = append(a.picked, a.endpoints[i])
	}
	first := a.order[0]
	c := choice{endpoints: a.picked, cached: a.cached[first], considered: len(a.endpoints), left: a.left}
	f.next = (f.next + 1) % len(f.endpoints)
	if a.record {
		c.candidates = f.explain(a)
	}
	return c
}

// draw gives each endpoint a key of chance: with the score as weight, as in
// Efraimidis and Spirakis' sampling without replacement, or without.
func (f *fleet) draw(a *sheet) []float64 {
	a.keys = slices.Grow(a.keys[:0], len(a.scores))[:len(a.scores)]
	for i, score := range a.scores {
		u := f.profile.chance.Float64()
		switch {
		case f.profile.kind == Random:
			a.keys[i] = u
		case score > 0:
			a.keys[i] = math.Pow(u, 1/score)
		default:
			a.keys[i] = u - 1 // behind all that have a score
		}
	}
	return a.keys
}

// top appends the places of the n largest values, the largest first and, of
// equals, the earlier.
func top(places []int, values []float64, n int) []int {
	for i, v := range values {
		if len(places) == n && v <= values[places[n-1]] {
			continue
		}
		if len(places) < n {
			places = append(places, i)
		} else {
			places[n-1] = i
		}
		for j := len(places) - 1; j > 0 && values[places[j-1]] < v; j-- {
			places[j-1], places[j] = places[j], places[j-1]
		}
	}
	return places
}

// explain lists the candidates with the best scores.
func (f *fleet) explain(a *sheet) []Candidate {
	a.order = top(a.order[:0], a.scores, MaxCandidates)
	for len(a.best) < len(a.order) {
		a.best = append(a.best, Candidate{})
	}
	for to, i := range a.order {
		p, c := a.endpoints[i], &a.best[to]
		c.Endpoint, c.Score, c.CachedTokens, c.Live = p.ID, a.scores[i], a.cached[i], len(p.live)
		c.Scores = c.Scores[:0]
		for j := range f.profile.scorers {
			s := &f.profile.scorers[j]
			c.Scores = append(c.Scores, Score{Scorer: s.kind, Value: a.values[j][i], Weight: s.weight})
		}
	}
	return a.best[:len(a.order)]
}

// chance is the picker's source of randomness.
func chance(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) } //nolint:gosec // not for secrets
