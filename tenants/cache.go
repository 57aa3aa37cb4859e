package tenants

import (
	"crypto/sha256"
	"sync"
	"sync/atomic"
	"time"
)

// digest is how the cache knows a secret. The secret itself is never kept.
type digest [sha256.Size]byte

// entry is what a look-up found. Everything but the note of its use is
// immutable.
type entry struct {
	found      *found
	loaded     time.Time // when the look-up began
	freshUntil time.Time
	epoch      uint64
	usedMinute atomic.Int64
}

// cache holds the answers of look-ups. Its epoch counts what was taken out of
// it: an answer that was being fetched while something was taken out may be
// what was taken out, and is not let in.
type cache struct {
	size, unknownSize int

	mu      sync.RWMutex
	epoch   uint64
	floor   uint64 // entries of an older epoch are not fresh
	known   map[digest]*entry
	byKey   map[KeyID]digest
	unknown map[digest]time.Time // secrets of no key -> until when to believe it
}

func newCache(size int) *cache {
	return &cache{
		size:        size,
		unknownSize: max(1, size/4), // apart, so that noise can't push out good keys
		known:       make(map[digest]*entry),
		byKey:       make(map[KeyID]digest),
		unknown:     make(map[digest]time.Time),
	}
}

// get returns what is known of a secret and whether that may be believed
// without asking. A nil entry that is fresh says: no such key.
func (c *cache) get(d digest, now time.Time) (e *entry, fresh bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e, ok := c.known[d]; ok {
		return e, e.epoch >= c.floor && now.Before(e.freshUntil)
	}
	until, ok := c.unknown[d]
	return nil, ok && now.Before(until)
}

// begin returns the epoch in which a look-up begins.
func (c *cache) begin() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.epoch
}

// put stores a look-up's entry, and reports false and stores nothing if
// anything was taken out since the look-up began.
func (c *cache) put(d digest, e *entry) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.epoch != c.epoch {
		return false
	}
	if _, there := c.known[d]; !there && len(c.known) >= c.size {
		c.evict()
	}
	c.known[d] = e
	c.byKey[e.found.principal.Key] = d
	return true
}

// putUnknown remembers that no key has this secret. A key that is created later
// has another, so no change can make this untrue. A key that was there is gone.
func (c *cache) putUnknown(d digest, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(d)
	if len(c.unknown) >= c.unknownSize {
		for victim := range c.unknown {
			delete(c.unknown, victim)
			break
		}
	}
	c.unknown[d] = until
}

// evict removes the entry that was fetched longest ago among a few random ones:
// keys in use are fetched again every few seconds. Holds mu.
func (c *cache) evict() {
	const sample = 8
	var victim digest
	var oldest *entry
	n := 0
	for d, e := range c.known { // a map's iteration begins anywhere
		if oldest == nil || e.loaded.Before(oldest.loaded) {
			victim, oldest = d, e
		}
		if n++; n == sample {
			break
		}
	}
	c.remove(victim)
}

// remove holds mu.
func (c *cache) remove(d digest) {
	if e, ok := c.known[d]; ok {
		delete(c.byKey, e.found.principal.Key)
		delete(c.known, d)
	}
}

// dropKey forgets one key.
func (c *cache) dropKey(id KeyID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	if d, ok := c.byKey[id]; ok {
		c.remove(d)
	}
}

// dropIf forgets all keys whose principal matches.
func (c *cache) dropIf(match func(*Principal) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	for d, e := range c.known {
		if match(e.found.principal) {
			c.remove(d)
		}
	}
}

// distrustAll makes every entry be fetched again before it is believed. Unlike
// a drop it keeps them for the time in which Postgres can't be asked.
func (c *cache) distrustAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	c.floor = c.epoch
}

// holds reports whether the principal is the one that the cache has now.
func (c *cache) holds(p *Principal) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	d, ok := c.byKey[p.Key]
	return ok && c.known[d].found.principal == p
}
