package scheduler

import (
	"container/heap"
	"time"
)

// RoleLabel is the label that says which stage of a request an endpoint serves.
const RoleLabel = "llm-d.ai/role"

// unit is a full endpoint where a share is a ratio. Shares are whole numbers,
// so that sums which are kept by adding and taking off never drift; maxRatio
// bounds what an engine can claim of itself.
const (
	unit     = 1 << 24
	maxRatio = 1 << 20
)

// sum is how full some endpoints are: what they carry of what they may.
type sum struct {
	load, room int64
	within     int64 // of load, what endpoints don't hold beyond their limit
	idle       int64 // endpoints that are far below theirs
}

func (s sum) full() (ratio float64, ok bool) {
	if s.room <= 0 {
		return 1, false
	}
	load := s.load
	if load >= s.room && s.idle > 0 {
		load = s.within // what some hold beyond their limit shall not leave others idle
	}
	return float64(load) / float64(s.room), true
}

// share is what an endpoint adds to the sums of its pool.
type share struct {
	sum

	prefill, decode bool
	pressure        sum       // by its metrics, for shedding
	review          time.Time // when the share changes by itself; zero: it doesn't
	at              int       // place in the heap of reviews; -1 when in none
}

// gauge measures how full a pool is. Each change of an endpoint corrects the
// sums by the difference, so that a decision costs the same however many
// endpoints there are. An endpoint whose share changes by the passing of time
// (a pause that ends, a load that gets old) is looked at again when it does.
//
// The measures are llm-d's: prefill and decode endpoints are pools of their
// own, and the fuller one counts.
type gauge struct {
	detector Detector
	shed     Shed
	rules    *profile // which say what an endpoint may hold for the sake of its cache

	prefill, decode, pressure sum
	reviews                   reviews
}

// reset measures anew, after settings or the set of endpoints changed.
func (g *gauge) reset(cfg *Config, f *fleet, now time.Time) {
	*g = gauge{detector: cfg.Detector, shed: cfg.Shed, rules: &f.profile, reviews: g.reviews[:0]}
	for _, p := range f.leaving {
		p.share = share{at: -1}
	}
	for _, p := range f.endpoints {
		p.share = share{at: -1}
		g.update(p, now)
	}
}

// update follows a change of the endpoint.
func (g *gauge) update(p *endpoint, now time.Time) {
	g.add(&p.share, -1)
	next := g.measure(p, now)
	next.at = p.share.at
	p.share = next
	g.add(&p.share, 1)
	switch {
	case next.at >= 0 && next.review.IsZero():
		heap.Remove(&g.reviews, next.at)
	case next.at >= 0:
		heap.Fix(&g.reviews, next.at)
	case !next.review.IsZero():
		heap.Push(&g.reviews, p)
	}
}

func (g *gauge) add(s *share, sign int64) {
	if s.prefill {
		g.prefill.add(s.sum, sign)
	}
	if s.decode {
		g.decode.add(s.sum, sign)
	}
	g.pressure.add(s.pressure, sign)
}

func (s *sum) add(o sum, sign int64) {
	s.load += sign * o.load
	s.room += sign * o.room
	s.within += sign * o.within
	s.idle += sign * o.idle
}

// catchUp reviews the endpoints that are due.
func (g *gauge) catchUp(now time.Time) {
	for len(g.reviews) > 0 && !now.Before(g.reviews[0].share.review) {
		g.update(g.reviews[0], now)
	}
}

// saturation is how full the pool is, 1 being full, and when that may change
// by the mere passing of time (zero: it won't). A pool that can take nothing
// is full.
func (g *gauge) saturation(now time.Time) (full float64, again time.Time) {
	g.catchUp(now)
	if len(g.reviews) > 0 {
		again = g.reviews[0].share.review
	}
	prefill, some := g.prefill.full()
	decode, others := g.decode.full()
	switch {
	case !some:
		return decode, again
	case !others:
		return prefill, again
	default:
		return max(prefill, decode), again
	}
}

// measure is the endpoint's share now. One that can take nothing, whatever
// runs on it, has none: it is not capacity.
func (g *gauge) measure(p *endpoint, now time.Time) share {
	var s share
	if p.Draining || p.screened {
		return s
	}
	limit, again := p.limit(p.MaxConcurrency, now)
	if limit <= 0 {
		s.review = again
		return s
	}
	s.prefill, s.decode = stages(p.Labels[RoleLabel])
	own := float64(len(p.live)) / float64(limit)
	known := p.known(g.detector.Staleness, now)
	if g.detector.Kind == UtilizationDetector {
		s.sum = ratio(g.utilization(p, own, known))
	} else {
		s.sum = g.concurrency(p, limit, own)
	}
	if g.shed.Enabled {
		s.pressure = ratio(own)
		if known {
			s.pressure = ratio(use(p.load, g.shed.QueueDepth, g.shed.KVUsage))
		}
	}
	if known && (g.shed.Enabled || g.detector.Kind == UtilizationDetector) {
		s.review = p.load.At.Add(g.detector.Staleness)
	}
	return s
}

// concurrency counts what we sent: the endpoint's own word is not asked for.
func (g *gauge) concurrency(p *endpoint, limit int, own float64) sum {
	most := p.MaxTokens
	if most <= 0 {
		most = g.detector.MaxTokens
	}
	switch g.detector.Mode {
	case CountTokens:
		return sum{load: int64(p.tokens), room: int64(most), within: int64(p.tokens)}
	case CountHybrid:
		return ratio(max(own, float64(p.tokens)/float64(most)))
	default:
		live, most := len(p.live), g.rules.over(p, limit)
		s := sum{load: int64(live), room: int64(limit), within: int64(min(live, limit))}
		if g.detector.Headroom <= 0 {
			s.load = int64(min(live, most)) // what is over, since the limit was lowered, takes no room from others
		}
		if live+most-limit < limit {
			s.idle = 1
		}
		return s
	}
}

// utilization is what the engine says of itself. Where it says nothing, or
// said it too long ago, our own leases count, unless such an endpoint is to
// count as full.
func (g *gauge) utilization(p *endpoint, own float64, known bool) float64 {
	switch {
	case known:
		return use(p.load, g.detector.QueueDepth, g.detector.KVUsage)
	case g.detector.StaleIsFull:
		return 1
	default:
		return own
	}
}

// use is the larger of two: the engine's queue and its KV cache, each as part
// of what is full.
func use(l Load, queueDepth int, kvUsage float64) float64 {
	return max(float64(l.Waiting)/float64(queueDepth), l.KVUsage/kvUsage)
}

func ratio(r float64) sum {
	load := int64(min(r, maxRatio)*unit + 0.5)
	return sum{load: load, room: unit, within: load}
}

// stages says by its role which stages of a request an endpoint serves.
func stages(role string) (prefill, decode bool) {
	switch role {
	case "prefill", "encode-prefill":
		return true, false
	case "decode", "":
		return false, true
	case "prefill-decode", "both", "encode-prefill-decode":
		return true, true
	default:
		return false, false
	}
}

// reviews is a heap of endpoints by when their share changes.
type reviews []*endpoint

func (h reviews) Len() int           { return len(h) }
func (h reviews) Less(i, j int) bool { return h[i].share.review.Before(h[j].share.review) }
func (h reviews) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].share.at, h[j].share.at = i, j
}

// Push and Pop belong to heap.Interface.
func (h *reviews) Push(x any) {
	p := x.(*endpoint)
	p.share.at = len(*h)
	*h = append(*h, p)
}

// Pop removes the last endpoint.
func (h *reviews) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	p.share.at = -1
	return p
}
