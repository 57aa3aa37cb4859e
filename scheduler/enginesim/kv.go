package enginesim

import (
	"container/list"
	"encoding/binary"
	"slices"

	"github.com/cespare/xxhash/v2"
)

const blockSize = 16 // tokens

// hasher makes the hash of each full block of a token sequence. Each hash
// covers everything before it and the salt, so equal hashes mean equal prefixes
// of one salt. It is a value: a copy continues on its own.
type hasher struct {
	buf [8 * (blockSize + 1)]byte // hash of the block before, then this block's tokens
	n   int
}

func newHasher(salt string) hasher {
	var h hasher
	binary.LittleEndian.PutUint64(h.buf[:], xxhash.Sum64String(salt))
	return h
}

// add takes one token and appends a hash when it fills a block.
func (h *hasher) add(hashes []uint64, t token) []uint64 {
	h.n++
	binary.LittleEndian.PutUint64(h.buf[8*h.n:], uint64(t))
	if h.n < blockSize {
		return hashes
	}
	sum := xxhash.Sum64(h.buf[:])
	binary.LittleEndian.PutUint64(h.buf[:], sum)
	h.n = 0
	return append(hashes, sum)
}

// block is a full block whose content is known by its hash.
type block struct {
	hash uint64
	refs int           // sequences that use it
	idle *list.Element // place among the evictable ones; nil while used
}

// kvCache is the block memory of one server. A block is either private to a
// sequence (being filled), or known by its hash and shared. Known blocks that
// nobody uses stay until their room is needed, least recently used first.
type kvCache struct {
	capacity int
	private  int
	known    map[uint64]*block
	idle     *list.List // of *block, next victim first
	lower    []*tier    // what is evicted goes there, the quickest first
	log      *eventLog  // what is published of it; nil: nothing
}

func newKVCache(capacity int) *kvCache {
	return &kvCache{capacity: capacity, known: make(map[uint64]*block), idle: list.New()}
}

// inUse counts blocks that can't be evicted now.
func (c *kvCache) inUse() int { return c.private + len(c.known) - c.idle.Len() }

// acquire takes the longest known prefix of hashes.
func (c *kvCache) acquire(hashes []uint64) []*block {
	var got []*block
	for _, h := range hashes {
		b, ok := c.known[h]
		if !ok {
			break
		}
		c.use(b)
		got = append(got, b)
	}
	return got
}

func (c *kvCache) use(b *block) {
	b.refs++
	if b.idle != nil {
		c.idle.Remove(b.idle)
		b.idle = nil
	}
}

// grow takes n private blocks, evicting idle ones as needed; all or none.
func (c *kvCache) grow(n int) bool {
	if c.inUse()+n > c.capacity {
		return false
	}
	for c.private+len(c.known)+n > c.capacity {
		victim, _ := c.idle.Remove(c.idle.Front()).(*block) // the list holds nothing else
		delete(c.known, victim.hash)
		c.spill(0, victim.hash)
		c.log.removed(victim.hash, mediumGPU)
	}
	c.private += n
	return true
}

// publish turns one private block, now full, into a known one. When another
// sequence has made the same block meanwhile, that one is used and the private
// one is free again; fresh tells that it is not so.
func (c *kvCache) publish(hash uint64) (b *block, fresh bool) {
	c.private--
	b, ok := c.known[hash]
	if !ok {
		b = &block{hash: hash}
		c.known[hash] = b
	}
	c.use(b)
	return b, !ok
}

// release gives back a sequence's blocks. The end of a prefix becomes the first
// victim: a beginning is useful to more sequences.
func (c *kvCache) release(blocks []*block, private int) {
	c.private -= private
	for _, b := range slices.Backward(blocks) {
		if b.refs--; b.refs == 0 {
			b.idle = c.idle.PushBack(b)
		}
	}
}
