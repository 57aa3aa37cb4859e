package scheduler

// The prices of WorkScorer, in prompt tokens to be computed by an endpoint of
// average pace.
const (
	// extraCost is what a token costs that has to be computed, against one of
	// others' that stands in front of the request. The latter delays this request
	// alone, the former all who come after.
	extraCost = 7
	// evictionCost is what it costs to drive out a token that is used again for
	// certain. It is dearer than computing that anew: who comes back for it often
	// has to go elsewhere, and drives out others there.
	evictionCost = 14
	// laterTurns is how many more turns of a session count that will have to wait
	// for what usually stands in front. A request without a session is taken to
	// have one more like it.
	laterTurns = 4
	// leaseCost is what a request costs that is being answered: it takes part
	// in every step.
	leaseCost = 64
)

// WorkCost is what WorkScorer finds that an endpoint costs: Pace times the sum
// of the others, which are in prompt tokens to be computed.
type WorkCost struct {
	Pace     float64 `json:"pace"`     // how slow the endpoint is, 1 being the average
	Ahead    float64 `json:"ahead"`    // what stands in front of the request
	Uncached float64 `json:"uncached"` // what the request brings
	Extra    float64 `json:"extra"`    // the same as a burden to all who come after
	Evicts   float64 `json:"evicts"`   // what it drives out of the cache that others come back for
	Later    float64 `json:"later"`    // what usually stands in front of those that follow from it
}

func (c *WorkCost) total() float64 {
	return c.Pace * (c.Ahead + c.Uncached + c.Extra + c.Evicts + c.Later)
}

// weighing is what the costs of one pick's endpoints have in common.
type weighing struct {
	prompt int     // blocks
	most   int     // tokens of it that some endpoint has
	copies float64 // price of one of these to an endpoint that has it not
	now    float64 // weight of the time until now
	turns  float64 // that count in later, over that
}

// rateWork is WorkScorer: the least cost of all divided by the endpoint's.
//
//	pace * (ahead + uncached + extra + evicts + later)
//
// ahead is the uncached tokens of the endpoint's leases which have shown no
// token yet, and leaseCost for each lease; uncached are those of this request.
//
// extra is for all others: extraCost for each token that has to be computed.
// What another endpoint has and this one has not is such a token too, but the
// less so the more requests share the prefix in question at the same time: a
// copy is paid for once, and used by all of them, so that a hot prefix spills
// over as soon as its holders have more to do than others. What the first
// prompt of a session has in common with others is shared by all sessions.
//
// evicts is evictionCost for each token that the request would drive out, times
// the chance that it will be used again.
//
// later is for what comes after the request. One that brings mostly new tokens
// begins something that will stay, so it goes where little stands in front as a
// rule: laterTurns times that, times the square of the part of the prompt that
// is new. A conversation is not driven away by what it did itself.
//
// The effect is that caches together behave like one of their total size:
// requests go where their prefix is while that pays, and new ones go where the
// least work is, and the least is evicted that anybody comes back for.
func rateWork(f *fleet, a *sheet, out []float64) {
	w := f.weigh(a)
	a.weighing = w
	least := 0.0
	for i := range a.endpoints {
		c := f.cost(a, &w, i)
		out[i] = c.total()
		if i == 0 || out[i] < least {
			least = out[i]
		}
	}
	for i, cost := range out {
		out[i] = least / cost
	}
}

func (f *fleet) weigh(a *sheet) weighing {
	now := f.recency.weight(a.now)
	w := weighing{now: now, turns: 1 / now}
	if a.request.Session != "" {
		w.turns = laterTurns / now
	}
	if a.chain != nil {
		w.prompt = len(a.chain.hashes)
	}
	for _, n := range a.cached {
		w.most = max(w.most, n)
	}
	if !a.opens() {
		w.copies = extraCost / f.sharers(a)
	}
	return w
}

// opens reports whether the request is the first of a session.
func (a *sheet) opens() bool {
	return a.request.Session != "" && a.request.Turn <= 1 && a.session == nil
}

// cost is what the i-th endpoint costs.
func (f *fleet) cost(a *sheet, w *weighing, i int) WorkCost {
	p, cached := a.endpoints[i], a.cached[i]
	uncached := max(a.input-cached, 1)
	c := WorkCost{
		Pace:     p.pace.slow,
		Ahead:    float64(p.pending + leaseCost*p.held),
		Uncached: float64(uncached),
		Extra:    extraCost*float64(a.input-w.most) + w.copies*float64(w.most-cached),
	}
	if evicted := w.prompt - a.blocks[i] - (p.cache.capacity - p.cache.size); evicted > 0 {
		c.Evicts = evictionCost * float64(evicted*f.blockTokens) * f.prefix.reuse.chance(f.prefix.clock-p.cache.tail)
	}
	if uncached >= f.blockTokens { // less begins nothing
		fresh := float64(uncached) / float64(a.input)
		c.Later = w.turns * fresh * fresh * p.usual.times(float64(p.pending), w.now)
	}
	return c
}

// sharers estimates how many of the live requests share what the request has in
// common with others, at one endpoint: at least 1. While so many prompts come
// as there are live requests, each use of the prefix is one of theirs.
func (f *fleet) sharers(a *sheet) float64 {
	if a.most == 0 || f.prefix.gap == 0 {
		return 1
	}
	return max(float64(a.live)/float64(f.prefix.gap), 1)
}
