package scheduler

import (
	"cmp"
	"container/heap"
	"time"
)

// maxIdleFlows is how many flows without a backlog or a lease a band remembers.
// The longest unused goes first. A forgotten flow returns as a new one: what it
// was served beyond the others is forgiven.
const maxIdleFlows = 4096

// band is one priority level: its flows, and whose turn it is among them.
type band struct {
	priority int
	cfg      BandConfig // complete
	fairness fairness

	flows   map[string]*flow
	idle    idleFlows
	backlog flowHeap // flows in which something waits
	weight  int      // of those, in sum
	queued  int
	aside   int // of its requests, who stand aside
	bytes   int64
	owed    float64 // tokens that the band's MinShare is behind, or ahead if negative

	ceiling float64 // how full the band may make the pool; as of the last look at it
	newest  *lease  // of those that can be evicted

	enqueued   Timing // what it took to queue a request
	evictions  uint64 // leases of lower bands that were told to end for this one
	dispatched uint64
	waited     time.Duration // in sum, by those dispatched
	refused    map[Reason]uint64
}

// flow returns the flow of a request, with the weight and the reservation that
// the request brings.
func (b *band) flow(r *Request) *flow {
	f := b.flows[r.Flow.FairnessID]
	if f == nil {
		f = newFlow(r.Flow.FairnessID, b)
		b.flows[f.id] = f
	}
	weight := max(r.Weight, 1)
	if f.backlog >= 0 {
		b.weight += weight - f.weight
	}
	f.weight, f.reserved = weight, r.Reserved
	b.rest(f)
	return f
}

// rest moves the flow to where it belongs: idle or not.
func (b *band) rest(f *flow) {
	if f.idle {
		b.idle.remove(f)
	}
	if f.busy() {
		return
	}
	b.idle.add(f)
	for b.idle.n > maxIdleFlows {
		oldest := b.idle.oldest
		b.idle.remove(oldest)
		delete(b.flows, oldest.id)
		oldest.program.leave(oldest)
	}
}

// changed puts the flow where it belongs after something came into its queue,
// left it, or changed its account.
func (b *band) changed(f *flow) {
	waits, counted := f.queued() > 0, f.backlog >= 0
	switch {
	case waits && counted:
		heap.Fix(&b.backlog, f.backlog)
	case waits:
		b.weight += f.weight
		heap.Push(&b.backlog, f)
	case counted:
		b.weight -= f.weight
		heap.Remove(&b.backlog, f.backlog)
	}
	b.fairness.follow(f)
	b.rest(f)
}

// arrives tells the policy of a flow that has no backlog yet.
func (b *band) arrives(f *flow, now time.Time) {
	var first *flow
	if len(b.backlog.flows) > 0 {
		first = b.backlog.flows[0]
	}
	b.fairness.arrives(f, first, now)
}

// The defaults of a band, which are llm-d's.
const (
	defaultBandBytes  = 1_000_000_000
	defaultInactivity = 120 * time.Second
	defaultHalfLife   = 60 * time.Second
)

// band returns the complete policies of a priority: its own, or the default's
// for its sign, with what they leave open.
func (c *Config) band(priority int) BandConfig {
	b := c.DefaultBand
	if priority < 0 && c.DefaultNegativeBand != nil {
		b = *c.DefaultNegativeBand
	}
	for i := range c.Bands {
		if c.Bands[i].Priority == priority {
			b = c.Bands[i]
		}
	}
	b.Priority = priority
	b.MaxQueued = cmp.Or(b.MaxQueued, c.MaxBandQueued)
	b.MaxBytes = cmp.Or(b.MaxBytes, defaultBandBytes)
	b.MaxFlowQueued = cmp.Or(b.MaxFlowQueued, c.MaxFlowQueued)
	b.TTL = cmp.Or(b.TTL, c.TTL)
	b.Ordering = cmp.Or(b.Ordering, FirstCome)
	b.Fairness = b.Fairness.withDefaults()
	return b
}

func (f Fairness) withDefaults() Fairness {
	f.Policy = cmp.Or(f.Policy, VirtualTokenCounter)
	f.ServiceWeight = cmp.Or(f.ServiceWeight, 0.8)
	f.HeadWaitWeight = cmp.Or(f.HeadWaitWeight, 0.2)
	f.HalfLife = cmp.Or(f.HalfLife, defaultHalfLife)
	f.TurnTimeWeight = cmp.Or(f.TurnTimeWeight, 0.5)
	f.TurnInactivity = cmp.Or(f.TurnInactivity, defaultInactivity)
	return f
}

// sessions reports whether sessions take turns inside a flow of the band.
func (b *BandConfig) sessions() bool {
	return b.Fairness.Policy == VirtualTokenCounter && !b.Fairness.IgnoreTurns
}

// ttl is the limit in the queue of a request that brings one of its own, which
// only shortens the band's. Zero is none.
func (b *BandConfig) ttl(own time.Duration) time.Duration {
	limit := max(b.TTL, 0)
	if own > 0 && (limit == 0 || own < limit) {
		limit = own
	}
	return limit
}
