package scheduler

import (
	"cmp"
	"encoding/binary"
	"time"

	"github.com/cespare/xxhash/v2"
)

// Tier is where an engine keeps a block of its prefix cache, the quickest first.
type Tier uint8

// The tiers.
const (
	TierHBM     Tier = iota // the accelerator's own memory
	TierHost                // the memory of its host
	TierStorage             // disks, local or of the network
	tiers
)

func (t Tier) String() string {
	switch t {
	case TierHBM:
		return "hbm"
	case TierHost:
		return "host"
	default:
		return "storage"
	}
}

// CacheReport is what an endpoint's engine said of its prefix cache.
type CacheReport struct {
	Model       string // whose blocks these are, by its name at the engine
	BlockTokens int    // tokens of a block
	// Clear says that the cache was empty before the changes, so that the
	// changes are all there is.
	Clear   bool
	Changes []CacheChange
}

// CacheChange is a block that came into a tier of the cache, or left it. A block
// that came twice has to leave twice: engines compute the same block for two
// requests at once, and keep both.
type CacheChange struct {
	Block  uint64 // see BlockHash
	Parent uint64 // of one that came: the block before it; 0: none
	Tier   Tier
	Gone   bool
	All    bool // of one that left: every copy of it
}

// BlockHash names a block by its tokens and all before it: parent is the name
// of the block before, 0 for the first, and extra says what else the engine
// makes its own hash of, 0 for nothing. It is never 0, and nothing can be read
// out of it.
func BlockHash(parent uint64, tokens []uint64, extra uint64) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(extra)
	var b [512]byte
	n := binary.PutUvarint(b[:], parent)
	for _, t := range tokens {
		if n+binary.MaxVarintLen64 > len(b) {
			_, _ = d.Write(b[:n]) // never fails
			n = 0
		}
		n += binary.PutUvarint(b[n:], t)
	}
	_, _ = d.Write(b[:n])
	return cmp.Or(d.Sum64(), 1)
}

// ExtraHash is BlockHash's extra for what an engine names by texts, such as a
// cache salt; 0 for none.
func ExtraHash(keys ...string) uint64 {
	if len(keys) == 0 {
		return 0
	}
	var d xxhash.Digest
	d.Reset()
	var b [8]byte
	for _, k := range keys {
		binary.LittleEndian.PutUint64(b[:], xxhash.Sum64String(k))
		_, _ = d.Write(b[:])
	}
	return cmp.Or(d.Sum64(), 1)
}

// PreciseCache has endpoints' prefix caches followed by what the engines report
// of them, for requests whose Tokens are known. Zero fields take the default
// that is named with them.
type PreciseCache struct {
	Enabled     bool
	BlockTokens int // of the engines' blocks (16); an endpoint with others is taken as if it reported nothing
	// What a token costs that is loaded from a tier, and one that is computed
	// (5 us, 25 us; 63 us: 15,928 tokens a second).
	HostLoad, StorageLoad, Prefill time.Duration
	// Speculative is for how long a prompt counts as cached where it was sent,
	// before the engine says so; 0: not at all.
	Speculative time.Duration
	// TokenTimeout is how long who sends a request may take to find out its
	// Tokens; 0: they aren't.
	TokenTimeout time.Duration
}

func (c PreciseCache) withDefaults() PreciseCache {
	c.BlockTokens = cmp.Or(max(c.BlockTokens, 0), 16)
	c.HostLoad = cmp.Or(max(c.HostLoad, 0), 5*time.Microsecond)
	c.StorageLoad = cmp.Or(max(c.StorageLoad, 0), 25*time.Microsecond)
	c.Prefill = cmp.Or(max(c.Prefill, 0), 63*time.Microsecond)
	return c
}

// worth is what a cached token of each tier saves, computing it being 1.
func (c PreciseCache) worth() (w [tiers]float64) {
	for t, load := range [tiers]time.Duration{TierHost: c.HostLoad, TierStorage: c.StorageLoad} {
		w[t] = max(1-load.Seconds()/c.Prefill.Seconds(), 0)
	}
	return w
}

// TokenChain is a prompt by its tokens: BlockHash of each full block of them.
// The tokens can't be read out of it.
type TokenChain struct {
	blocks []uint64
	tokens int // of the whole prompt
	size   int // tokens of a block
}

// Chain makes a prompt's TokenChain for a pool that follows its endpoints'
// caches so.
func (c PreciseCache) Chain(tokens []uint64, salt string) *TokenChain {
	size := c.withDefaults().BlockTokens
	chain := &TokenChain{blocks: make([]uint64, 0, len(tokens)/size), tokens: len(tokens), size: size}
	var extra, parent uint64
	if salt != "" {
		extra = ExtraHash(salt)
	}
	for ; len(tokens) >= size; tokens = tokens[size:] {
		parent = BlockHash(parent, tokens[:size], extra)
		chain.blocks = append(chain.blocks, parent)
		extra = 0 // engines put the salt into the first block alone
	}
	return chain
}

// Blocks is how many full blocks the prompt has.
func (c *TokenChain) Blocks() int { return len(c.blocks) }
