package gateway

import "sync"

const (
	maxAttempts = 2
	retryCost   = 10             // completed exchanges that earn one retry
	retryFloor  = 3 * retryCost  // what a pool has before it completed any
	retryCap    = 50 * retryCost // what a pool can save up
)

// retryBudget bounds retries to a share of each pool's completed exchanges:
// when a pool fails as a whole, retries would double its load.
type retryBudget struct {
	mu    sync.Mutex
	pools map[string]int // saved; as many entries as the catalogue has pools
}

func newRetryBudget() *retryBudget { return &retryBudget{pools: make(map[string]int)} }

// earn counts a completed exchange.
func (b *retryBudget) earn(pool string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pools[pool] = min(b.saved(pool)+1, retryCap)
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
