package scheduler

import (
	"fmt"
	"time"
)

// Trust is whether what an endpoint reports of its cache decides.
type Trust int

// The degrees of trust. Where it is less than Trusted, what was sent there
// decides, as for endpoints that report nothing.
const (
	Unreported Trust = iota // nothing was reported
	Unproven                // something was missed: to be compared with what answers tell
	Trusted
	Distrusted // answers contradict it
	Rejected   // it can't be true, or can't be kept; until the cache is said to be empty
)

func (t Trust) String() string {
	switch t {
	case Unreported:
		return "unreported"
	case Unproven:
		return "unproven"
	case Trusted:
		return "trusted"
	case Distrusted:
		return "distrusted"
	case Rejected:
		return "rejected"
	default:
		return fmt.Sprintf("trust(%d)", int(t))
	}
}

// MarshalText makes a Trust readable in JSON.
func (t Trust) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// CacheState is what an endpoint reported of its cache.
type CacheState struct {
	Trust    Trust  `json:"trust"`
	HBM      int    `json:"hbm"` // blocks in each tier
	Host     int    `json:"host"`
	Storage  int    `json:"storage"`
	Agreed   uint64 `json:"agreed"`   // answers that told about what was expected
	Differed uint64 `json:"differed"` // and that didn't
	Orphans  uint64 `json:"orphans"`  // blocks left out, since the one before them is not known
	Dropped  uint64 `json:"dropped"`  // times that all was forgotten: a gap, or too much
}

const (
	// changesAtOnce is for how many blocks that come or go decisions wait.
	changesAtOnce = 256
	// enoughAnswers is how many answers trust or distrust takes.
	enoughAnswers = 8
	// keepAnswers is what an answer counts after the next one.
	keepAnswers = 1 - 1.0/64
	// lessWeight is what an answer weighs in which more was cached than
	// expected: that happens to requests that come together, too.
	lessWeight = 0.25
)

// reported is what an endpoint reports of its cache, and how true that is.
type reported struct {
	*exactShelf

	model     string
	trust     Trust
	good, bad float64 // answers, fading
	CacheState
}

// CacheChanged takes what an endpoint's engine reported. Reports are to come in
// the engine's order. An id that the pool lacks is ignored.
func (e *Embedded) CacheChanged(id string, r CacheReport) {
	defer e.sweep()
	for first := true; first || len(r.Changes) > 0; first = false {
		part := r
		part.Changes = r.Changes[:min(len(r.Changes), changesAtOnce)]
		part.Clear = r.Clear && first
		r.Changes = r.Changes[len(part.Changes):]
		e.mu.Lock()
		if p := e.fleet.byID[id]; p != nil {
			e.fleet.report(p, part)
		}
		e.mu.Unlock()
	}
}

// CacheMissed says that reports of an endpoint were lost: what it reported is
// forgotten, and what it reports from now on has to prove itself, or that its
// cache is empty.
func (e *Embedded) CacheMissed(id string) {
	defer e.sweep()
	e.mu.Lock()
	defer e.mu.Unlock()
	if p := e.fleet.byID[id]; p != nil && p.reports != nil {
		e.fleet.unlearn(p, Unproven)
	}
}

// sweep forgets reports that count no more, part by part.
func (e *Embedded) sweep() {
	for more := true; more; {
		e.mu.Lock()
		more = e.fleet.exact.sweep(changesAtOnce)
		e.mu.Unlock()
	}
}

// report takes what an endpoint reports.
func (f *fleet) report(p *endpoint, r CacheReport) {
	if !f.profile.precise.Enabled {
		return
	}
	t := p.reports
	if t == nil {
		t = &reported{exactShelf: f.exact.join(), trust: Unproven}
		p.reports = t
	}
	if r.Clear {
		t.exactShelf = f.exact.clear(t.exactShelf)
		t.trust, t.good, t.bad = Trusted, 0, 0
	}
	if t.model = r.Model; t.trust == Rejected || len(r.Changes) == 0 {
		return
	}
	if r.BlockTokens != f.profile.precise.BlockTokens {
		f.unlearn(p, Rejected)
		return
	}
	for _, c := range r.Changes {
		switch {
		case c.Tier >= tiers:
		case c.Gone:
			f.exact.remove(t.exactShelf, c)
		case !f.exact.store(t.exactShelf, c):
			t.Orphans++
		}
	}
	if f.tooMuch(p) {
		f.unlearn(p, Rejected)
	}
}

// tooMuch reports whether the endpoint claims more than its memory holds, or
// more than its part of what is kept.
func (f *fleet) tooMuch(p *endpoint) bool {
	t := p.reports
	if t.size > maxEntries/max(len(f.endpoints), 1) {
		return true
	}
	capacity := p.load.Blocks * p.load.BlockSize / f.profile.precise.BlockTokens
	return capacity > 0 && t.blocks[TierHBM] > capacity+capacity/16+1
}

// unlearn forgets what an endpoint reported.
func (f *fleet) unlearn(p *endpoint, trust Trust) {
	t := p.reports
	t.exactShelf = f.exact.clear(t.exactShelf)
	t.trust, t.good, t.bad = trust, 0, 0
	t.Dropped++
}

// forgetReports ends the shelf of an endpoint that left or isn't followed any more.
func (f *fleet) forgetReports(p *endpoint) {
	if p.reports != nil {
		f.exact.leave(p.reports.exactShelf)
		p.reports = nil
	}
}

// follow ends what was reported where reports are not followed any more, or were
// of blocks of another size.
func (f *fleet) follow() {
	size := 0
	if f.profile.precise.Enabled {
		size = f.profile.precise.BlockTokens
	}
	if size == f.followed {
		return
	}
	f.followed = size
	for _, p := range f.endpoints {
		f.forgetReports(p)
	}
}

// knows reports whether what the endpoint reported decides for the request.
func (a *sheet) knows(p *endpoint) bool {
	return a.exact != nil && p.reports != nil && p.reports.trust == Trusted && (p.reports.model == "" || p.reports.model == a.request.Model)
}

// exactPart is how much of the prompt the endpoint reported, from 0 to 1,
// each tier at what it saves.
func (f *fleet) exactPart(a *sheet, p *endpoint) float64 {
	saved, _ := f.exact.worth(p.reports.exactShelf, f.profile.worth)
	part := min(saved*float64(a.exact.size)/float64(a.exact.tokens), 1)
	if f.justSent(a, p) {
		part = max(part, a.chain.part(f.prefix.have(&p.cache)))
	}
	return part
}

// justSent reports whether the endpoint was sent what it may have of the prompt
// so lately that it may not have reported it yet.
func (f *fleet) justSent(a *sheet, p *endpoint) bool {
	if f.profile.precise.Speculative == 0 || a.chain == nil || f.prefix.have(&p.cache) == 0 {
		return false
	}
	return before(f.marks.older, f.prefix.at(p.cache.last).stamp)
}

// marks are stamps of the prefix index by time: older is between one and two
// times the time ago that prompts count as just sent.
type marks struct {
	older, newer uint32
	at           time.Time
}

func (m *marks) advance(clock uint32, each time.Duration, now time.Time) {
	if now.Sub(m.at) >= each {
		m.older, m.newer, m.at = m.newer, clock, now
	}
}

// has reports whether the endpoint has any of the prompt.
func (f *fleet) has(a *sheet, p *endpoint) bool {
	if a.knows(p) {
		return f.exactPart(a, p) > 0
	}
	return a.most > 0 && f.prefix.have(&p.cache) > 0
}

// part is how much of the prompt an endpoint is expected to have.
func (f *fleet) part(a *sheet, p *endpoint) float64 {
	switch {
	case a.knows(p):
		return f.exactPart(a, p)
	case a.most > 0:
		return a.chain.part(f.prefix.have(&p.cache))
	default:
		return 0
	}
}

// expect is how many tokens of the prompt the endpoint should find by what it
// reported, be it trusted or not; negative: that says nothing.
func (f *fleet) expect(a *sheet, p *endpoint) int {
	if a.exact == nil || p.reports == nil || p.reports.trust == Rejected || p.reports.model != "" && p.reports.model != a.request.Model {
		return -1
	}
	return f.exact.have(p.reports.exactShelf) * a.exact.size
}

// verify compares what an answer tells with what was expected. Within a block
// or a factor of two it agrees: meanwhile others came and went.
func (t *reported) verify(expected, found, block int) {
	if expected < 0 || max(expected, found) <= block {
		return
	}
	t.good, t.bad = keepAnswers*t.good, keepAnswers*t.bad
	switch {
	case 2*found+block < expected:
		t.bad++
		t.Differed++
	case 2*expected+block < found:
		t.bad += lessWeight
		t.Differed++
	default:
		t.good++
		t.Agreed++
	}
	if t.good+t.bad < enoughAnswers {
		return
	}
	switch {
	case t.trust == Trusted && t.bad > t.good:
		t.trust = Distrusted
	case (t.trust == Unproven || t.trust == Distrusted) && t.good > 3*t.bad:
		t.trust = Trusted
	}
}

func (p *endpoint) cacheState() CacheState {
	if p.reports == nil {
		return CacheState{}
	}
	s := p.reports.CacheState
	s.Trust = p.reports.trust
	s.HBM, s.Host, s.Storage = p.reports.blocks[TierHBM], p.reports.blocks[TierHost], p.reports.blocks[TierStorage]
	return s
}
