package gateway

import (
	"sync"
	"time"
)

const (
	homeFor  = 10 * time.Minute // engines forget the prefix of a chain that rests sooner
	maxHomes = 50_000           // of a generation; there are two
)

// homes remembers which pool served each chain last, for homeFor after its last
// call at least and twice as long at most. It holds two generations: what is
// used goes into the young one, and when that is old or full, what has rested
// in the other is forgotten. The zero value is empty.
type homes struct {
	mu         sync.Mutex
	young, old map[uint64]string // by chain
	since      time.Time         // when young began
}

// of is the chain's pool; "" when none is remembered.
func (h *homes) of(chain uint64, now time.Time) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.age(now)
	if pool, ok := h.young[chain]; ok {
		return pool
	}
	return h.old[chain]
}

// put remembers a call of the chain.
func (h *homes) put(chain uint64, pool string, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.age(now)
	h.young[chain] = pool
}

// age holds mu.
func (h *homes) age(now time.Time) {
	rested := now.Sub(h.since)
	switch {
	case h.young == nil || rested >= 2*homeFor:
		h.old = nil
	case rested >= homeFor || len(h.young) >= maxHomes:
		h.old = h.young
	default:
		return
	}
	h.young, h.since = make(map[uint64]string), now
}
