package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestCacheSizeIsWhatIsKnown(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		cfg      PrefixCache
		endpoint Endpoint
		load     Load
		block    int // tokens
		want     int // blocks
	}{
		{"nothing known", PrefixCache{}, Endpoint{}, Load{}, 64, 31_250},
		{"nothing known, but said", PrefixCache{EndpointBlocks: 100}, Endpoint{}, Load{}, 64, 100},
		{"the engine says", PrefixCache{}, Endpoint{}, Load{BlockSize: 16, Blocks: 10_000}, 64, 2500},
		{"the engine's blocks are larger", PrefixCache{}, Endpoint{}, Load{BlockSize: 256, Blocks: 10_000}, 256, 10_000},
		{"the operator knows better", PrefixCache{}, Endpoint{CacheBlocks: 800}, Load{BlockSize: 16, Blocks: 10_000}, 64, 200},
		{"blocks of a size that is set", PrefixCache{BlockTokens: 32}, Endpoint{}, Load{BlockSize: 16, Blocks: 10_000}, 32, 5000},
		{"more than is remembered", PrefixCache{}, Endpoint{}, Load{BlockSize: 64, Blocks: 1 << 30}, 64, maxEntries},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var f fleet
			cfg := Config{Profile: Profile{Prefix: tt.cfg}}.withDefaults()
			f.configure(&cfg)
			tt.endpoint.ID = "a"
			f.set([]Endpoint{tt.endpoint}, time.Now())
			f.loaded(f.byID["a"], tt.load)
			if got := f.byID["a"].cache.capacity; got != tt.want || f.blockTokens != tt.block {
				t.Errorf("%d blocks of %d tokens, want %d of %d", got, f.blockTokens, tt.want, tt.block)
			}
		})
	}
}

func TestRemovedEndpointIsForgotten(t *testing.T) {
	t.Parallel()
	r := rigged(t, Profile{}, candidate{has: 8}, candidate{has: 3})
	r.set([]Endpoint{{ID: "e1"}}, r.now)
	if most := r.prefix.search(r.request().chain.hashes); most != 3 {
		t.Errorf("%d blocks of the prompt are known, want the 3 of the endpoint that is left", most)
	}
	r.set([]Endpoint{{ID: "e0"}, {ID: "e1"}}, r.now)
	r.prefix.search(r.request().chain.hashes)
	if n := r.prefix.have(&r.byID["e0"].cache); n != 0 {
		t.Errorf("an endpoint that came back has %d blocks", n)
	}
	r.set(nil, r.now)
	for i := range r.prefix.blocks {
		if r.prefix.blocks[i].used != 0 {
			t.Fatal("blocks of nobody are remembered")
		}
	}
}

func TestSettingsThatLeaveBlocksAloneForgetNothing(t *testing.T) {
	t.Parallel()
	r := rigged(t, Profile{}, candidate{has: 8})
	again := func(p PrefixCache, bands ...BandConfig) int {
		cfg := Config{Profile: Profile{Prefix: p}, Bands: bands}.withDefaults()
		r.configure(&cfg)
		r.set([]Endpoint{{ID: "e0"}}, r.now)
		return r.prefix.search(r.request().chain.hashes)
	}
	if most := again(PrefixCache{BlockTokens: 64}, BandConfig{Priority: 7}); most != 8 {
		t.Errorf("%d blocks are known after a change of bands, want all 8", most)
	}
	if most := again(PrefixCache{BlockTokens: 32}); most != 0 {
		t.Errorf("%d blocks are known after a change of their size", most)
	}
}

// The caches of many endpoints are to hit as often as one of their total size
// would: nothing is kept twice without need, and what is evicted is old.
func TestCachesTogetherActLikeOne(t *testing.T) {
	t.Parallel()
	const endpoints, blocks, chats, requests = 8, 300, 300, 6000
	var f fleet
	cfg := Config{Profile: Profile{Prefix: PrefixCache{BlockTokens: 64}}}.withDefaults()
	f.configure(&cfg)
	var all []Endpoint
	for i := range endpoints {
		all = append(all, Endpoint{ID: fmt.Sprint(i), MaxConcurrency: 64, CacheBlocks: blocks})
	}
	f.set(all, time.Unix(1_000_000, 0))
	for _, p := range f.endpoints {
		p.health = Healthy
	}
	one := naiveIndex{capacity: []int{endpoints * blocks}, have: make([][]uint64, 1)}
	chance := rand.New(rand.NewPCG(1, 2))
	history := make([][]uint64, chats)
	together, shared, worked := 0, 0, make([]int, endpoints)
	for i := range requests {
		at := int(float64(chats) * chance.Float64() * chance.Float64()) // some are busier than others
		if len(history[at]) > 60 {
			history[at] = nil // a new one
		}
		for range 1 + chance.IntN(4) {
			history[at] = append(history[at], chance.Uint64())
		}
		chain := &chain{hashes: append([]uint64{1, 2}, history[at]...), block: 256} // all have a system prompt
		chain.bytes = len(chain.hashes) * chain.block
		shared += one.match(0, chain.hashes)
		one.use(0, chain.hashes)
		c, _ := f.pick(&Request{chain: chain, InputTokens: 64 * len(chain.hashes)}, time.Unix(1_000_000, int64(i)))
		p := c.endpoints[0]
		f.prefix.search(chain.hashes)
		have := f.prefix.have(&p.cache)
		f.prefix.use(&p.cache, chain.hashes)
		together += have
		worked[slices.Index(f.endpoints, p)] += len(chain.hashes) - have
	}
	if part := float64(together) / float64(shared); part < 0.98 {
		t.Errorf("caches apart hit %.1f %% of what one would", 100*part)
	}
	sum := 0
	for _, n := range worked {
		sum += n
	}
	if most := float64(slices.Max(worked)*endpoints) / float64(sum); most > 1.2 {
		t.Errorf("the most loaded endpoint computed %.2f of the mean: %v", most, worked)
	}
}
