package scheduler

import "math"

// The prices of WorkScorer, in prompt tokens to be computed by an endpoint of
// average pace.
const (
	// uncachedCost is what a token costs that the endpoint has not cached,
	// against one of others' that stands in front of it. It is computed before
	// the first token as those are; but also, it holds up who comes after, and
	// it takes room in a cache where it drives out what others would have hit,
	// and where it is a second copy, if another endpoint has it.
	uncachedCost = 8
	// evictionCost is what it costs more where it drives out blocks that were
	// just used, compared with blocks that are the oldest of all.
	evictionCost = 1.5
	// leaseCost is what a request costs that is being answered: it takes part
	// in every step.
	leaseCost = 64
)

// rateWork is WorkScorer. An endpoint's cost is what stands in front of the
// request there and what the request brings itself:
//
//	slow * (pending + leaseCost*live + (copies + evictionCost*fresh)*uncached)
//
// slow is the endpoint's pace, pending the uncached tokens of its leases which
// have shown no token yet, uncached those of this request. fresh is 0 where the
// request evicts nothing, or the oldest blocks of all, and towards 1 where the
// cache is turned over faster than elsewhere. copies is uncachedCost, but falls
// to 1 the more requests share the prefix in question at the same time: a copy
// is paid for once, and used by all of them, so that a hot prefix spills over
// as soon as its holders have more to do than others. The score is the least
// cost of all divided by the endpoint's.
//
// The effect is that caches together behave like one of their total size:
// requests go where their prefix is while that pays, and new ones go where the
// least work is, which is also where the least is evicted.
func rateWork(f *fleet, a *sheet, out []float64) {
	copies := 1 + (uncachedCost-1)/f.sharers(a)
	oldest := f.ages(a, out)
	least := 0.0
	for i, p := range a.endpoints {
		fresh := 0.0
		if age := out[i]; age < oldest {
			fresh = 1 - age/oldest
		}
		uncached := float64(max(a.input-a.cached[i], 1))
		cost := p.pace.slow * (float64(p.pending+leaseCost*p.held) + (copies+evictionCost*fresh)*uncached)
		out[i] = cost
		if i == 0 || cost < least {
			least = cost
		}
	}
	for i, cost := range out {
		out[i] = least / cost
	}
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

// ages sets how many prompts ago each endpoint last used what it would evict
// for the request, and returns the most. One that has room evicts nothing: that
// is infinitely long ago.
func (f *fleet) ages(a *sheet, out []float64) (oldest float64) {
	prompt := 0
	if a.chain != nil {
		prompt = len(a.chain.hashes)
	}
	for i, p := range a.endpoints {
		out[i] = math.Inf(1)
		if p.cache.size+prompt-a.blocks[i] > p.cache.capacity {
			out[i] = float64(f.prefix.clock - p.cache.tail)
		}
		oldest = max(oldest, out[i])
	}
	return oldest
}
