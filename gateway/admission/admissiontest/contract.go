// Package admissiontest is the contract of admission.Store in executable form.
//
//nolint:thelper,tparallel // these are the tests themselves: a failure should name their own line; who runs them is parallel
package admissiontest

import (
	"cmp"
	"fmt"
	"sync"
	"testing"
	"time"

	"weir/gateway/admission"
)

// Fixture is a fresh, empty store and its clock.
type Fixture struct {
	Store   Store
	Advance func(d time.Duration) // moves the store's clock by at least d
	Slack   time.Duration         // by how much a clock that can't be stopped runs on during a test; 0: not at all
	SlotTTL time.Duration         // life of a slot that nobody renews
	// Die ends the store's process as kill -9 would, and returns what comes
	// after it. The store is not used any more.
	Die func(t *testing.T) admission.Intents
}

// Store is all that the contract is about.
type Store interface {
	admission.Store
	admission.Intents
}

// Test runs the contract. open is called once for each guarantee.
func Test(t *testing.T, open func(t *testing.T) Fixture) {
	t.Helper()
	for _, g := range append(guarantees(), intentGuarantees()...) {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			g.check(t, open(t))
		})
	}
}

type guarantee struct {
	name  string
	check func(t *testing.T, f Fixture)
}

func guarantees() []guarantee {
	return []guarantee{
		{"of a hundred at once exactly ten get the ten slots", exactSlots},
		{"of a hundred at once exactly ten get the ten requests of a minute", exactRate},
		{"a refusal leaves nothing charged at any node", allOrNone},
		{"a repeated call is charged once", idempotent},
		{"a repeated call of a request that holds the last slot is admitted", idempotentWhenFull},
		{"a released slot serves the next request", releaseFrees},
		{"a second release and one of an unknown request do nothing", releaseTwice},
		{"a release gives no rate back", releaseKeepsRate},
		{"the slot of a dead holder expires", slotExpires},
		{"the rate comes back evenly, and retry says when", rateExact},
		{"the verdict names the node that binds most closely", tightestNode},
		{"of several refusals the longest is told", longestRefusal},
		{"nodes without limits are free", unlimited},
		{"tokens are spent by the estimate and corrected to what was used, once", tokensCorrected},
		{"too little of an estimate is a debt that later requests wait for", tokenDebt},
		{"an estimate above the whole limit is admitted when nothing is spent", tokensAboveLimit},
		{"tokens, uncached prompt and output are counted apart, and the tightest is told", tokenMeters},
		{"of a hundred at once exactly as many get in as their tokens allow", exactTokens},
		{"a node's slots and rate are its own", nodesApart},
		{"limits that rise admit more, tell what is guaranteed, and fall back at once", limitsRise},
		{"what was charged while limits were higher is corrected by the same measure", raisedCorrected},
		{"a look tells how nodes stand and changes nothing", lookChangesNothing},
		{"tenants never meet", tenantsApart},
		{"too many nodes are an error", tooManyNodes},
	}
}

func exactSlots(t *testing.T, f Fixture) {
	race(t, f, []admission.Node{{ID: "key_a"}, {ID: "ten_a", Concurrency: 10}}, true)
}

func exactRate(t *testing.T, f Fixture) {
	race(t, f, []admission.Node{{ID: "key_a", PerMinute: admission.Counts{Requests: 10}}, {ID: "ten_a", PerMinute: admission.Counts{Requests: 1000}}}, false)
}

func race(t *testing.T, f Fixture, nodes []admission.Node, slots bool) {
	t.Helper()
	const callers = 100
	verdicts := make([]admission.Verdict, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			v, err := f.Store.Admit(t.Context(), request(fmt.Sprintf("req_%d", i), nodes, one))
			if err != nil {
				t.Errorf("admit: %v", err)
			}
			verdicts[i] = v
		})
	}
	wg.Wait()
	admitted := 0
	for _, v := range verdicts {
		switch {
		case v.Admitted:
			admitted++
		case v.Slots != slots || v.Retry <= 0:
			t.Errorf("refusal = %+v, want one for slots=%v with a time to retry", v, slots)
		}
	}
	if admitted != 10 {
		t.Errorf("admitted %d of %d, want exactly 10", admitted, callers)
	}
}

func allOrNone(t *testing.T, f Fixture) {
	key := admission.Node{ID: "key_a", PerMinute: admission.Counts{Requests: 2}, Concurrency: 2}
	team := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Requests: 1}, Concurrency: 1}
	must(t, f, true, "req_1", team)
	for i := range 5 {
		if v := must(t, f, false, fmt.Sprintf("req_refused_%d", i), key, team); v.Node != "ten_a" {
			t.Errorf("refused by %q, want the tenant", v.Node)
		}
	}
	// A free tenant node keeps the key in its place. Both allowances of the key are whole.
	free := admission.Node{ID: "ten_a"}
	must(t, f, true, "req_2", key, free)
	must(t, f, true, "req_3", key, free)
	must(t, f, false, "req_4", key, free)
}

func idempotent(t *testing.T, f Fixture) {
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Requests: 2}, Concurrency: 2}
	for range 3 {
		if v := must(t, f, true, "req_1", node); v.Requests.Left != 1 {
			t.Errorf("left = %d, want 1 after one request, however often it is repeated", v.Requests.Left)
		}
	}
	must(t, f, true, "req_2", node)
	must(t, f, false, "req_3", node)
}

func idempotentWhenFull(t *testing.T, f Fixture) {
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Requests: 1}, Concurrency: 1}
	must(t, f, true, "req_1", node)
	must(t, f, false, "req_2", node)
	must(t, f, true, "req_1", node)
}

func releaseFrees(t *testing.T, f Fixture) {
	node := admission.Node{ID: "ten_a", Concurrency: 1}
	for i := range 5 {
		id := fmt.Sprintf("req_%d", i)
		must(t, f, true, id, node)
		must(t, f, false, "req_other", node)
		release(t, f, id, node)
	}
}

func releaseTwice(t *testing.T, f Fixture) {
	node := admission.Node{ID: "ten_a", Concurrency: 2}
	release(t, f, "req_unknown", node)
	must(t, f, true, "req_1", node)
	must(t, f, true, "req_2", node)
	release(t, f, "req_1", node)
	release(t, f, "req_1", node)
	must(t, f, true, "req_3", node)
	must(t, f, false, "req_4", node)
}

func releaseKeepsRate(t *testing.T, f Fixture) {
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Requests: 1}, Concurrency: 1}
	must(t, f, true, "req_1", node)
	release(t, f, "req_1", node)
	if v := must(t, f, false, "req_2", node); v.Slots {
		t.Errorf("refused for slots, want for the rate")
	}
}

func slotExpires(t *testing.T, f Fixture) {
	node := admission.Node{ID: "ten_a", Concurrency: 1}
	must(t, f, true, "req_dead", node)
	must(t, f, false, "req_1", node)
	f.Advance(f.SlotTTL)
	must(t, f, true, "req_2", node)
	must(t, f, false, "req_3", node)
}

// rateExact uses 600 a minute: one each 100 ms.
func rateExact(t *testing.T, f Fixture) {
	const interval = 100 * time.Millisecond
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Requests: 600}}
	start := time.Now()
	for i := range 600 {
		must(t, f, true, fmt.Sprintf("req_%d", i), node)
	}
	if f.Slack == 0 {
		v := must(t, f, false, "req_over", node)
		want := admission.Verdict{Node: "ten_a", Retry: interval, Requests: admission.Allowance{Limit: 600, Reset: time.Minute}}
		if v != want {
			t.Errorf("verdict = %+v, want %+v", v, want)
		}
		f.Advance(interval - time.Microsecond)
		if v = must(t, f, false, "req_over", node); v.Retry != time.Microsecond {
			t.Errorf("retry = %v, want 1µs", v.Retry)
		}
		f.Advance(time.Microsecond)
		must(t, f, true, "req_next", node)
		must(t, f, false, "req_over", node)
		f.Advance(time.Minute)
		if v = must(t, f, true, "req_last", node); v.Requests.Left != 599 || v.Requests.Reset != interval {
			t.Errorf("after a minute: %+v, want 599 left and one interval to reset", v)
		}
		return
	}
	// A clock that runs gives some of the allowance back during the burst:
	// never more than the time that passed.
	extra := 0
	for {
		v := admit(t, f, fmt.Sprintf("req_extra_%d", extra), node)
		if !v.Admitted {
			if v.Retry <= 0 || v.Retry > interval {
				t.Errorf("retry = %v, want within one interval", v.Retry)
			}
			f.Advance(v.Retry)
			must(t, f, true, "req_after_retry", node)
			break
		}
		extra++
	}
	if most := int((time.Since(start)+f.Slack)/interval) + 1; extra > most {
		t.Errorf("%d above the allowance, want at most %d for the time that passed", extra, most)
	}
}

func tightestNode(t *testing.T, f Fixture) {
	key := admission.Node{ID: "key_a", PerMinute: admission.Counts{Requests: 5}}
	team := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Requests: 3}}
	v := must(t, f, true, "req_1", key, team)
	if v.Requests.Limit != 3 || v.Requests.Left != 2 {
		t.Errorf("verdict = %+v, want the tenant's 3 with 2 left", v)
	}
	if reset := 20 * time.Second; v.Requests.Reset > reset || v.Requests.Reset < reset-f.Slack {
		t.Errorf("reset = %v, want %v", v.Requests.Reset, reset)
	}
}

func longestRefusal(t *testing.T, f Fixture) {
	key := admission.Node{ID: "key_a", Concurrency: 1}
	team := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Requests: 1}}
	must(t, f, true, "req_1", key, team)
	v := must(t, f, false, "req_2", key, team)
	if v.Node != "ten_a" || v.Slots || v.Retry < time.Minute-f.Slack {
		t.Errorf("verdict = %+v, want the tenant's minute rather than the key's slot", v)
	}
}

func unlimited(t *testing.T, f Fixture) {
	nodes := []admission.Node{{ID: "key_a"}, {ID: "ten_a"}}
	for i := range 50 {
		v := must(t, f, true, fmt.Sprintf("req_%d", i), nodes...)
		if v != (admission.Verdict{Admitted: true}) {
			t.Errorf("verdict = %+v, want nothing but admission", v)
		}
	}
	must(t, f, true, "req_none")
	release(t, f, "req_0", nodes...)
}

func nodesApart(t *testing.T, f Fixture) {
	team := admission.Node{ID: "ten_a"}
	must(t, f, true, "req_1", admission.Node{ID: "key_a", PerMinute: admission.Counts{Requests: 1}, Concurrency: 1}, team)
	must(t, f, true, "req_2", admission.Node{ID: "key_b", PerMinute: admission.Counts{Requests: 1}, Concurrency: 1}, team)
}

func limitsRise(t *testing.T, f Fixture) {
	const guaranteed = 10
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Requests: guaranteed}, Concurrency: 8}
	raised := node
	raised.Rise = 200
	for i := range 16 {
		v := must(t, f, true, fmt.Sprintf("req_%d", i), raised)
		if v.Requests.Limit != guaranteed {
			t.Errorf("told a limit of %d, want the guaranteed one", v.Requests.Limit)
		}
	}
	if v := must(t, f, false, "req_more", raised); !v.Slots {
		t.Errorf("verdict = %+v, want a refusal for twice the slots", v)
	}
	must(t, f, false, "req_back", node)
	for i := range 16 {
		release(t, f, fmt.Sprintf("req_%d", i), raised)
	}
	// 16 of 20 are spent: so are 8 of 10.
	if v := must(t, f, true, "req_17", node); v.Requests.Left != 1 && f.Slack == 0 {
		t.Errorf("left = %d, want 1", v.Requests.Left)
	}
}

func raisedCorrected(t *testing.T, f Fixture) {
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Tokens: 1000}}
	raised := node
	raised.Rise = 200
	spend(t, f, "req_1", 1600, raised)
	use(t, f, "req_1", 1600, 0, raised)
	if v := spend(t, f, "req_2", 900, node); !v.Admitted || !near(v.Tokens.Left, 100, f, 1000) {
		t.Errorf("verdict = %+v, want all of the first back", v)
	}
}

func lookChangesNothing(t *testing.T, f Fixture) {
	node := admission.Node{ID: "key_a", PerMinute: admission.Counts{Requests: 10, Generated: 100}, Concurrency: 3}
	idle := admission.Node{ID: "prj_a", PerMinute: admission.Counts{Tokens: 50}}
	r := request("req_1", []admission.Node{node}, admission.Counts{Requests: 1, Tokens: 60, Generated: 40})
	if v, err := f.Store.Admit(t.Context(), r); err != nil || !v.Admitted {
		t.Fatalf("verdict = %+v, %v", v, err)
	}
	many := []admission.Node{node, idle}
	for i := range 2 * admission.MaxNodes {
		many = append(many, admission.Node{ID: fmt.Sprintf("key_%d", i), Concurrency: 1})
	}
	for range 3 {
		all, err := f.Store.Look(t.Context(), "ten_a", many)
		if err != nil || len(all) != len(many) {
			t.Fatalf("%d of %d: %v", len(all), len(many), err)
		}
		got := all[0]
		if r := got.Rates[admission.RequestMeter]; r.Limit != 10 || r.Left != 9 || r.Reset <= 0 || r.Reset > 6*time.Second {
			t.Errorf("requests = %+v, want 9 of 10, whole within 6 s", r)
		}
		if g := got.Rates[admission.GeneratedMeter]; g.Limit != 100 || !near(g.Left, 60, f, 100) {
			t.Errorf("output = %+v, want 60 of 100", g)
		}
		if got.Rates[admission.TokenMeter].Limit != 0 || got.Live != 1 {
			t.Errorf("%+v, want no limit of tokens and one live", got)
		}
		if i := all[1]; i.Live != 0 || i.Rates[admission.TokenMeter].Left != 50 {
			t.Errorf("%+v, want an idle node", i)
		}
	}
}

func tenantsApart(t *testing.T, f Fixture) {
	for _, id := range []string{"ten_a", "ten_b"} {
		tenant := admission.Node{ID: id, PerMinute: admission.Counts{Requests: 1}, Concurrency: 1}
		must(t, f, true, "req_"+id, tenant)
		must(t, f, false, "req_more_"+id, tenant)
	}
}

func tooManyNodes(t *testing.T, f Fixture) {
	nodes := make([]admission.Node, admission.MaxNodes+1)
	for i := range nodes {
		nodes[i] = admission.Node{ID: fmt.Sprintf("ten_%d", i), Concurrency: 1}
	}
	if v, err := f.Store.Admit(t.Context(), request("req_1", nodes, one)); err == nil || v.Admitted {
		t.Errorf("verdict = %+v, error = %v, want an error", v, err)
	}
}

// request is one of the tenant ten_a.
func request(id string, nodes []admission.Node, estimate admission.Counts) *admission.Request {
	return &admission.Request{ID: id, Tenant: "ten_a", Nodes: nodes, Estimate: estimate}
}

// one is what a request costs where tokens don't matter.
var one = admission.Counts{Requests: 1} //nolint:gochecknoglobals // never changed

func spend(t *testing.T, f Fixture, id string, tokens int, nodes ...admission.Node) admission.Verdict {
	t.Helper()
	v, err := f.Store.Admit(t.Context(), request(id, nodes, admission.Counts{Requests: 1, Tokens: tokens}))
	if err != nil {
		t.Fatalf("admit %s: %v", id, err)
	}
	return v
}

func use(t *testing.T, f Fixture, id string, estimate, used int, nodes ...admission.Node) {
	t.Helper()
	err := f.Store.Release(t.Context(), request(id, nodes, admission.Counts{Requests: 1, Tokens: estimate}), admission.Counts{Requests: 1, Tokens: used})
	if err != nil {
		t.Fatalf("release %s: %v", id, err)
	}
}

// near reports whether so many tokens are left, but for what came back since.
func near(left, want int, f Fixture, perMinute int) bool {
	return left >= want && left <= want+int(f.Slack.Minutes()*float64(perMinute))+1
}

func tokensCorrected(t *testing.T, f Fixture) {
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Tokens: 1000}}
	if v := spend(t, f, "req_1", 600, node); !v.Admitted || v.Tokens.Limit != 1000 || !near(v.Tokens.Left, 400, f, 1000) {
		t.Errorf("verdict = %+v, want 400 of 1000 left", v)
	}
	if v := spend(t, f, "req_2", 600, node); f.Slack == 0 && (v.Admitted || v.Meter != admission.TokenMeter || v.Retry != 12*time.Second) {
		t.Errorf("verdict = %+v, want a refusal for 12 s", v)
	} else if v.Admitted {
		use(t, f, "req_2", 600, 0, node)
	}
	for range 3 { // only the first counts
		use(t, f, "req_1", 600, 100, node)
	}
	if v := spend(t, f, "req_3", 800, node); !v.Admitted || !near(v.Tokens.Left, 100, f, 1000) {
		t.Errorf("verdict = %+v, want 100 left: 500 of the first came back", v)
	}
}

func tokenDebt(t *testing.T, f Fixture) {
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Tokens: 60}}
	spend(t, f, "req_1", 10, node)
	use(t, f, "req_1", 10, 130, node)
	v := spend(t, f, "req_2", 1, node)
	if v.Admitted || v.Tokens.Left != 0 || v.Retry > 71*time.Second || v.Retry < 71*time.Second-f.Slack {
		t.Errorf("verdict = %+v, want a wait of 71 s for a debt of 70 tokens and one more", v)
	}
}

func tokensAboveLimit(t *testing.T, f Fixture) {
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Tokens: 100}}
	if v := spend(t, f, "req_1", 250, node); !v.Admitted {
		t.Errorf("verdict = %+v, want admission: it could never be admitted else", v)
	}
	if v := spend(t, f, "req_2", 1, node); v.Admitted {
		t.Errorf("verdict = %+v, want a refusal: the first is in debt", v)
	}
}

func tokenMeters(t *testing.T, f Fixture) {
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Requests: 1000, Tokens: 1000, Uncached: 800, Generated: 100}}
	cost := admission.Counts{Requests: 1, Tokens: 150, Uncached: 100, Generated: 50}
	v, err := f.Store.Admit(t.Context(), request("req_1", []admission.Node{node}, cost))
	if err != nil || !v.Admitted || v.Tokens.Limit != 100 || !near(v.Tokens.Left, 50, f, 100) || v.Requests.Limit != 1000 {
		t.Errorf("verdict = %+v, %v, want the output's 100 with 50 left", v, err)
	}
	cost.Generated = 80
	v, err = f.Store.Admit(t.Context(), request("req_2", []admission.Node{node}, cost))
	if f.Slack == 0 && (err != nil || v.Admitted || v.Meter != admission.GeneratedMeter) {
		t.Errorf("verdict = %+v, %v, want a refusal for the output", v, err)
	}
}

func exactTokens(t *testing.T, f Fixture) {
	// Slow enough that nothing comes back during the race.
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Tokens: 10}}
	var wg sync.WaitGroup
	var mu sync.Mutex
	admitted := 0
	for i := range 100 {
		wg.Go(func() {
			v, err := f.Store.Admit(t.Context(), request(fmt.Sprintf("req_%d", i), []admission.Node{node}, admission.Counts{Requests: 1, Tokens: 2}))
			if err != nil {
				t.Errorf("admit: %v", err)
			}
			if v.Admitted {
				mu.Lock()
				admitted++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if admitted != 5 {
		t.Errorf("admitted %d, want exactly 5", admitted)
	}
}

func admit(t *testing.T, f Fixture, id string, nodes ...admission.Node) admission.Verdict {
	t.Helper()
	v, err := f.Store.Admit(t.Context(), request(id, nodes, one))
	if err != nil {
		t.Fatalf("admit %s: %v", id, err)
	}
	return v
}

func must(t *testing.T, f Fixture, admitted bool, id string, nodes ...admission.Node) admission.Verdict {
	t.Helper()
	v := admit(t, f, id, nodes...)
	if v.Admitted != admitted {
		t.Fatalf("%s: verdict = %+v, want admitted = %v", cmp.Or(id, "request"), v, admitted)
	}
	return v
}

func release(t *testing.T, f Fixture, id string, nodes ...admission.Node) {
	t.Helper()
	if err := f.Store.Release(t.Context(), request(id, nodes, one), one); err != nil {
		t.Fatalf("release %s: %v", id, err)
	}
}
