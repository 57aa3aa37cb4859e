package gateway

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"weir/gateway/catalogue"
)

func never(catalogue.Route) bool { return false }

// busy says that these pools are.
func busy(pools ...string) func(catalogue.Route) bool {
	return func(r catalogue.Route) bool { return slices.Contains(pools, r.Pool) }
}

const chains = 20_000

// spread is where so many new chains go.
func spread(routes []catalogue.Route) (where [chains]string, part map[string]float64) {
	part = map[string]float64{}
	for c := range where {
		where[c] = (&router{}).route(routes, uint64(c)*0x9e3779b97f4a7c15, true, never).Pool
		part[where[c]] += 1.0 / chains
	}
	return where, part
}

func TestNewChainsFollowTheWeights(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		routes []catalogue.Route
		want   map[string]float64
	}{
		"equal":             {[]catalogue.Route{{Pool: "a", Weight: 1}, {Pool: "b", Weight: 1}}, map[string]float64{"a": 0.5, "b": 0.5}},
		"by weight":         {[]catalogue.Route{{Pool: "a", Weight: 6}, {Pool: "b", Weight: 3}, {Pool: "c", Weight: 1}}, map[string]float64{"a": 0.6, "b": 0.3, "c": 0.1}},
		"a canary's part":   {[]catalogue.Route{{Pool: "a", Weight: 8}, {Pool: "b", Canary: 0.05}}, map[string]float64{"a": 0.95, "b": 0.05}},
		"two canaries":      {[]catalogue.Route{{Pool: "a", Weight: 2}, {Pool: "b", Canary: 0.1}, {Pool: "c", Canary: 0.2}}, map[string]float64{"a": 0.7, "b": 0.1, "c": 0.2}},
		"no overflow":       {[]catalogue.Route{{Pool: "a", Weight: 1}, {Pool: "b", Overflow: true}}, map[string]float64{"a": 1}},
		"overflow is left":  {[]catalogue.Route{{Pool: "a", Overflow: true}, {Pool: "b", Overflow: true}}, map[string]float64{"a": 1}},
		"canaries are left": {[]catalogue.Route{{Pool: "a", Canary: 0.1}, {Pool: "b", Canary: 0.3}}, map[string]float64{"a": 0.25, "b": 0.75}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, got := spread(test.routes)
			for _, r := range test.routes {
				if math.Abs(got[r.Pool]-test.want[r.Pool]) > 0.015 {
					t.Errorf("%s gets %.3f of the chains, want %.3f", r.Pool, got[r.Pool], test.want[r.Pool])
				}
			}
		})
	}
}

// A changed share moves chains to or from the route that changed, and no others.
func TestAChangedShareMovesNoMoreThanItMust(t *testing.T) {
	t.Parallel()
	was, _ := spread([]catalogue.Route{{Pool: "a", Weight: 6}, {Pool: "b", Weight: 3}, {Pool: "new", Canary: 0.05}})
	is, part := spread([]catalogue.Route{{Pool: "a", Weight: 6}, {Pool: "b", Weight: 3}, {Pool: "new", Canary: 0.15}})
	moved := 0
	for c := range was {
		if was[c] == is[c] {
			continue
		}
		moved++
		if is[c] != "new" {
			t.Fatalf("a chain moved from %s to %s", was[c], is[c])
		}
	}
	if got := float64(moved) / chains; math.Abs(got-0.10) > 0.015 {
		t.Errorf("%.3f of the chains moved, want 0.10", got)
	}
	if math.Abs(part["new"]-0.15) > 0.015 {
		t.Errorf("the canary has %.3f, want 0.15", part["new"])
	}
}

// A chain under way doesn't move when shares change, only when its route goes.
func TestAChainNeverFlips(t *testing.T) {
	t.Parallel()
	r := &router{}
	before := []catalogue.Route{{Pool: "a", Weight: 1}, {Pool: "b", Canary: 0.5}}
	after := []catalogue.Route{{Pool: "c", Weight: 50}, {Pool: "b", Canary: 0.01}, {Pool: "a", Weight: 1}}
	for c := range uint64(200) {
		home := r.route(before, c, true, never)
		if now := r.route(after, c, true, never); now.Pool != home.Pool {
			t.Fatalf("chain %d went from %s to %s", c, home.Pool, now.Pool)
		}
		gone := []catalogue.Route{{Pool: "c", Weight: 1}}
		if now := r.route(gone, c, true, never); now.Pool != "c" {
			t.Fatalf("chain %d went to %s, which is no route", c, now.Pool)
		}
	}
}

// Calls of no known chain are shared out one by one.
func TestAnUnknownChainIsNotRemembered(t *testing.T) {
	t.Parallel()
	r := &router{}
	first := r.route([]catalogue.Route{{Pool: "a"}}, 7, false, never)
	if now := r.route([]catalogue.Route{{Pool: "b", Weight: 1}, {Pool: "a", Overflow: true}}, 7, true, never); first.Pool != "a" || now.Pool != "b" {
		t.Errorf("%s, then %s", first.Pool, now.Pool)
	}
}

func TestABusyPoolSpillsToTheNextRoute(t *testing.T) {
	t.Parallel()
	routes := []catalogue.Route{{Pool: "a", Weight: 1}, {Pool: "canary", Canary: 0.001}, {Pool: "b", Overflow: true}, {Pool: "c", Overflow: true}}
	for name, test := range map[string]struct {
		full func(catalogue.Route) bool
		want string
	}{
		"room":                           {never, "a"},
		"the next, but no canary":        {busy("a"), "b"},
		"the one after it":               {busy("a", "b"), "c"},
		"all are: it waits where it was": {busy("a", "b", "c"), "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := (&router{}).route(routes, 1, true, test.full).Pool; got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// A chain that spilled stays where its prefix is by now, until that is busy or
// the chain has rested for so long that it is forgotten.
func TestASpilledChainStays(t *testing.T) {
	t.Parallel()
	routes := []catalogue.Route{{Pool: "a", Weight: 1}, {Pool: "b", Overflow: true}}
	synctest.Test(t, func(t *testing.T) {
		r := &router{}
		call := func(want string, full func(catalogue.Route) bool) {
			t.Helper()
			if got := r.route(routes, 1, true, full).Pool; got != want {
				t.Errorf("%s, want %s", got, want)
			}
		}
		call("a", never)
		call("b", busy("a"))
		for range 20 {
			time.Sleep(homeFor - time.Second)
			call("b", never)
		}
		call("a", busy("b"))
		call("b", busy("a"))
		time.Sleep(2 * homeFor)
		call("a", never)
	})
}

// What is remembered is bounded, and what was used last is kept longest.
func TestHomesAreBounded(t *testing.T) {
	t.Parallel()
	var h homes
	now := time.Now()
	for c := range uint64(3 * maxHomes) {
		h.put(c, "p", now)
		if n := len(h.young) + len(h.old); n > 2*maxHomes {
			t.Fatalf("%d are remembered", n)
		}
	}
	if h.of(3*maxHomes-1, now) != "p" || h.of(0, now) != "" {
		t.Error("the last is forgotten, or the first is not")
	}
}

// The turns of a conversation are one chain, and other conversations others.
func TestAConversationIsKnownByItsOpening(t *testing.T) {
	t.Parallel()
	const system, hello, other = `{"role":"system","content":"be kind"}`, `{"role":"user","content":"hello"}`, `{"role":"user","content":"good day"}`
	turn := func(more string) []byte { return fmt.Appendf(nil, `[%s,%s%s]`, system, hello, more) }
	first := opening(turn(""))
	if first == "" || first != opening(turn(`,{"role":"assistant","content":"hi"},`+other)) {
		t.Error("a later turn is another chain")
	}
	if first == opening(fmt.Appendf(nil, `[%s,%s]`, system, other)) {
		t.Error("another conversation with the same system prompt is the same chain")
	}
	if opening(fmt.Appendf(nil, `[%s]`, hello)) != opening(fmt.Appendf(nil, `[%s,%s]`, hello, other)) {
		t.Error("without a system prompt a later turn is another chain")
	}
	if opening([]byte(`"complete this"`)) == "" || opening(nil) != "" || opening([]byte(`[]`)) == "" {
		t.Error("a plain prompt has no opening, or nothing has one")
	}
}
