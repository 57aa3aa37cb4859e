package scheduler

import (
	"slices"
	"time"
)

// arrival is what a request met when it came.
type arrival struct {
	at     time.Time
	queued int // in the pool
	ahead  int // estimate of how many go before it
}

// record is a Decision as it is kept: whatever it takes to write one is done
// when it is read, and its slices serve the next one.
type record struct {
	request    string
	fairnessID string
	session    string
	model      string
	band       int
	came       arrival
	waited     time.Duration

	held       held
	saturation float64
	ceiling    float64
	refused    Reason

	inputTokens  int
	cachedTokens int
	considered   int
	left         []leftOut
	candidates   []Candidate
	endpoint     string
	prefill      string
	revision     string
}

// leftOut is how many endpoints a filter or a condition left out.
type leftOut struct {
	by string
	n  int
}

// ring is the latest decisions. It grows up to its size, then its records are
// written anew, so that a decision costs no memory.
type ring struct {
	records []record
	size    int
	next    int // where the next one goes
}

// resize keeps the newest records that fit.
func (g *ring) resize(size int) {
	size = max(size, 0)
	if size == g.size {
		return
	}
	kept := make([]record, 0, min(len(g.records), size))
	for i := min(len(g.records), size) - 1; i >= 0; i-- {
		kept = append(kept, *g.back(i))
	}
	*g = ring{records: kept, size: size}
	if size > 0 {
		g.next = len(kept) % size
	}
}

// back is the record before so many newer ones.
func (g *ring) back(i int) *record {
	n := len(g.records)
	return &g.records[(g.next-1-i+2*n)%n]
}

// add returns a cleared record to fill in, or nil where none is kept. It stays
// valid until the next call.
func (g *ring) add() *record {
	if g.size == 0 {
		return nil
	}
	if len(g.records) < g.size {
		g.records = append(g.records, record{})
	}
	r := &g.records[g.next]
	g.next = (g.next + 1) % g.size
	*r = record{left: r.left[:0], candidates: r.candidates[:0]}
	return r
}

// begin fills in what is known of a request before it is decided on.
func (r *record) begin(q *Request, came arrival, now time.Time) {
	r.request, r.fairnessID, r.session, r.band = q.ID, q.Flow.FairnessID, q.Session, q.Flow.Band
	r.model = q.Model
	r.came, r.waited, r.inputTokens = came, now.Sub(came.at), q.InputTokens
}

// chose fills in where the request goes. What c points to is the picker's own
// and is copied.
func (r *record) chose(c choice) {
	r.endpoint, r.cachedTokens, r.considered, r.revision = c.endpoints[0].name, c.computed(), c.considered, c.revision
	if c.prefill != nil {
		r.prefill = c.prefill.name
	}
	r.left = append(r.left, c.left...)
	for _, from := range c.candidates[:min(len(c.candidates), MaxCandidates)] {
		n := len(r.candidates)
		if n == cap(r.candidates) {
			r.candidates = append(r.candidates, Candidate{})
		} else {
			r.candidates = r.candidates[:n+1]
		}
		to := &r.candidates[n]
		scores := append(to.Scores[:0], from.Scores...)
		*to = from
		to.Scores = scores
	}
}

// decision writes the record out. Nothing of it is shared with the ring.
func (r *record) decision() Decision {
	d := Decision{
		Request: r.request, FairnessID: r.fairnessID, Band: r.band, Session: r.session, Model: r.model,
		EnteredAt: r.came.at, Waited: r.waited, Ahead: r.came.ahead, Queued: r.came.queued,
		Held: r.held.by, HeldSaturation: r.held.saturation, HeldCeiling: r.held.ceiling,
		Saturation: r.saturation, Ceiling: r.ceiling, Refused: r.refused,
		InputTokens: r.inputTokens, CachedTokens: r.cachedTokens,
		Considered: r.considered, Left: make(map[string]int, len(r.left)),
		Candidates: slices.Clone(r.candidates), Endpoint: r.endpoint, Prefill: r.prefill, Revision: r.revision,
	}
	for _, l := range r.left {
		d.Left[l.by] += l.n
	}
	for i := range d.Candidates {
		d.Candidates[i].Scores = slices.Clone(d.Candidates[i].Scores)
	}
	d.Why = d.why()
	return d
}

// Decision finds the latest decision on an attempt by its Request.ID, while it
// is remembered.
func (e *Embedded) Decision(id string) (Decision, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// Operators ask this, of thousands: not worth an index.
	for i := range e.ring.records {
		if r := e.ring.back(i); r.request == id {
			return r.decision(), true
		}
	}
	return Decision{}, false
}

// Decisions returns the latest n decisions, the newest first, or all that are
// remembered if they are fewer.
func (e *Embedded) Decisions(n int) []Decision {
	e.mu.Lock()
	defer e.mu.Unlock()
	n = max(min(n, len(e.ring.records)), 0)
	all := make([]Decision, n)
	for i := range all {
		all[i] = e.ring.back(i).decision()
	}
	return all
}
