package main

import "testing"

// Thirty-four agents come back for more than two engines' caches hold. Those
// that are at work stay so, while the others wait until there is room.
func TestMoreSessionsThanCachesHoldDontDriveOutEachOther(t *testing.T) {
	t.Parallel()
	play := func(p policy) point {
		a := codingAgents(34, 1)
		return pointOf(a.n, *run(t, setup{workload: a, engines: fleetOf(2, standard(4000)), policy: p}), 2*a.begin, a.cease)
	}
	got, other := play(ours()), play(llmd())
	t.Logf("%.2f turns/s with %.1f %% hits, TTFT %v / %v; without waiting %.2f with %.1f %%, %v / %v",
		got.turns, 100*got.hits, got.ttft, got.tail, other.turns, 100*other.hits, other.ttft, other.tail)
	if got.turns < 1.5*other.turns {
		t.Errorf("%.2f turns a second, without waiting %.2f", got.turns, other.turns)
	}
	if got.hits > got.ceiling {
		t.Errorf("%.1f %% hits of %.1f %%", 100*got.hits, 100*got.ceiling)
	}
}
