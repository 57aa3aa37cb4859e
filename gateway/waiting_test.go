package gateway_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/gateway"
	"weir/scheduler"
	"weir/tenants"
)

// busy fills the pool and returns a function that gives all of it back.
func busy(t *testing.T, h *house) (free func()) {
	t.Helper()
	var held []scheduler.Lease
	for range 8 {
		l, err := h.pools.queue.Schedule(t.Context(), scheduler.Request{Flow: scheduler.Flow{FairnessID: "other", Band: 10}})
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, l)
	}
	return func() {
		for _, l := range held {
			l.End(scheduler.Outcome{})
		}
	}
}

// names lists the ids of what waits.
func names(list []gateway.Waiting) (ids []string) {
	for _, w := range list {
		ids = append(ids, w.ID)
	}
	return ids
}

func TestAProjectSeesItsOwnWaitingRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := build(t, []string{"http://engine.test"}, shared, func(h *house) { h.plan.Limits.Concurrency = 0 })
		free := busy(t, h)
		ctx, leave := context.WithCancel(t.Context())
		ends := make(chan error)
		begin := func(id, tenant, project string, change func(*gateway.Call)) {
			c := h.call(change)
			p := *c.Principal
			c.ID, p.Tenant, p.Project = id, tenants.ID(tenant), tenants.ProjectID(project)
			c.Principal = &p
			go func() { ends <- h.Run(ctx, c, &caller{}) }()
			synctest.Wait()
		}
		begin("req_1", "ten_a", "prj_a", nil)
		<-time.After(2 * time.Second)
		begin("req_2", "ten_a", "prj_a", func(c *gateway.Call) { c.ClientRequestID, c.Tier, c.Model = "job-7", tenants.TierPriority, "nick" })
		begin("req_3", "ten_a", "prj_b", nil)
		begin("req_4", "ten_b", "prj_a", nil)
		<-time.After(time.Second)

		ours := &tenants.Principal{Tenant: "ten_a", Project: "prj_a"}
		list, more := h.Waiting(ours, "", 10)
		if len(list) != 2 || more {
			t.Fatalf("shown %v, more %v", names(list), more)
		}
		second := list[1]
		if second.Position == nil {
			t.Fatal("the scheduler knows no position")
		}
		second.Position, second.Since = nil, time.Time{}
		want := gateway.Waiting{ID: "req_2", ClientRequestID: "job-7", Model: "pub", Pool: poolName, Band: "fast", Tier: tenants.TierPriority, Waited: time.Second}
		if diff := cmp.Diff(want, second); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		if first := list[0]; first.Waited != 3*time.Second || first.Position.Ahead < 1 || first.Position.Waited != 3*time.Second {
			t.Errorf("the older one, of a lower band: %+v, %+v", first, first.Position)
		}
		for _, row := range []struct {
			name string
			p    *tenants.Principal
			id   string
			most int
			want []string
			more bool
		}{
			{"by the caller's own name", ours, "job-7", 10, []string{"req_2"}, false},
			{"by ours", ours, "req_1", 10, []string{"req_1"}, false},
			{"another project's", ours, "req_3", 10, nil, false},
			{"another tenant's, whose project has the same id", ours, "req_4", 10, nil, false},
			{"the oldest first, and that there are more", ours, "", 1, []string{"req_1"}, true},
			{"of models that the key may use", &tenants.Principal{Tenant: "ten_a", Project: "prj_a", Models: []string{"vectors"}}, "", 10, nil, false},
			{"a tenant without any", &tenants.Principal{Tenant: "ten_c", Project: "prj_a"}, "", 10, nil, false},
		} {
			list, more := h.Waiting(row.p, row.id, row.most)
			if diff := cmp.Diff(row.want, names(list)); diff != "" || more != row.more {
				t.Errorf("%s: more %v (-want +got)\n%s", row.name, more, diff)
			}
		}
		if w, waits := h.WaitingRequest("req_4"); !waits || w.Pool != poolName {
			t.Errorf("an operator finds %+v, %v", w, waits)
		}

		leave()
		for range 4 {
			if got := causeOf(<-ends); got != gateway.ClientGone {
				t.Errorf("ended as %s", got)
			}
		}
		free()
		if list, _ := h.Waiting(ours, "", 10); len(list) != 0 {
			t.Errorf("after all have left, %v wait", names(list))
		}
		if _, waits := h.WaitingRequest("req_4"); waits {
			t.Error("an operator sees one that has left")
		}
	})
}

// However requests come and go, those that are left are shown in their order.
func TestTheListOfTheWaitingLosesNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := build(t, []string{"http://engine.test"}, func(h *house) { h.plan.Limits.Concurrency = 0 })
		free := busy(t, h)
		defer free()
		ours := &tenants.Principal{Tenant: "ten_a", Project: "prj_a"}
		const n = 7
		leave, left := make([]context.CancelFunc, n), make(chan error, n)
		for i := range n {
			var ctx context.Context
			ctx, leave[i] = context.WithCancel(t.Context())
			go func() {
				left <- h.Run(ctx, h.call(func(c *gateway.Call) { c.ID = fmt.Sprintf("req_%d", i) }), &caller{})
			}()
			synctest.Wait()
		}
		want := []string{"req_0", "req_1", "req_2", "req_3", "req_4", "req_5", "req_6"}
		asked := 0
		for ; asked < 1000; asked++ {
			if list, _ := h.Waiting(ours, "", n); list[n-1].Position == nil {
				break
			}
		}
		if asked < 10 || asked > 100 {
			t.Errorf("after %d times in no time, positions are not shown any more", asked)
		}
		<-time.After(time.Second)
		if list, _ := h.Waiting(ours, "", n); list[n-1].Position == nil {
			t.Error("a second later they still are not")
		}
		for _, i := range []int{3, 0, 6, 2, 4, 5, 1} { // middle, first, last, beside a gap, ..., the only one
			leave[i]()
			if got := causeOf(<-left); got != gateway.ClientGone {
				t.Errorf("ended as %s", got)
			}
			for at, id := range want {
				if id == fmt.Sprintf("req_%d", i) {
					want = append(want[:at:at], want[at+1:]...)
					break
				}
			}
			list, _ := h.Waiting(ours, "", n)
			if got := names(list); !cmp.Equal(got, want) && len(got)+len(want) > 0 {
				t.Fatalf("after req_%d left: %v, want %v", i, got, want)
			}
		}
	})
}

// A scheduler elsewhere may not tell where a request stands.
func TestAWaitingRequestIsShownWithoutItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := build(t, []string{"http://engine.test"})
		h.pools.mute = true
		free := busy(t, h)
		ctx, leave := context.WithCancel(t.Context())
		end := make(chan error)
		go func() { end <- h.Run(ctx, h.call(nil), &caller{}) }()
		synctest.Wait()
		list, _ := h.Waiting(&tenants.Principal{Tenant: "ten_a", Project: "prj_a"}, "", 1)
		if len(list) != 1 || list[0].Position != nil {
			t.Errorf("shown %+v", list)
		}
		leave()
		if got := causeOf(<-end); got != gateway.ClientGone {
			t.Errorf("ended as %s", got)
		}
		free()
	})
}
