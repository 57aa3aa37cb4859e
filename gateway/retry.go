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

// elsewhere reports whether the pool may have an endpoint that the exchange has
// not been at. Where endpoints are found, or named by a remote scheduler, only
// the next lease tells.
func (x *exchange) elsewhere() bool {
	p := x.pool
	return p.Discovery != nil || len(p.Endpoints) == 0 || slices.ContainsFunc(p.Endpoints, func(e catalogue.Endpoint) bool {
		return !slices.Contains(x.exclude, e.ID)
	})
}

// usable are the lease's targets at which the exchange has not been, and that
// are as isolated as the plan wants. A scheduler avoids those where it has been,
// but takes one where no other has room; of isolation it knows nothing.
func (x *exchange) usable(l scheduler.Lease) []scheduler.Target {
	isolated := x.call.Principal.Plan.Isolation != ""
	if len(x.exclude) == 0 && !isolated {
		return l.Targets()
	}
	var left []scheduler.Target
	for _, t := range l.Targets() {
		if !slices.Contains(x.exclude, t.Endpoint) && (!isolated || x.g.isolates(x.pool, t, x.call.Operation)) {
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
