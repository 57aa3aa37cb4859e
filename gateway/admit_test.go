package gateway_test

import (
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/gateway"
	"weir/scheduler"
	"weir/tenants"
)

// A request is counted at each of its nodes, and at none of others.
func TestEachNodeLimitsWhatIsItsOwn(t *testing.T) {
	t.Parallel()
	two := tenants.Limits{RequestsPerMinute: 2}
	other := func(c *gateway.Call, change func(*tenants.Principal)) {
		p := *c.Principal
		change(&p)
		c.Principal = &p
	}
	key := func(p *tenants.Principal) { p.Key = "key_b" }
	project := func(p *tenants.Principal) { p.Key, p.Project = "key_b", "prj_b" }
	tenant := func(p *tenants.Principal) { p.Key, p.Project, p.Tenant = "key_b", "prj_b", "ten_b" }
	tests := []struct {
		name  string
		plan  func(*tenants.Plan)
		same  func(*tenants.Principal) // shares the node
		apart func(*tenants.Principal) // doesn't
	}{
		{"key", func(p *tenants.Plan) { p.KeyLimits = two }, func(*tenants.Principal) {}, key},
		{"project", func(p *tenants.Plan) { p.ProjectLimits = two }, key, project},
		{"tenant", func(p *tenants.Plan) { p.Limits = two }, project, tenant},
		{"tenant and model", func(p *tenants.Plan) { p.ModelLimits = map[string]tenants.Limits{"pub": two} }, project, tenant},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := serve(t, answers(200, document))
			h := build(t, []string{e.URL}, shared, func(h *house) {
				h.plan.Limits = tenants.Limits{}
				tt.plan(h.plan)
			})
			run := func(change func(*tenants.Principal)) gateway.Cause {
				// By its alias: it is the same model.
				return causeOf(h.Run(t.Context(), h.call(func(c *gateway.Call) { c.Model = "nick"; other(c, change) }), &caller{}))
			}
			for i := range 2 {
				if got := run(func(*tenants.Principal) {}); got != gateway.Success {
					t.Fatalf("request %d: %q", i, got)
				}
			}
			if got := run(tt.same); got != gateway.RateLimited {
				t.Errorf("what shares the limit ended as %q", got)
			}
			if got := run(tt.apart); got != gateway.Success {
				t.Errorf("what doesn't share it ended as %q", got)
			}
		})
	}
}

func TestLimitsRiseWhileThePoolHasRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWire()
		e := &engine{gone: make(chan struct{}, 1)}
		server, served := &http.Server{Handler: e.handler([]step{answers(200, document)})}, make(chan struct{})
		go func() { defer close(served); _ = server.Serve(w) }()
		h := build(t, []string{"http://engine"}, func(h *house) {
			h.config.Dial = w.dial
			h.plan.Limits = tenants.Limits{RequestsPerMinute: 3}
			h.plan.Burst = 2
		})
		admitted := func() (n int) {
			for ; ; n++ {
				to := &caller{}
				err := h.Run(t.Context(), h.call(nil), to)
				limit := to.head.Limit
				refusal, refused := errors.AsType[*gateway.Error](err)
				if refused {
					limit = refusal.Limit
				}
				if limit.Requests != 3 || limit.RemainingRequests > 3 {
					t.Errorf("told %+v, want the guaranteed limit", limit)
				}
				if refused {
					if refusal.Cause != gateway.RateLimited {
						t.Fatalf("ended as %q", refusal.Cause)
					}
					return n
				}
			}
		}
		if n := admitted(); n != 6 {
			t.Errorf("%d admitted with an idle pool, want twice the 3", n)
		}
		<-time.After(time.Minute)

		var leases []scheduler.Lease
		for range 4 { // of the 8 that the pool runs
			l, err := h.pools.queue.Schedule(t.Context(), scheduler.Request{ID: "other"})
			if err != nil {
				t.Fatal(err)
			}
			leases = append(leases, l)
		}
		if n := admitted(); n != 3 {
			t.Errorf("%d admitted with a pool that is half full, want the 3", n)
		}
		for _, l := range leases {
			l.End(scheduler.Outcome{Result: scheduler.Completed})
		}
		<-time.After(10 * time.Second)
		if n := admitted(); n != 1 {
			t.Errorf("%d admitted 10 s later with an idle pool, want 1: one comes back each 10 s now", n)
		}
		h.Close()
		_ = server.Close()
		<-served
	})
}

func TestBoundsTellWhatLimitsACallerAndNothingElse(t *testing.T) {
	t.Parallel()
	e := serve(t, answers(200, document))
	h := build(t, []string{e.URL}, func(h *house) {
		h.plan.Limits = tenants.Limits{Concurrency: 4}
		h.plan.KeyLimits = tenants.Limits{RequestsPerMinute: 5}
		h.plan.ProjectLimits = tenants.Limits{OutputTokensPerMinute: 1000}
		h.plan.ModelLimits = map[string]tenants.Limits{"pub": {TokensPerMinute: 100_000}, "other": {Concurrency: 9}}
	})
	call := h.call(func(c *gateway.Call) { c.Principal.Models = []string{"pub"} })
	if err := h.Run(t.Context(), call, &caller{}); err != nil {
		t.Fatal(err)
	}
	got, err := h.Bounds(t.Context(), call.Principal)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got { // times go on
		got[i].Requests.Reset, got[i].Tokens.Reset, got[i].Output.Reset = 0, 0, 0
	}
	want := []gateway.Bound{
		{Scope: gateway.TenantScope, Name: "ten_a", Slots: 4},
		{Scope: gateway.ModelScope, Name: "pub", Tokens: gateway.Allowance{Limit: 100_000, Left: 99_988}}, // 7 in that were not cached, 5 out
		{Scope: gateway.ProjectScope, Name: "prj_a", Output: gateway.Allowance{Limit: 1000, Left: 995}},
		{Scope: gateway.KeyScope, Name: "key_a", Requests: gateway.Allowance{Limit: 5, Left: 4}},
	}
	near := cmp.Comparer(func(a, b gateway.Allowance) bool {
		return a.Limit == b.Limit && max(a.Left-b.Left, b.Left-a.Left) <= 20 // cmp wants it symmetric
	})
	if diff := cmp.Diff(want, got, near); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
