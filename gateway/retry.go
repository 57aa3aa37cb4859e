package gateway

import (
	"context"
	"slices"
	"sync"

	"weir/gateway/catalogue"
	"weir/scheduler"
)

// This file is the rule of retries. A failed attempt may be followed by one
// more, as long as the caller has seen no byte, within the pool's budget, and
// at an endpoint that the exchange has not been at: one that has just failed
// would fail again, and a request that broke an engine must not meet it twice.
// Where two endpoints share the work, it is the pair that is not tried again.
// An evicted request may go back, since the endpoint did nothing wrong, and
// that takes nothing of the budget. The one
// other way to the same endpoint is not a retry: upstream.Client resends what the
// engine provably never read.

const (
	maxAttempts = 2
	retryCost   = 10             // completed exchanges that earn one retry
	retryFloor  = 3 * retryCost  // what a pool has before it completed any
	retryCap    = 50 * retryCost // what a pool can save up
)

// mayRetry decides on another attempt after one that failed.
func (x *exchange) mayRetry(ctx context.Context) bool {
	return x.failed.Cause.Effect().Retryable && x.attempts < maxAttempts && !x.suspect &&
		ctx.Err() == nil && !x.out.started() && x.elsewhere() && (x.ours() || x.g.retries.spend(x.pool.Name))
}

// ours reports whether the attempt failed for a reason of our own: the
// scheduler took its place back. The budget is there for pools that fail. Such
// a retry says nothing of the pool and adds nothing to its load, since it takes
// its turn like any other request; maxAttempts bounds it.
func (x *exchange) ours() bool { return x.failed.Cause == Evicted }

// unspend gives back what a retry took of the budget that found no endpoint.
func (x *exchange) unspend() {
	if !x.ours() {
		x.g.retries.refund(x.pool.Name)
	}
}

// visit is where an attempt was sent.
type visit struct {
	endpoint string
	prefill  string // that was to compute the prompt; empty: the same one
	reached  bool   // it took the request, and told of a failure
}

func visitOf(t scheduler.Target) visit {
	v := visit{endpoint: t.Endpoint}
	if t.Prefill != nil {
		v.prefill = t.Prefill.Endpoint
	}
	return v
}

// same reports whether going to the target would be this visit once more. An
// endpoint that told of a failure while another one computed for it may be
// visited with a third, or alone: of the two it is the one that is known to live.
func (v visit) same(t scheduler.Target) bool {
	other := visitOf(t)
	return v.endpoint == other.endpoint && (!v.either() || v.prefill == other.prefill)
}

// either reports whether either of two endpoints may be at fault.
func (v visit) either() bool { return v.reached && v.prefill != "" }

// excluded are the endpoints that the next attempt had better not meet.
func (x *exchange) excluded() (all []string) {
	for _, v := range x.visits {
		all = append(all, v.endpoint)
		if v.either() {
			all = append(all, v.prefill)
		}
	}
	return all
}

// elsewhere reports whether the pool may have an endpoint that the exchange has
// not been at, or another pair of them. Where endpoints are found, or named by a remote scheduler, only
// the next lease tells.
func (x *exchange) elsewhere() bool {
	p := x.pool
	return p.Discovery != nil || len(p.Endpoints) == 0 || len(p.Scheduler.AllowedDestinations) > 0 || slices.ContainsFunc(x.visits, visit.either) ||
		slices.ContainsFunc(p.Endpoints, func(e catalogue.Endpoint) bool {
			return !slices.ContainsFunc(x.visits, func(v visit) bool { return v.endpoint == e.ID })
		})
}

// usable are the lease's targets at which the exchange has not been, and that
// are as isolated as the plan wants. A scheduler avoids those where it has been,
// but takes one where no other has room; of isolation it knows nothing.
func (x *exchange) usable(l scheduler.Lease) []scheduler.Target {
	isolated := x.call.Principal.Plan.Isolation != ""
	if len(x.visits) == 0 && !isolated {
		return l.Targets()
	}
	var left []scheduler.Target
	for _, t := range l.Targets() {
		again := slices.ContainsFunc(x.visits, func(v visit) bool { return v.same(t) })
		if !again && (!isolated || x.g.isolatesAll(x.pool, t, x.call.Operation)) {
			left = append(left, t)
		}
	}
	return left
}

// retryBudget bounds retries to a share of each pool's completed exchanges:
// when a pool fails as a whole, retries would double its load.
type retryBudget struct {
	mu    sync.Mutex
	pools map[string]int // saved; as many entries as the catalogue has pools
}

func newRetryBudget() *retryBudget { return &retryBudget{pools: make(map[string]int)} }

// earn counts a completed exchange.
func (b *retryBudget) earn(pool string) { b.save(pool, 1) }

// refund gives back a retry that found no endpoint.
func (b *retryBudget) refund(pool string) { b.save(pool, retryCost) }

func (b *retryBudget) save(pool string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pools[pool] = min(b.saved(pool)+n, retryCap)
}

// spend takes one retry, if the pool has one.
func (b *retryBudget) spend(pool string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := b.saved(pool) - retryCost
	if left < 0 {
		return false
	}
	b.pools[pool] = left
	return true
}

// saved holds mu.
func (b *retryBudget) saved(pool string) int {
	if n, ok := b.pools[pool]; ok {
		return n
	}
	return retryFloor
}
