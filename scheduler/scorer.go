package scheduler

import (
	"cmp"
	"slices"
)

// scorer rates endpoints from 0 to 1, with llm-d's formula for the kind.
type scorer struct {
	kind   string
	weight float64
	rate   func(f *fleet, a *sheet, out []float64)
}

func newScorer(c Scorer) (scorer, bool) {
	s := scorer{kind: c.Kind, weight: c.Weight}
	switch c.Kind {
	case WorkScorer:
		s.rate = rateWork
	case "queue-scorer":
		s.rate = func(_ *fleet, a *sheet, out []float64) { fewest(a, out, (*endpoint).waiting) }
	case "running-requests-size-scorer":
		s.rate = func(_ *fleet, a *sheet, out []float64) { fewest(a, out, (*endpoint).running) }
	case "kv-cache-utilization-scorer":
		s.rate = each(func(_ *fleet, _ *sheet, p *endpoint) float64 { return 1 - p.usage() })
	case "load-aware-scorer":
		full := cmp.Or(c.Threshold, 128)
		s.rate = each(func(_ *fleet, _ *sheet, p *endpoint) float64 {
			return 0.5 * (1 - min(float64(p.waiting()), full)/full)
		})
	case "active-request-scorer":
		s.rate = active(c)
	case "token-load-scorer":
		full := cmp.Or(c.Threshold, 4_194_304)
		s.rate = func(_ *fleet, a *sheet, out []float64) {
			for i, p := range a.endpoints {
				out[i] = 1 - min(float64(p.pending+a.input-a.cached[i])/full, 1)
			}
		}
	case "prefix-cache-scorer":
		s.rate = prefixShare(c)
	case "no-hit-lru-scorer":
		s.rate = coldest
	case "session-affinity-scorer":
		s.rate = each(func(_ *fleet, a *sheet, p *endpoint) float64 {
			if a.session != nil && a.session.endpoint == p {
				return 1
			}
			return 0
		})
	case "context-length-aware":
		s.rate = each(func(_ *fleet, a *sheet, p *endpoint) float64 { return contextFit(p.Labels[contextLabel], a.input) })
	default:
		return scorer{}, false
	}
	return s, true
}

func each(rate func(*fleet, *sheet, *endpoint) float64) func(*fleet, *sheet, []float64) {
	return func(f *fleet, a *sheet, out []float64) {
		for i, p := range a.endpoints {
			out[i] = rate(f, a, p)
		}
	}
}

// waiting is how many requests wait in the engine: as many as it said, and
// those that it was sent since. Without the latter every request between two
// scrapes would go to the endpoint that was empty at the first one.
func (p *endpoint) waiting() int { return p.load.Waiting + p.unseen }

// running is how many requests the engine works on, likewise.
func (p *endpoint) running() int { return p.load.Running + p.unseen }

// usage is the part of the KV cache in use; of an endpoint that never said, the
// part of the leases that it may hold.
func (p *endpoint) usage() float64 {
	if p.load.At.IsZero() {
		return float64(p.held) / float64(p.MaxConcurrency)
	}
	return p.load.KVUsage
}

// fewest rates by a number, of which less is better, between the least and the
// most that there is.
func fewest(a *sheet, out []float64, number func(*endpoint) int) {
	least, most := number(a.endpoints[0]), number(a.endpoints[0])
	for _, p := range a.endpoints {
		n := number(p)
		least, most = min(least, n), max(most, n)
	}
	for i, p := range a.endpoints {
		out[i] = 1
		if most > least {
			out[i] = float64(most-number(p)) / float64(most-least)
		}
	}
}

// active rates by our own leases: an idle endpoint is best, and of the others
// the one with the fewest, up to maxBusyScore.
func active(c Scorer) func(*fleet, *sheet, []float64) {
	idle, best := int(c.Threshold), cmp.Or(c.MaxBusyScore, 1)
	return func(_ *fleet, a *sheet, out []float64) {
		most := 0
		for _, p := range a.endpoints {
			most = max(most, p.held)
		}
		for i, p := range a.endpoints {
			out[i] = 1
			if n := p.held; n > idle {
				out[i] = float64(most-n) / float64(most) * best
			}
		}
	}
}

// prefixShare rates by how much of the prompt an endpoint has: the part of its
// blocks, and as far as it is weighed, the square of their length.
func prefixShare(c Scorer) func(*fleet, *sheet, []float64) {
	long := float64(cmp.Or(c.MatchLengthTokens, 8192))
	return func(f *fleet, a *sheet, out []float64) {
		for i, blocks := range a.blocks {
			out[i] = 0
			if p := a.endpoints[i]; !c.Approximate && a.knows(p) {
				part := f.exactPart(a, p)
				length := min(part*float64(a.exact.tokens)/long, 1)
				out[i] = c.MatchLengthWeight*length*length + (1-c.MatchLengthWeight)*part
				continue
			}
			if a.most == 0 {
				continue
			}
			length := min(float64(blocks*f.blockTokens)/long, 1)
			share := float64(blocks) / float64(len(a.chain.hashes))
			out[i] = c.MatchLengthWeight*length*length + (1-c.MatchLengthWeight)*share
		}
	}
}

// coldest spreads prompts of which nobody has anything, and so the growth of
// caches: the endpoint whose last such prompt is longest ago rates best.
func coldest(_ *fleet, a *sheet, out []float64) {
	n := len(a.endpoints)
	if a.most > 0 {
		for i := range out {
			out[i] = 0.5
		}
		return
	}
	if n == 1 {
		out[0] = 1
		return
	}
	a.order = a.order[:0]
	for i := range n {
		a.order = append(a.order, i)
	}
	slices.SortStableFunc(a.order, func(i, j int) int {
		return cmp.Compare(a.endpoints[i].coldAt, a.endpoints[j].coldAt)
	})
	for rank, i := range a.order {
		out[i] = 1 - float64(rank)/float64(n-1)
	}
}

// contextFit rates how well an endpoint that is labelled for prompts of certain
// lengths fits one: inside, a narrow range and room above are better; outside,
// the nearer the better, but less than any inside. One without a label is in
// the middle, one whose label can't be read is last.
func contextFit(label string, tokens int) float64 {
	const outside = 0.3
	if label == "" {
		return 0.5
	}
	from, to, ok := span(label)
	switch {
	case !ok:
		return 0
	case tokens < from:
		return outside / (1 + float64(from-tokens)/1000)
	case tokens > to:
		return outside / (1 + float64(tokens-to)/1000)
	case from == to:
		return 1
	}
	width := float64(to - from)
	return outside + (1-outside)*(0.7/(1+width/10_000)+0.3*float64(to-tokens)/width)
}
