package main

import "testing"

// The aims for traces of real requests, at the speed at which they came.
func TestHitsComeNearToOneSharedCache(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"conversation", "synthetic"} {
		for _, at := range []size{{8, 4000}, {16, 500}} {
			t.Run(name+" "+at.String(), func(t *testing.T) {
				t.Parallel()
				tr := mooncake(t, name)
				f := run(t, setup{workload: tr, engines: fleetOf(at.endpoints, standard(at.blocks)), policy: ours()}).figures()
				shared := inOrder(tr, 1, at.endpoints*at.blocks)
				if f.hits < .98*shared {
					t.Errorf("%.2f %% of the blocks hit, with one shared cache %.2f %% would", 100*f.hits, 100*shared)
				}
				// A miss costs an engine's time; hits say nothing of long prompts and
				// short ones. The bound is what round-robin computes over what one
				// shared cache would.
				plain := run(t, setup{workload: tr, engines: fleetOf(at.endpoints, standard(at.blocks)), policy: roundRobin()}).figures()
				bound := (1 - inOrder(tr, at.endpoints, at.blocks)) / (1 - shared)
				if saved := prefillWork(plain, f); saved < .9*bound {
					t.Errorf("round-robin computes %.2fx as many prompt tokens, the bound is %.2fx", saved, bound)
				}
				if f.whole > 1.2 {
					t.Errorf("over the whole run one engine computed %.2fx of the mean", f.whole)
				}
			})
		}
	}
}

// The aims for coding agents, as many as bring the best policy to 70 % of what
// it can do (docs/scheduling.md has the sweep).
func TestAgentsFindWhatTheirSessionsLeft(t *testing.T) {
	t.Parallel()
	v, err := measureAgents(t.Context(), bubbles{t}, size{8, 4000}, []int{56}, []policy{roundRobin(), ours()})
	if err != nil {
		t.Fatal(err)
	}
	got, plain := v.find("ours", 56), v.find("round-robin", 56)
	if got.hits < .973*got.ceiling {
		t.Errorf("%.1f %% of the blocks hit of %.1f %% that can", 100*got.hits, 100*got.ceiling)
	}
	if got.ttft > plain.ttft*15/100 {
		t.Errorf("TTFT p50 is %v, under round-robin %v", got.ttft, plain.ttft)
	}
	if got.turns < 2.4*plain.turns {
		t.Errorf("%.2f turns a second, under round-robin %.2f", got.turns, plain.turns)
	}
}

// Three pools in which sessions of agents are moved or crowded if the price of a
// place is wrong.
func TestAgentsMakeAsManyTurnsAsUnderLLMD(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		size   size
		agents int
	}{{size{8, 4000}, 32}, {size{8, 1500}, 24}, {size{16, 1000}, 32}} {
		t.Run(tt.size.String(), func(t *testing.T) {
			t.Parallel()
			v, err := measureAgents(t.Context(), bubbles{t}, tt.size, []int{tt.agents}, []policy{llmd(), ours()})
			if err != nil {
				t.Fatal(err)
			}
			got, other := v.find("ours", tt.agents), v.find("llm-d", tt.agents)
			if got.turns < .95*other.turns {
				t.Errorf("%.2f turns a second, under llm-d %.2f", got.turns, other.turns)
			}
			if got.tail > other.tail*105/100 {
				t.Errorf("TTFT p95 is %v, under llm-d %v", got.tail, other.tail)
			}
		})
	}
}
