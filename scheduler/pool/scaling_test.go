package pool_test

import (
	"strings"
	"testing"
	"time"

	"weir/scheduler/pool"
)

func TestWantedReplicas(t *testing.T) {
	t.Parallel()
	settings := pool.Scaling{Min: 0, Max: 20, QueuedTokens: 1000, KVUsage: 0.8, TTFT: time.Second}
	signal := func(change func(g *pool.Signal)) pool.Signal {
		g := pool.Signal{KVUsage: -1}
		change(&g)
		return g
	}
	tests := []struct {
		name string
		role string
		g    pool.Signal
		want int
		why  string
	}{
		{"nothing to do wants none", "", signal(func(g *pool.Signal) { g.Ready = 3 }), 0, "idle"},
		{"one waiting request wants one", "", signal(func(g *pool.Signal) { g.Queued = 1 }), 1, "work"},
		{"so does one that runs", "", signal(func(g *pool.Signal) { g.Ready, g.Busy = 3, 0.01 }), 1, "work"},
		{"waiting tokens come on top of what runs", "", signal(func(g *pool.Signal) {
			g.Ready, g.Busy, g.Queued, g.QueuedTokens = 4, 4, 9, 2500
		}), 8, "queued tokens"},
		{"places that are nearly taken want more", "", signal(func(g *pool.Signal) { g.Ready, g.Busy = 4, 3.6 }), 5, "queued tokens"},
		{"full caches want more", "", signal(func(g *pool.Signal) { g.Ready, g.Busy, g.KVUsage = 10, 2, 1 }), 13, "KV use"},
		{"near the aim nothing changes", "", signal(func(g *pool.Signal) { g.Ready, g.Busy, g.KVUsage = 10, 2, 0.85 }), 10, "KV use"},
		{"half-empty caches want fewer", "", signal(func(g *pool.Signal) { g.Ready, g.Busy, g.KVUsage = 10, 2, 0.4 }), 5, "KV use"},
		{"late first tokens want more", "", signal(func(g *pool.Signal) { g.Ready, g.Busy, g.TTFT = 4, 1, 1500*time.Millisecond }), 6, "time to first token"},
		{"at most twice as many", "", signal(func(g *pool.Signal) { g.Ready, g.Busy, g.TTFT = 4, 1, time.Minute }), 8, "time to first token"},
		{"the maximum holds", "", signal(func(g *pool.Signal) { g.Queued, g.QueuedTokens = 1, 1_000_000 }), 20, "maximum"},
		{"prefill looks away from caches", "prefill", signal(func(g *pool.Signal) { g.Ready, g.Busy, g.KVUsage = 4, 1, 1 }), 2, "queued tokens"},
		{"decode looks away from queue and first tokens", "decode", signal(func(g *pool.Signal) {
			g.Ready, g.Busy, g.QueuedTokens, g.Queued, g.TTFT = 4, 1, 9000, 9, time.Minute
		}), 2, "queued tokens"},
		{"decode wakes for what waits", "decode", signal(func(g *pool.Signal) { g.Queued = 1 }), 1, "work"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, why := pool.Want(settings, tt.role, tt.g)
			if n != tt.want || !strings.HasPrefix(why, tt.why) {
				t.Errorf("%d because of %s, want %d because of %s", n, why, tt.want, tt.why)
			}
		})
	}
	if n, why := pool.Want(pool.Scaling{Min: 2, Max: 4, QueuedTokens: 1, KVUsage: 1}, "", pool.Signal{KVUsage: -1}); n != 2 || why != "minimum" {
		t.Errorf("%d because of %s, want the minimum 2", n, why)
	}
}

func TestDesiredGoesUpAtOnceAndDownWhenFewerWereEnoughForAWhile(t *testing.T) {
	t.Parallel()
	var c pool.Calm
	start := time.Now()
	at := func(seconds, want, desired int) {
		t.Helper()
		if got := c.Settle(want, start.Add(time.Duration(seconds)*time.Second), time.Minute); got != desired {
			t.Errorf("after %d s: desired %d while %d are wanted, want %d", seconds, got, want, desired)
		}
	}
	at(0, 1, 1)
	at(1, 4, 4)  // up at once
	at(2, 0, 4)  // a lull
	at(30, 2, 4) // the minute is not over
	at(60, 0, 4) // nor here
	at(61, 0, 2) // 4 is a minute ago; 2 isn't
	at(89, 0, 2) // 2 was 59 s ago
	at(90, 0, 0) // and now a minute
	at(91, 3, 3) // up again
	at(92, 3, 3)
	at(151, 0, 3) // the last 3 counts, not the first
	at(152, 0, 0)
	for i := range 100_000 {
		c.Settle(i%7, start.Add(time.Duration(i)*time.Millisecond), time.Hour)
	}
	if n := c.Len(); n > 7 {
		t.Errorf("%d peaks are kept of seven values", n)
	}
}
