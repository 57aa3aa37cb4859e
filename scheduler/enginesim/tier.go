package enginesim

import (
	"container/list"
	"time"
)

// tier is a memory below the accelerator's own: what is evicted from the one
// above goes into it, and the least recently used of it into the next. What is
// used again stays there too.
type tier struct {
	medium   string
	capacity int
	load     time.Duration // of a token
	order    *list.List    // of uint64, next victim first
	places   map[uint64]*list.Element
}

func newTier(medium string, capacity int, load time.Duration) *tier {
	return &tier{medium: medium, capacity: capacity, load: load, order: list.New(), places: map[uint64]*list.Element{}}
}

// What a token costs that is loaded from a lower tier.
const (
	hostLoad    = 5 * time.Microsecond
	storageLoad = 25 * time.Microsecond
)

// cache is that of a rank.
func (c Config) cache(rank int) *kvCache {
	kv := newKVCache(c.KVBlocks)
	if c.HostBlocks > 0 {
		kv.lower = append(kv.lower, newTier(mediumHost, c.HostBlocks, hostLoad))
	}
	if c.StorageBlocks > 0 {
		kv.lower = append(kv.lower, newTier(mediumStorage, c.StorageBlocks, storageLoad))
	}
	if c.KVEvents {
		kv.log = newEventLog(rank)
	}
	return kv
}

// spill takes a block that the tier above the i-th has evicted.
func (c *kvCache) spill(i int, hash uint64) {
	if i == len(c.lower) {
		return
	}
	t := c.lower[i]
	if at := t.places[hash]; at != nil {
		t.order.MoveToBack(at)
		return
	}
	t.places[hash] = t.order.PushBack(hash)
	c.log.copied(hash, t.medium)
	if t.order.Len() > t.capacity {
		victim, _ := t.order.Remove(t.order.Front()).(uint64) // the list holds nothing else
		delete(t.places, victim)
		c.spill(i+1, victim)
		c.log.removed(victim, t.medium)
	}
}

// lying counts blocks that lie in lower tiers.
type lying struct{ host, storage int }

func (l lying) blocks() int { return l.host + l.storage }

// below is how many of the first blocks lie in lower tiers, and how long it
// takes to load them.
func (c *kvCache) below(hashes []uint64) (n lying, takes time.Duration) {
	for _, h := range hashes {
		found := false
		for _, t := range c.lower {
			if at := t.places[h]; at != nil {
				t.order.MoveToBack(at)
				takes += blockSize * t.load
				found = true
				if t.medium == mediumHost {
					n.host++
				} else {
					n.storage++
				}
				break
			}
		}
		if !found {
			break
		}
	}
	return n, takes
}
