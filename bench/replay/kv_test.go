package main

import (
	"testing"
	"time"
)

// heldBy computes a prompt at the cache and returns what holds it.
func heldBy(t *testing.T, c *kvCache, blank int, ids ...uint64) holding {
	t.Helper()
	hits := c.match(ids)
	h, ok := c.acquire(ids, len(ids)-hits+blank)
	if !ok {
		t.Fatalf("no memory for %v", ids)
	}
	for _, id := range ids[hits:] {
		c.fill(&h, id)
	}
	return h
}

func TestACacheForgetsAsVLLMDoes(t *testing.T) {
	t.Parallel()
	t.Run("the end of the oldest prompt first", func(t *testing.T) {
		t.Parallel()
		c := newKV(4)
		a := heldBy(t, c, 0, 1, 2)
		c.release(&a)
		b := heldBy(t, c, 0, 3, 4, 5)
		c.release(&b)
		if c.match([]uint64{1, 2}) != 1 || c.match([]uint64{3, 4, 5}) != 3 {
			t.Errorf("of the old prompt %d blocks are left, of the new one %d", c.match([]uint64{1, 2}), c.match([]uint64{3, 4, 5}))
		}
	})
	t.Run("nothing that a request holds", func(t *testing.T) {
		t.Parallel()
		c := newKV(4)
		a := heldBy(t, c, 1, 1, 2)
		if _, ok := c.acquire([]uint64{7, 8}, 2); ok {
			t.Error("memory was given twice")
		}
		if c.usage() != .75 {
			t.Errorf("usage is %v", c.usage())
		}
		c.release(&a)
		if _, ok := c.acquire([]uint64{7, 8}, 2); !ok || c.usage() != .5 {
			t.Errorf("usage is %v after the end", c.usage())
		}
	})
	t.Run("not what was used again", func(t *testing.T) {
		t.Parallel()
		c := newKV(3)
		for _, ids := range [][]uint64{{1}, {2}, {3}, {1}, {4}} {
			h := heldBy(t, c, 0, ids...)
			c.release(&h)
		}
		if c.match([]uint64{1}) != 1 || c.match([]uint64{2}) != 0 {
			t.Error("the block that was used last was forgotten before an older one")
		}
	})
	t.Run("a prompt larger than all memory gets all of it", func(t *testing.T) {
		t.Parallel()
		c := newKV(2)
		h, ok := c.acquire([]uint64{1, 2, 3}, 3)
		if !ok || h.blank != 2 {
			t.Fatalf("%v, %v", h, ok)
		}
		for _, id := range []uint64{1, 2, 3} {
			c.fill(&h, id)
		}
		c.release(&h)
		if c.match([]uint64{1, 2, 3}) != 2 {
			t.Errorf("%d blocks are there", c.match([]uint64{1, 2, 3}))
		}
	})
}

// The times of one engine by hand: 1,000 prompt tokens a second, 10 ms a step,
// 1 ms for each request that decodes.
func TestAnEngineTakesTheTimeThatTheModelSays(t *testing.T) {
	t.Parallel()
	m := model{prefill: 1000, step: 10 * time.Millisecond, perSeq: time.Millisecond, batched: 100, sequences: 2, blocks: 0}
	at := func(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }
	req := func(when, input, output int, blocks ...uint64) *request {
		return &request{at: at(when), input: input, output: output, blocks: blocks, class: "all", tenant: "t"}
	}
	type times struct{ first, over time.Duration }
	tests := []struct {
		name     string
		requests []*request
		want     []times
	}{
		{"a prompt in two chunks, then its tokens", []*request{req(0, 150, 3, 1)}, []times{
			{at(110 + 60), at(170 + 2*11)},
		}},
		{"a second prompt waits for the chunk under way and slows the first one's tokens", []*request{req(0, 50, 3, 1), req(61, 50, 1, 2)}, []times{
			{at(60), at(60 + 11 + 61)}, {at(60 + 11 + 61), at(60 + 11 + 61)},
		}},
		{"a third request waits for a place", []*request{req(0, 10, 2, 1), req(0, 10, 2, 2), req(0, 10, 1, 3)}, []times{
			{at(20), at(20 + 21)}, {at(41), at(41 + 21)}, {at(62), at(62)},
		}},
		{"what was computed before is found", []*request{req(0, 1024, 1, 1, 2), req(2000, 1025, 1, 1, 2, 3)}, []times{
			{at(10*10 + 1024 + 10), at(10*10 + 1024 + 10)}, {at(2000 + 11), at(2000 + 11)},
		}},
		{"a prompt that is found whole has its last token computed", []*request{req(0, 1024, 1, 1, 2), req(2000, 1024, 1, 1, 2)}, []times{
			{at(10*10 + 1024 + 10), at(10*10 + 1024 + 10)}, {at(2000 + 11), at(2000 + 11)},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := run(t, setup{workload: trace(numbered(tt.requests)), engines: fleetOf(1, m), policy: roundRobin()})
			if len(r.records) != len(tt.want) {
				t.Fatalf("%d of %d requests ended", len(r.records), len(tt.want))
			}
			for _, x := range r.records {
				if got := (times{x.first, x.over}); got != tt.want[x.id] {
					t.Errorf("request %d: first token %v, end %v, want %v", x.id, got.first, got.over, tt.want[x.id])
				}
			}
		})
	}
}

func TestARunCanBeRepeated(t *testing.T) {
	t.Parallel()
	for _, p := range []policy{roundRobin(), llmd(), ours()} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			var first []record
			for range 2 {
				a := codingAgents(12, 5)
				a.begin, a.cease = 10*time.Second, 90*time.Second
				r := run(t, setup{workload: a, engines: fleetOf(4, standard(1500)), policy: p})
				if first == nil {
					first = r.records
					continue
				}
				if len(r.records) != len(first) {
					t.Fatalf("%d requests, then %d", len(first), len(r.records))
				}
				for i, x := range r.records {
					y := first[i]
					if x.id != y.id || x.engine != y.engine || x.first != y.first || x.over != y.over || x.hits != y.hits {
						t.Fatalf("the %dth to end: request %d at engine %d after %v, then request %d at engine %d after %v", i, y.id, y.engine, y.over, x.id, x.engine, x.over)
					}
				}
			}
		})
	}
}

func TestAgentsAreThoseOfThePublishedRun(t *testing.T) {
	t.Parallel()
	a := codingAgents(publishedAgents, 1)
	r := run(t, setup{workload: a, engines: fleetOf(8, standard(0)), policy: greedy()})
	ceiling := r.attainable(2 * a.begin)
	full := r.between(2*a.begin, a.cease)
	tokens := 0
	for _, x := range full.records {
		tokens += x.input
	}
	if mean := tokens / len(full.records); mean < 138_000 || mean > 146_000 {
		t.Errorf("prompts have %d tokens in the mean", mean)
	}
	if ceiling < .929 || ceiling > .949 {
		t.Errorf("%.1f %% can be reused", 100*ceiling)
	}
}
