package scheduler

import (
	"cmp"
	"container/list"
	"math"
	"slices"
	"time"
)

// queues is all that waits in a pool: bands, highest first, with their flows.
// Bands come from the operator's catalogue, so there are few.
type queues struct {
	cfg      *Config
	bands    []*band
	byID     map[string]*waiter // who waits, by Request.ID
	promised promised           // flows below their reservation that wait
	programs map[Fairness]map[string]*program
	sessions sessions

	aside  []*waiter // who stands aside, in the order in which they did
	queued int       // in the bands' queues
	bytes  int64     // of the bodies that wait

	epoch  time.Time     // when the first one came
	latest time.Duration // when the last one did, since then
	seq    uint64        // and which it was
}

// configure takes new settings. What waits keeps its place in the queue, under
// the policies that now hold. A band that the settings don't name is forgotten
// if nothing waits or runs in it.
func (q *queues) configure(cfg *Config) {
	if q.byID == nil {
		q.byID = map[string]*waiter{}
		q.programs = map[Fairness]map[string]*program{}
		q.sessions = sessions{byID: map[string]*session{}, recent: list.New()}
	}
	q.cfg = cfg
	q.bands = slices.DeleteFunc(q.bands, q.outdated)
	for _, b := range q.bands {
		q.adopt(b)
	}
	for i := range cfg.Bands {
		q.band(cfg.Bands[i].Priority)
	}
	if cfg.BandZero {
		q.band(0)
	}
}

func (q *queues) outdated(b *band) bool {
	named := slices.ContainsFunc(q.cfg.Bands, func(c BandConfig) bool { return c.Priority == b.priority })
	if named || q.cfg.BandZero && b.priority == 0 || b.idle.n < len(b.flows) {
		return false
	}
	for _, f := range b.flows {
		f.program.leave(f)
	}
	return true
}

// band returns the band of a priority, which it may add.
func (q *queues) band(priority int) *band {
	i, ok := slices.BinarySearchFunc(q.bands, priority, func(b *band, priority int) int {
		return cmp.Compare(priority, b.priority)
	})
	if !ok {
		b := &band{priority: priority, ceiling: 1, flows: map[string]*flow{}, refused: map[Reason]uint64{}}
		q.adopt(b)
		q.bands = slices.Insert(q.bands, i, b)
	}
	return q.bands[i]
}

// adopt gives the band the policies of its priority. New ones order anew what
// waits; accounts begin where the new policy finds them.
func (q *queues) adopt(b *band) {
	old := b.cfg
	b.cfg = q.cfg.band(b.priority)
	if b.fairness != nil && b.cfg.Fairness == old.Fairness && b.cfg.Ordering == old.Ordering {
		return
	}
	flows := b.backlog.flows
	b.backlog = flowHeap{}
	b.fairness, b.backlog.before = q.fairness(b.cfg.Fairness)
	b.weight = 0
	for _, f := range b.flows {
		f.program.leave(f)
		f.slot = 0
	}
	for _, f := range flows {
		f.backlog = -1
		for _, w := range f.waiting {
			q.rank(w)
		}
		f.waiting.init()
		b.arrives(f, f.head().entered)
		b.changed(f)
	}
}

// flow returns the band and the flow of a request, with the weight and the
// reservation that it brings.
func (q *queues) flow(r *Request) (*band, *flow) {
	b := q.band(r.Flow.Band)
	f := b.flow(r)
	q.promise(f)
	return b, f
}

// full checks the caps in llm-d's order, from the outside in and bytes first,
// so that the reason names the widest queue that has no place; then the flow's
// own, which llm-d lacks.
func (q *queues) full(b *band, f *flow, bytes int64) (Reason, bool) {
	switch {
	case q.cfg.MaxBytes != 0 && q.bytes+bytes > q.cfg.MaxBytes, q.queued+len(q.aside) >= q.cfg.MaxQueued:
		return PoolFull, true
	case b.bytes+bytes > b.cfg.MaxBytes, b.queued+b.aside >= b.cfg.MaxQueued:
		return BandFull, true
	case f.queued()+f.aside >= b.cfg.MaxFlowQueued:
		return FlowFull, true
	default:
		return "", false
	}
}

// push queues the waiter, whose request and times are set.
func (q *queues) push(b *band, f *flow, w *waiter) {
	w.band, w.flow = b, f
	if w.order.seq == 0 { // else it stood aside
		q.arrive(w)
	}
	q.rank(w)
	if f.queued() == 0 {
		b.arrives(f, w.entered)
	}
	f.push(w)
	b.changed(f)
	b.queued++
	q.queued++
	q.enlist(w)
	q.promise(f)
}

func (q *queues) remove(w *waiter) {
	if w.isAside {
		q.leaveAside(w)
		w.band.rest(w.flow)
		w.flow = nil
		return
	}
	b, f := w.band, w.flow
	f.remove(w)
	b.changed(f)
	b.queued--
	q.queued--
	q.delist(w)
	if b.queued == 0 {
		b.owed = min(b.owed, 0)
	}
	q.promise(f)
	w.flow = nil
}

// next returns the waiter whose turn it is, or nil. It changes nothing.
//
// What was guaranteed goes first: flows below their reservation, then bands
// below their share. Then the order is strict, and the search ends at the
// first band that may not fill the pool further, even if nothing waits in it:
// what is held back for a band is not for lower ones. A guarantee is held back
// only with the highest band, since a ceiling would make nothing of it.
func (q *queues) next(ceiling func(b *band) bool) *waiter {
	if q.queued == 0 || !ceiling(q.bands[0]) {
		return nil
	}
	if w := q.guaranteed(); w != nil {
		return w
	}
	for i, b := range q.bands {
		if i > 0 && !ceiling(b) {
			return nil
		}
		if b.queued > 0 {
			return b.next()
		}
	}
	return nil
}

func (b *band) next() *waiter { return b.fairness.next(&b.backlog).head() }

// each calls do for every waiter, which may remove the one that it is given.
func (q *queues) each(do func(*waiter)) {
	for _, w := range slices.Clone(q.aside) {
		do(w)
	}
	for _, b := range q.bands {
		for _, f := range slices.Clone(b.backlog.flows) {
			for _, w := range slices.Clone(f.waiting) {
				do(w)
			}
		}
	}
}

// ahead estimates how many go before a newcomer to the flow.
func (q *queues) ahead(b *band, f *flow) int { return q.aheadOf(b, f, f.queued()) }

// aheadOf estimates how many go before a request of the flow that has so many
// of its own flow before it: all of the higher bands, and of its own band what
// the others are served meanwhile, which is one for each weight of theirs where
// flows share by weight, and one for each flow elsewhere.
func (q *queues) aheadOf(b *band, f *flow, own int) int {
	n := own
	for _, higher := range q.bands {
		if higher.priority <= b.priority {
			break
		}
		n += higher.queued
	}
	others, mine := float64(b.backlog.Len()), 1.0
	if b.cfg.Fairness.Policy == VirtualTokenCounter {
		others, mine = float64(b.weight), float64(f.weight)
	}
	if f.backlog >= 0 {
		others -= mine
	}
	turns := math.Ceil(float64(own+1) * others / mine)
	waiting := b.queued - f.queued()
	if b.cfg.Fairness.Policy == GlobalStrict {
		return n + waiting
	}
	return n + int(min(float64(waiting), turns))
}

// began books a dispatch: what the request is expected to take. One that waited
// is still queued.
func (q *queues) began(c *charge, r *Request, s service, now time.Time) {
	b, f := c.band, c.flow
	c.weight, c.cost, c.tokens = f.weight, s.cost(q.cfg.OutputCost), max(s.input+s.output, 1)
	if f.backlog < 0 {
		b.arrives(f, now)
	}
	b.fairness.charge(f, c, now)
	f.live[c] = struct{}{}
	f.held += c.tokens
	if b.cfg.sessions() && r.Session != "" && r.Turn == 0 {
		c.session = q.sessions.began(r.Session, !r.QueuedAt.IsZero(), b.cfg.Fairness.TurnInactivity, now)
	}
	b.changed(f)
	q.share(c)
	q.promise(f)
}

// ended replaces what was booked by what was taken.
func (q *queues) ended(c *charge, s service, now time.Time) {
	b, f := c.band, c.flow
	if _, live := f.live[c]; !live {
		return
	}
	delete(f.live, c)
	f.held -= c.tokens
	if c.session != nil {
		c.session.ended(now)
	}
	if c.program != nil {
		c.program.ended(now)
	}
	b.fairness.correct(c, s, now)
	b.changed(f)
	q.reshare(c, s.cost(q.cfg.OutputCost))
	q.promise(f)
}
