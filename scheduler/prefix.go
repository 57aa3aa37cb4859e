package scheduler

import (
	"cmp"
	"encoding/binary"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// chain is what is known of a prompt without reading it again: a hash for each
// of its full blocks that covers all before it, so that two prompts with equal
// hashes at one place have that much in common. A block that isn't full is
// left out, since engines cache none.
type chain struct {
	hashes []uint64
	bytes  int // of the whole prompt
	block  int // bytes of a block
}

// hasher makes chains. It is read without the scheduler's mutex: hashing a
// long prompt takes longer than all the rest of a decision. Its settings are
// replaced, never changed.
type hasher struct {
	block  int // bytes; 0: prefixes are of no interest
	blocks int // hashed at most
	pool   *sync.Pool
}

// minBlockTokens is the least that a block covers, as in llm-d: engines' own
// blocks are often smaller, and the index would be as much larger.
const minBlockTokens = 64

func newHasher(p PrefixCache, blockTokens int, pool *sync.Pool) *hasher {
	if p.Disabled {
		return &hasher{}
	}
	return &hasher{block: blockTokens * p.BytesPerToken, blocks: max(p.MaxTokens/blockTokens, 1), pool: pool}
}

func (p PrefixCache) withDefaults() PrefixCache {
	p.BytesPerToken = cmp.Or(max(p.BytesPerToken, 0), 4)
	p.MaxTokens = cmp.Or(max(p.MaxTokens, 0), 131_072)
	p.EndpointBlocks = cmp.Or(max(p.EndpointBlocks, 0), 31_250)
	return p
}

// chain hashes a prompt. The seed is the model and the cache salt, of which
// the engine makes its own: prompts of two tenants never have a hash in common.
// Give the chain back with free.
func (h *hasher) chain(r *Request) *chain {
	if h.block == 0 || len(r.Prompt) == 0 {
		return nil
	}
	c, ok := h.pool.Get().(*chain)
	if !ok {
		c = &chain{}
	}
	c.hashes, c.bytes, c.block = c.hashes[:0], 0, h.block
	var pair [16]byte // the block's own hash, and that of all before it
	before := seed(r)
	link := func(block uint64) {
		binary.LittleEndian.PutUint64(pair[:8], block)
		binary.LittleEndian.PutUint64(pair[8:], before)
		before = xxhash.Sum64(pair[:])
		c.hashes = append(c.hashes, before)
	}
	var split xxhash.Digest // of a block that lies in several segments
	held := 0               // bytes of it so far
	for _, segment := range r.Prompt {
		c.bytes += len(segment)
		for len(c.hashes) < h.blocks && held+len(segment) >= h.block {
			n := h.block - held
			if held == 0 {
				link(xxhash.Sum64(segment[:n]))
			} else {
				_, _ = split.Write(segment[:n]) // never fails
				link(split.Sum64())
			}
			segment, held = segment[n:], 0
		}
		if len(segment) > 0 && len(c.hashes) < h.blocks {
			if held == 0 {
				split.Reset()
			}
			_, _ = split.Write(segment)
			held += len(segment)
		}
	}
	return c
}

// seed keeps model and salt apart, so that no two pairs of them agree.
func seed(r *Request) uint64 {
	var pair [16]byte
	binary.LittleEndian.PutUint64(pair[:8], xxhash.Sum64String(r.Model))
	binary.LittleEndian.PutUint64(pair[8:], xxhash.Sum64String(r.CacheSalt))
	return xxhash.Sum64(pair[:])
}

// free lets the next prompt use the chain's memory.
func (f *fleet) free(c *chain) {
	if c != nil {
		f.chains.Put(c)
	}
}

// part is how much of the prompt the first n blocks are, from 0 to 1.
func (c *chain) part(n int) float64 {
	return min(float64(n*c.block)/float64(max(c.bytes, 1)), 1)
}
