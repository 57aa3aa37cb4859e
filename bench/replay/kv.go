package main

import (
	"container/list"
	"slices"
)

// kvCache is the KV memory of an engine, as vLLM keeps it: a block is held by
// requests or free; a free one keeps its content until it is needed, and the
// one that has been free longest goes first. A request that ends gives its
// blocks back from the last to the first, so that the ends of prompts go
// before their beginnings.
type kvCache struct {
	capacity int // blocks; 0: no bound
	held     int // blocks that requests hold
	known    map[uint64]*block
	free     *list.List      // of *block, the longest free first
	gone     func(id uint64) // told of what is evicted; may be nil
}

// block is one with known content.
type block struct {
	id      uint64
	holders int
	place   *list.Element // in free, when nobody holds it
}

func newKV(capacity int) *kvCache {
	return &kvCache{capacity: capacity, known: map[uint64]*block{}, free: list.New()}
}

// match returns how many of the first blocks are there.
func (c *kvCache) match(ids []uint64) int {
	for i, id := range ids {
		if c.known[id] == nil {
			return i
		}
	}
	return len(ids)
}

// usage is the part of the memory that requests hold.
func (c *kvCache) usage() float64 {
	if c.capacity == 0 {
		return 0
	}
	return float64(c.held) / float64(c.capacity)
}

// holding is the blocks that one request holds.
type holding struct {
	named []*block // of the prompt, from its beginning
	blank int      // without known content
}

// acquire holds the cached ones of ids and so many blank blocks beside them.
// When memory is short it holds nothing and reports false; a request larger
// than all memory gets all of it.
func (c *kvCache) acquire(ids []uint64, blank int) (h holding, ok bool) {
	hits := c.match(ids)
	if c.capacity > 0 {
		blank = min(blank, c.capacity-hits)
		fresh := blank
		for _, id := range ids[:hits] {
			if c.known[id].holders == 0 {
				fresh++
			}
		}
		if c.held+fresh > c.capacity {
			return h, false
		}
	}
	for _, id := range ids[:hits] {
		b := c.known[id]
		c.hold(b)
		h.named = append(h.named, b)
	}
	c.held += blank
	h.blank = blank
	c.evict()
	return h, true
}

func (c *kvCache) hold(b *block) {
	if b.holders == 0 {
		if b.place != nil {
			c.free.Remove(b.place)
			b.place = nil
		}
		c.held++
	}
	b.holders++
}

// evict forgets the longest free blocks beyond the capacity.
func (c *kvCache) evict() {
	for c.capacity > 0 && c.held+c.free.Len() > c.capacity {
		b := c.free.Remove(c.free.Front()).(*block)
		delete(c.known, b.id)
		if c.gone != nil {
			c.gone(b.id)
		}
	}
}

// fill names a blank block of the holding: its content was computed. Another
// request may have computed the same meanwhile: then it stays blank, as the
// second copy in vLLM is not found by anyone. It reports whether it was named.
func (c *kvCache) fill(h *holding, id uint64) bool {
	if h.blank == 0 || c.known[id] != nil {
		return false
	}
	b := &block{id: id, holders: 1}
	c.known[id] = b
	h.named = append(h.named, b)
	h.blank--
	return true
}

// release gives a holding back.
func (c *kvCache) release(h *holding) {
	for _, b := range slices.Backward(h.named) {
		if b.holders--; b.holders == 0 {
			c.held--
			b.place = c.free.PushBack(b)
		}
	}
	c.held -= h.blank
	*h = holding{}
}
