package scheduler

import (
	"testing"

	"pgregory.net/rapid"
)

// naiveShelf is what exactIndex promises of one endpoint, in the plainest form.
type naiveShelf map[uint64]*naiveBlock

type naiveBlock struct {
	parent uint64
	held   [tiers]int
}

func (n naiveShelf) store(c CacheChange) bool {
	b := n[c.Block]
	if b == nil {
		if c.Parent != 0 && n[c.Parent] == nil {
			return false
		}
		b = &naiveBlock{parent: c.Parent}
		n[c.Block] = b
	}
	b.held[c.Tier]++
	return true
}

func (n naiveShelf) remove(c CacheChange) {
	b := n[c.Block]
	if b == nil {
		return
	}
	b.held[c.Tier] = max(b.held[c.Tier]-1, 0)
	if b.held == [tiers]int{} {
		n.drop(c.Block)
	}
}

func (n naiveShelf) drop(block uint64) {
	delete(n, block)
	for next, b := range n {
		if b.parent == block {
			n.drop(next)
		}
	}
}

func (n naiveShelf) match(chain []uint64) int {
	for i, block := range chain {
		if n[block] == nil {
			return i
		}
	}
	return len(chain)
}

func TestExactIndexIsWhatTheNaiveOneIs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const endpoints = 4
		var x exactIndex
		naive, shelves := make([]naiveShelf, endpoints), make([]*exactShelf, endpoints)
		for i := range shelves {
			naive[i], shelves[i] = naiveShelf{}, x.join()
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, endpoints-1).Draw(t, "endpoint")
			chain := tree(t)
			tier := Tier(rapid.IntRange(0, int(tiers)-1).Draw(t, "tier"))
			from := rapid.IntRange(0, len(chain)-1).Draw(t, "from")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				naive[i], shelves[i] = naiveShelf{}, x.clear(shelves[i])
			case 1:
				x.leave(shelves[i])
				naive[i], shelves[i] = naiveShelf{}, x.join()
			case 2, 3, 4:
				for _, block := range chain[from:] {
					x.remove(shelves[i], CacheChange{Block: block, Tier: tier, Gone: true})
					naive[i].remove(CacheChange{Block: block, Tier: tier, Gone: true})
				}
			default:
				for j := from; j < len(chain); j++ {
					c := CacheChange{Block: chain[j], Tier: tier}
					if j > 0 {
						c.Parent = chain[j-1]
					}
					if got, want := x.store(shelves[i], c), naive[i].store(c); got != want {
						t.Fatalf("stored: %v, want %v", got, want)
					}
				}
			}
			x.sweep(rapid.IntRange(0, 9).Draw(t, "swept"))
			asked := tree(t)
			x.search(asked)
			size := 0
			for k, s := range shelves {
				if got, want := x.have(s), naive[k].match(asked); got != want {
					t.Fatalf("endpoint %d has %d blocks of %v, want %d", k, got, asked, want)
				}
				held := [tiers]int{}
				for _, b := range naive[k] {
					for tier, n := range b.held {
						held[tier] += min(n, 1)
					}
				}
				if s.size != len(naive[k]) || s.blocks != held {
					t.Fatalf("endpoint %d counts %d blocks, %v; want %d, %v", k, s.size, s.blocks, len(naive[k]), held)
				}
				size += s.size
			}
			for _, s := range x.dying {
				size += s.size
			}
			if x.size != size {
				t.Fatalf("%d entries in use, want %d", x.size, size)
			}
		}
		for _, s := range shelves {
			x.leave(s)
		}
		for x.sweep(7) {
		}
		if x.size != 0 || len(x.heads) != 0 {
			t.Fatalf("%d entries and %d blocks stay when all endpoints are gone", x.size, len(x.heads))
		}
	})
}

func TestALargeCacheIsForgottenInParts(t *testing.T) {
	t.Parallel()
	e := New(Config{Profile: Profile{Precise: PreciseCache{Enabled: true}}}, nil)
	t.Cleanup(e.Close)
	e.SetEndpoints([]Endpoint{{ID: "a"}})
	const blocks = 10 * changesAtOnce
	r := CacheReport{BlockTokens: 16, Clear: true}
	for i := range uint64(blocks) {
		r.Changes = append(r.Changes, CacheChange{Block: i + 1, Parent: i / 8 * 7})
	}
	e.CacheChanged("a", r)
	p, x := e.fleet.byID["a"], &e.fleet.exact
	had := p.cacheState().HBM
	e.fleet.report(p, CacheReport{BlockTokens: 16, Clear: true})
	if s := p.cacheState(); had < blocks/2 || s.HBM != 0 || s.Trust != Trusted || x.size != had {
		t.Fatalf("of %d blocks %+v are the endpoint's and %d are kept: it has none, and decisions don't wait for that", had, s, x.size)
	}
	if more := x.sweep(changesAtOnce); !more || x.size < had-changesAtOnce {
		t.Errorf("%d of %d blocks are kept after one part", x.size, had)
	}
	e.CacheMissed("a")
	if x.size != 0 || len(x.dying) != 0 {
		t.Errorf("%d blocks are kept in the end", x.size)
	}
}
