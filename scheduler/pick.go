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
	record bool     // whether the choice is to be explained
	rules  *profile // by which is picked

	request *Request
	now     time.Time
	chain   *chain      // of the prompt; nil: none, or of no interest
	exact   *TokenChain // of its tokens; nil: not known, or of no interest
	most    int         // blocks of it that some endpoint has
	session *binding    // that the request belongs to, or nil
	input   int         // tokens of the prompt
	live    int         // leases of the pool
	limit   int         // how many it may have
	only    int         // revision of which the endpoint has to be; 0: any

	over      []*endpoint // that are full, but may take it if they have some of its prompt
	endpoints []*endpoint // that are still in question
	blocks    []int       // of each: blocks of the prompt that it has
	cached    []int       // of each: tokens of the prompt that it is expected to have
	scores    []float64   // of each: the weighted sum
	values    [][]float64 // by scorer, of each: what it said
	keys      []float64   // of each: the picker's order, highest first
	weighing  weighing    // of WorkScorer

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
	leftPrefill    = "prefill"
	leftExcluded   = "excluded"
	leftRevision   = "revision"
	leftRank       = "rank"
)

// stage is the pick for one part of the work.
type stage struct {
	places []*endpoint // that do it
	next   int         // where the next pick begins to look, so that ties rotate
	sheet  sheet
}

// choose chooses the endpoints that may take a request: those that can take one
// at all, less those that the filters leave out, rated by the scorers and
// chosen by the picker. An endpoint that the request excludes is chosen only if
// no other is left. When none is left, again says when time alone may change
// that (zero: it won't).
func (f *fleet) choose(r *Request, revision int, now time.Time) (c choice, again time.Time) {
	a := &f.sheet
	a.begin(r, &f.profile, now)
	a.only = revision
	again = f.able(a, &f.stage)
	if len(a.endpoints)+len(a.over) == 0 {
		return choice{left: a.left}, again
	}
	f.recall(a)
	f.stretch(a)
	if !f.narrow(a) {
		return choice{left: a.left}, again
	}
	if len(r.Exclude) > 0 {
		a.keep(leftExcluded, true, func(p *endpoint) bool { return !slices.Contains(r.Exclude, p.ID) })
	}
	return f.take(a, &f.stage), time.Time{}
}

func (a *sheet) begin(r *Request, rules *profile, now time.Time) {
	a.request, a.rules, a.now = r, rules, now
	a.chain, a.exact, a.most, a.session, a.input, a.live, a.limit, a.only = nil, nil, 0, nil, r.InputTokens, 0, 0, 0
	a.endpoints, a.left = a.endpoints[:0], a.left[:0]
}

// narrow applies the filters, and reports whether they left any.
func (f *fleet) narrow(a *sheet) bool {
	for i := range a.rules.filters {
		a.rules.filters[i].apply(f, a)
	}
	return len(a.endpoints) > 0
}

// take rates the endpoints that are left, of which there is one at least, and
// applies the picker.
func (f *fleet) take(a *sheet, s *stage) choice {
	f.fade(a.now)
	f.look(a)
	f.score(a)
	s.next = (s.next + 1) % len(s.places)
	return f.best(a)
}

// able collects the endpoints of a stage that can take a request now. They come in an
// order that begins elsewhere each time, for those that are rated the same.
func (f *fleet) able(a *sheet, s *stage) (again time.Time) {
	n := len(s.places)
	sparing := f.sparing(a.now)
	a.over = a.over[:0]
	for i := range n {
		at := s.next + i
		if at >= n {
			at -= n
		}
		p := s.places[at]
		if a.only != 0 && p.revision != a.only {
			a.leave(leftRevision, 1)
			continue
		}
		limit, bar, later := f.bar(p, sparing, a.now)
		a.live += p.held
		a.limit += limit
		switch {
		case bar == "" && !a.busy(p):
			a.endpoints = append(a.endpoints, p)
		case bar == "", bar == leftFull && p.held < a.rules.over(p, limit):
			a.over = append(a.over, p)
		default:
			a.leave(bar, 1)
			if !later.IsZero() {
				again = earlier(again, later)
			}
		}
	}
	return again
}

// sparing reports whether endpoints that are new take less than their share:
// while some are, and others serve that have been there for longer. Without
// those it would be at the expense of who waits.
func (f *fleet) sparing(now time.Time) bool {
	slow := f.profile.slowStart
	return slow > 0 && now.Before(f.grown) && slices.ContainsFunc(f.endpoints, func(p *endpoint) bool {
		_, bar, _ := f.bar(p, false, now)
		return now.Sub(p.since) >= slow && (bar == "" || bar == leftFull || bar == leftFullTokens)
	})
}

// bar is what keeps an endpoint from taking a request, or "", and when that may
// end by the mere passing of time; limit is how many leases it may have.
func (f *fleet) bar(p *endpoint, sparing bool, now time.Time) (limit int, bar string, again time.Time) {
	limit = p.MaxConcurrency
	if p.Draining {
		return 0, leftDraining, again
	}
	if !p.sound() {
		if limit, again = p.limit(limit, now); limit == 0 {
			switch {
			case p.health == Unhealthy:
				return 0, leftUnhealthy, again
			case now.Before(p.pausedUntil):
				return 0, leftOverloaded, again
			default:
				return 0, leftOpen, again
			}
		}
	}
	whole := limit
	if age := now.Sub(p.since); sparing && age < f.profile.slowStart {
		limit = ramp(age, f.profile.slowStart, whole)
	}
	switch {
	case p.held >= limit && limit < whole:
		return limit, leftSlowStart, p.since.Add(rampUntil(limit+1, f.profile.slowStart, whole))
	case p.MaxTokens > 0 && p.tokens >= p.MaxTokens:
		return limit, leftFullTokens, time.Time{}
	case p.held >= limit:
		return limit, leftFull, time.Time{}
	default:
		return limit, "", time.Time{}
	}
}

// ramp is how many leases an endpoint of this age may hold.
func ramp(age, slow time.Duration, limit int) int {
	return min(max(int(float64(limit)*age.Seconds()/slow.Seconds()), 1), limit)
}

// rampUntil is the age at which it may hold so many.
func rampUntil(leases int, slow time.Duration, limit int) time.Duration {
	return time.Duration(math.Ceil(float64(slow) * float64(leases) / float64(limit)))
}

// over is how many leases an endpoint may hold for the sake of its cache. What
// it holds beyond its limit others hold less: the pool's limit stays. Were it
// not for this, in a pool that is full each request would go where the last one
// ended, which is hardly ever where its prefix is.
func (r *profile) over(p *endpoint, limit int) int {
	if !p.sound() {
		return limit
	}
	return limit + int(r.headroom*float64(limit))
}

// busy reports whether an endpoint has so much of prompts in front of it that
// more can as well wait here. For a retry none has: left with nothing but the
// endpoint that failed it, it would go there again.
func (a *sheet) busy(p *endpoint) bool {
	return a.rules.prefill > 0 && len(a.request.Exclude) == 0 && float64(p.told)*p.pace.slow >= a.rules.prefill
}

// stretch adds the full endpoints that have some of the request's prompt, and
// the busy ones that have most of it.
func (f *fleet) stretch(a *sheet) {
	for _, p := range a.over {
		home := a.session != nil && a.session.endpoint == p
		busy := a.busy(p)
		switch {
		case busy && !home && f.part(a, p) < 0.5:
			a.leave(leftPrefill, 1)
		case p.held < p.MaxConcurrency:
			a.endpoints = append(a.endpoints, p)
		case a.live >= a.limit:
			a.leave(leftFull, 1)
		case home, f.has(a, p):
			a.endpoints = append(a.endpoints, p)
		default:
			a.leave(leftFull, 1)
		}
	}
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
	if h := f.profile.precise; r.Tokens != nil && h.Enabled && r.Tokens.size == h.BlockTokens {
		a.exact = r.Tokens
		f.exact.search(a.exact.blocks)
		f.marks.advance(f.prefix.clock, h.Speculative, a.now)
	}
	a.session = f.bindings.find(r, a.now)
}

// look finds out what each endpoint that is left is expected to have of the
// prompt. Of its session's last turn an endpoint also has what it answered, if
// it still has the prompt.
func (f *fleet) look(a *sheet) {
	n := len(a.endpoints)
	a.blocks, a.cached = sized(a.blocks, n), sized(a.cached, n)
	a.scores = sized(a.scores, n)
	prompt := 0
	if a.chain != nil {
		prompt = len(a.chain.hashes)
	}
	for i, p := range a.endpoints {
		if a.scores[i] = 0; a.knows(p) {
			part := f.exactPart(a, p)
			a.blocks[i], a.cached[i] = int(math.Round(part*float64(prompt))), int(math.Round(part*float64(a.input)))
			continue
		}
		blocks, tokens := 0, 0
		if a.most > 0 {
			if blocks = f.prefix.have(&p.cache); blocks > 0 {
				tokens = int(a.chain.part(blocks) * float64(a.input))
			}
		}
		if s := a.session; s != nil && s.endpoint == p && blocks >= min(s.blocks, prompt) {
			tokens = max(tokens, min(s.tokens, a.input))
		}
		a.blocks[i], a.cached[i] = blocks, tokens
	}
	if a.exact != nil { // what was sent there may be gone
		a.most = slices.Max(a.blocks)
	}
}

// sized returns a slice of n elements of any value.
func sized[T any](s []T, n int) []T { return slices.Grow(s[:0], n)[:n] }

// score rates the endpoints that are left.
func (f *fleet) score(a *sheet) {
	for i := range a.rules.scorers {
		if len(a.values) <= i {
			a.values = append(a.values, nil)
		}
		values := sized(a.values[i], len(a.endpoints))
		a.values[i] = values
		s := &a.rules.scorers[i]
		s.rate(f, a, values)
		for j, v := range values {
			a.scores[j] += s.weight * min(max(v, 0), 1)
		}
	}
}

// best applies the picker.
func (f *fleet) best(a *sheet) choice {
	keys := a.scores
	if a.rules.kind != MaxScore {
		keys = a.draw()
	}
	a.order = top(a.order[:0], keys, a.rules.max)
	a.picked = a.picked[:0]
	for _, i := range a.order {
		a.picked = append(a.picked, a.endpoints[i])
	}
	first := a.order[0]
	c := choice{endpoints: a.picked, cached: a.cached[first], considered: len(a.endpoints), left: a.left}
	c.displaces = f.displaced(a, first)
	if a.record {
		c.candidates = f.explain(a)
	}
	return c
}

// draw gives each endpoint a key of chance: with the score as weight, as in
// Efraimidis and Spirakis' sampling without replacement, or without.
func (a *sheet) draw() []float64 {
	a.keys = sized(a.keys, len(a.scores))
	for i, score := range a.scores {
		u := a.rules.chance.Float64()
		switch {
		case a.rules.kind == Random:
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
		c.Endpoint, c.Score, c.CachedTokens, c.Live = p.name, a.scores[i], a.cached[i], p.held
		c.Scores, c.Work = c.Scores[:0], WorkCost{}
		for j := range a.rules.scorers {
			s := &a.rules.scorers[j]
			if s.kind == WorkScorer {
				c.Work = f.cost(a, &a.weighing, i)
			}
			c.Scores = append(c.Scores, Score{Scorer: s.kind, Value: a.values[j][i], Weight: s.weight})
		}
	}
	return a.best[:len(a.order)]
}

// chance is the picker's source of randomness.
func chance(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, seed)) } //nolint:gosec // not for secrets

// Somewhere names an endpoint that can be asked something beside requests: one
// that is healthy, each in its turn. False: there is none.
func (e *Embedded) Somewhere() (Target, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := &e.fleet
	for range f.endpoints {
		f.somewhere = (f.somewhere + 1) % len(f.endpoints)
		if p := f.endpoints[f.somewhere]; p.health == Healthy && !p.Draining && !p.open() {
			return p.targets[0], true
		}
	}
	return Target{}, false
}
