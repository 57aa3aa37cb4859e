package main

import (
	"math/rand/v2"
	"testing"
	"time"

	"weir/scheduler"
)

// chats are conversations of eight turns, which come several times faster than
// four engines serve them: each prompt is the last one's and up to 2,500 tokens
// more.
func chats() trace {
	const conversations, turns = 500, 8
	rnd := rand.New(rand.NewPCG(3, 3))
	var all []*request
	for c := range uint64(conversations) {
		at := time.Duration(rnd.IntN(60_000)) * time.Millisecond
		var blocks []uint64
		for range turns {
			for range 1 + rnd.IntN(5) {
				blocks = append(blocks, c<<32|uint64(len(blocks)+1))
			}
			all = append(all, &request{
				at: at, input: len(blocks) * blockTokens, output: 50 + rnd.IntN(300), blocks: append([]uint64(nil), blocks...),
				class: "chat", tenant: "all",
			})
			at += time.Duration(rnd.ExpFloat64() * float64(10*time.Second))
		}
	}
	return numbered(all)
}

// A pool that is full sends each request where one has just ended, unless some
// endpoint may hold more for the sake of what it has cached.
func TestAFullPoolStillFindsPrefixes(t *testing.T) {
	t.Parallel()
	play := func(p policy) figures {
		return run(t, setup{workload: chats(), engines: limited(8, 16, standard(2000)), policy: p}).figures()
	}
	got := play(ours())
	cfg := scheduler.Config{MaxQueued: unlimited, MaxBandQueued: unlimited, MaxFlowQueued: unlimited, TTL: -1}
	cfg.Profile.Headroom = 1e-9
	strict := play(embedded("without headroom", cfg, 0))
	could := inOrder(chats(), 1, 8*2000)
	t.Logf("%.1f %% hit in %.0f tok/s, without headroom %.1f %% in %.0f tok/s; one shared cache %.1f %%", 100*got.hits, got.tokens, 100*strict.hits, strict.tokens, 100*could)
	if got.hits < .8*could {
		t.Errorf("%.1f %% of the blocks hit when the pool is full, with one shared cache %.1f %% would", 100*got.hits, 100*could)
	}
	if strict.hits > .8*could {
		t.Errorf("without headroom %.1f %% hit: this run would not show a collapse", 100*strict.hits)
	}
}
