package main

import (
	"testing"
	"time"
)

func TestTenTenantsGetTheirShares(t *testing.T) {
	t.Parallel()
	worst, mean, err := tenants().measure(bubbles{t})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("worst %.1f %%, mean %.1f %%", 100*worst, 100*mean)
	if worst > .05 {
		t.Errorf("in one window a tenant was %.1f %% off its share, all were %.1f %% in the mean", 100*worst, 100*mean)
	}
}

func TestChatStaysFastBesideBurstingAgents(t *testing.T) {
	t.Parallel()
	plain, err := bursting(bubbles{t}, roundRobin())
	if err != nil {
		t.Fatal(err)
	}
	got, err := bursting(bubbles{t}, oursForBursts())
	if err != nil {
		t.Fatal(err)
	}
	if len(got.refused) > 0 {
		t.Errorf("agents failed: %v", got.refused)
	}
	a, b := got.ttft("chat", .95), plain.ttft("chat", .95)
	t.Logf("chat %v, round-robin %v; agents %v, %v; %d %d; hit %.3f %.3f of %.3f", a, b, got.ttft("agent", .95), plain.ttft("agent", .95), len(got.records), len(plain.records), got.hitRate(), plain.hitRate(), got.attainable(0))
	if a > 2*time.Second || 2*a > b {
		t.Errorf("chat's TTFT p95 is %v, under round-robin %v", a, b)
	}
}
