package scheduler

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// naiveIndex is what prefixIndex promises, in the plainest form: for each
// endpoint the blocks that it has, the newest first.
type naiveIndex struct {
	capacity []int
	have     [][]uint64
}

func (n *naiveIndex) match(endpoint int, chain []uint64) int {
	for i, block := range chain {
		if !slices.Contains(n.have[endpoint], block) {
			return i
		}
	}
	return len(chain)
}

func (n *naiveIndex) use(endpoint int, chain []uint64) {
	chain = chain[:min(len(chain), n.capacity[endpoint])]
	old := slices.DeleteFunc(n.have[endpoint], func(block uint64) bool { return slices.Contains(chain, block) })
	n.have[endpoint] = append(slices.Clone(chain), old...)
	n.have[endpoint] = n.have[endpoint][:min(len(n.have[endpoint]), n.capacity[endpoint])]
}

// contents lists what an endpoint has, the newest first.
func contents(x *prefixIndex, s *shelf) (blocks []uint64) {
	for i := s.newest; i != 0; i = x.at(i).older {
		blocks = append(blocks, x.at(i).hash)
	}
	return blocks
}

// tree draws a chain of a small tree of prompts, so that prompts share
// beginnings. A block's hash says which way leads to it.
func tree(t *rapid.T) []uint64 {
	ways := rapid.SliceOfN(rapid.Uint64Range(1, 3), 1, 12).Draw(t, "prompt")
	chain, hash := make([]uint64, len(ways)), uint64(0)
	for i, way := range ways {
		hash = hash*4 + way
		chain[i] = hash * 0x9e3779b97f4a7c15 // spread over the tables, as real hashes are
	}
	return chain
}

func TestPrefixIndexIsWhatTheNaiveOneIs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const endpoints = 5
		var x prefixIndex
		naive := naiveIndex{have: make([][]uint64, endpoints)}
		shelves := make([]*shelf, endpoints)
		for i := range shelves {
			capacity := rapid.IntRange(1, 30).Draw(t, "capacity")
			shelves[i] = &shelf{}
			x.join(shelves[i])
			x.resize(shelves[i], capacity)
			naive.capacity = append(naive.capacity, capacity)
		}
		at := rapid.IntRange(0, endpoints-1)
		t.Repeat(map[string]func(*rapid.T){
			"use": func(t *rapid.T) {
				chain, i := tree(t), at.Draw(t, "endpoint")
				x.search(chain)
				x.use(shelves[i], chain)
				naive.use(i, chain)
			},
			"use and undo": func(t *rapid.T) {
				chain, i := tree(t), at.Draw(t, "endpoint")
				if len(naive.have[i])+len(chain) > naive.capacity[i] {
					return // what had to go for it doesn't come back
				}
				x.search(chain)
				had := x.have(shelves[i])
				x.use(shelves[i], chain)
				naive.use(i, chain)
				x.undo(shelves[i], chain, had, x.clock)
				naive.have[i] = slices.DeleteFunc(naive.have[i], func(b uint64) bool { return slices.Contains(chain[had:], b) })
			},
			"resize": func(t *rapid.T) {
				i := at.Draw(t, "endpoint")
				naive.capacity[i] = rapid.IntRange(1, 30).Draw(t, "capacity")
				naive.have[i] = naive.have[i][:min(len(naive.have[i]), naive.capacity[i])]
				x.resize(shelves[i], naive.capacity[i])
			},
			"restart": func(t *rapid.T) {
				i := at.Draw(t, "endpoint")
				if rapid.Bool().Draw(t, "elsewhere") {
					x.leave(shelves[i])
					x.join(shelves[i])
				} else {
					x.lost(shelves[i], x.clock)
				}
				naive.have[i] = nil
			},
			"": func(t *rapid.T) {
				chain := tree(t)
				most, best := x.search(chain), 0
				for i, s := range shelves {
					want := naive.match(i, chain)
					if got := x.have(s); got != want {
						t.Fatalf("endpoint %d has %d blocks of %v, want %d", i, got, chain, want)
					}
					best = max(best, want)
					if got := contents(&x, s); !slices.Equal(got, naive.have[i]) {
						t.Fatalf("endpoint %d has %v, want %v", i, got, naive.have[i])
					}
				}
				if err := x.audit(); err != nil {
					t.Fatal(err)
				}
				if most != best {
					t.Fatalf("the most is %d, want %d", most, best)
				}
			},
		})
		for _, s := range shelves {
			x.leave(s)
		}
		for i := range x.blocks {
			if x.blocks[i].used != 0 {
				t.Fatal("blocks are left when all endpoints have gone")
			}
		}
	})
}
