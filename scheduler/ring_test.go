package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"weir/scheduler"
)

func named(id string, r scheduler.Request) scheduler.Request {
	r.ID = id
	return r
}

// found returns a decision without what the picker says of candidates.
func found(t *testing.T, e embedded, id string) scheduler.Decision {
	t.Helper()
	d, ok := e.Decision(id)
	if !ok {
		t.Fatalf("no decision on %s", id)
	}
	d.Candidates, d.Left, d.Considered = nil, nil, 0
	return d
}

func TestDecisionsTellWhyARequestWaitedAndWhereItWent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		e := healthy(t, scheduler.Config{
			Bands: bands(5, 0), UsageLimit: scheduler.UsageLimit{Kind: scheduler.PriorityHoldback, MinCeiling: 0.5}, MaxFlowQueued: 2,
		}, endpoint("a", 2))
		first := take(t, e, named("first", in(0, "x")))
		ceiling := send(t.Context(), e, named("ceiling", in(0, "x")))
		synctest.Wait()
		order := send(t.Context(), e, named("order", in(0, "x")))
		synctest.Wait()
		_, refused := e.Schedule(t.Context(), named("refused", in(0, "x")))
		if refused == nil {
			t.Fatal("the flow's cap let three wait")
		}
		take(t, e, named("high", in(5, "y")))
		ctx, leave := context.WithCancelCause(t.Context())
		full := send(ctx, e, named("full", in(5, "y")))
		synctest.Wait()
		synctest.Sleep(2 * time.Second)
		leave(errors.New("gone"))
		<-full
		first.End(scheduler.Outcome{})
		synctest.Sleep(time.Second)
		e.SetConfig(scheduler.Config{})
		synctest.Wait()
		(<-ceiling).lease.End(scheduler.Outcome{})
		<-order

		x := scheduler.Decision{FairnessID: "x", EnteredAt: began, InputTokens: 10, Saturation: 0.5, Ceiling: 1, Endpoint: "a"}
		want := map[string]func(*scheduler.Decision){
			"first": func(d *scheduler.Decision) {
				d.Saturation, d.Ceiling, d.Why = 0, 0.5, "dispatched at once; went to a"
			},
			"high": func(d *scheduler.Decision) {
				d.FairnessID, d.Band, d.Why = "y", 5, "dispatched at once; went to a"
			},
			"ceiling": func(d *scheduler.Decision) {
				d.Waited, d.Held, d.HeldSaturation, d.HeldCeiling = 3*time.Second, scheduler.HeldByCeiling, 0.5, 0.5
				d.Why = "dispatched after 3s, held by the ceiling of its band (the pool was at 0.50, and band 0 may fill it to 0.50); went to a"
			},
			"order": func(d *scheduler.Decision) {
				d.Waited, d.Ahead, d.Queued = 3*time.Second, 1, 1
				d.Held, d.HeldSaturation, d.HeldCeiling = scheduler.HeldByEndpoints, 1, 1
				d.Why = "dispatched after 3s, held by its endpoints (the pool was full, at 1.00); went to a"
			},
			"refused": func(d *scheduler.Decision) {
				d.Ahead, d.Queued, d.Refused, d.Ceiling, d.Endpoint = 2, 2, scheduler.FlowFull, 0.5, ""
				d.Why = "refused as flow_full"
			},
			"full": func(d *scheduler.Decision) {
				d.FairnessID, d.Band, d.Queued, d.Refused, d.Endpoint = "y", 5, 2, scheduler.Cancelled, ""
				d.Waited, d.Saturation = 2*time.Second, 1
				d.Held, d.HeldSaturation, d.HeldCeiling = scheduler.HeldByEndpoints, 1, 1
				d.Why = "refused as cancelled after 2s, held by its endpoints (the pool was full, at 1.00)"
			},
		}
		for id, change := range want {
			d := x
			d.Request = id
			change(&d)
			if diff := cmp.Diff(d, found(t, e, id), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", id, diff)
			}
		}
		if _, ok := e.Decision("nobody"); ok {
			t.Error("a decision on a request that never came")
		}
	})
}

func TestDecisionsAreBoundedTheNewestFirst(t *testing.T) {
	t.Parallel()
	e := healthy(t, scheduler.Config{Decisions: 3}, endpoint("a", 100))
	ids := func(n int) string {
		var all []string
		for _, d := range e.Decisions(n) {
			all = append(all, d.Request)
		}
		return strings.Join(all, " ")
	}
	check := func(n int, want string) {
		t.Helper()
		if got := ids(n); got != want {
			t.Errorf("the latest %d are %q, want %q", n, got, want)
		}
	}
	check(10, "")
	for i := range 5 {
		take(t, e, named(fmt.Sprint(i), of("x")))
	}
	check(10, "4 3 2")
	check(2, "4 3")
	check(-1, "")
	e.SetConfig(scheduler.Config{Decisions: 5})
	take(t, e, named("5", of("x")))
	check(10, "5 4 3 2")
	e.SetConfig(scheduler.Config{Decisions: 2})
	check(10, "5 4")
	take(t, e, named("6", of("x")))
	check(10, "6 5")
	if _, ok := e.Decision("4"); ok {
		t.Error("a decision beyond the bound is remembered")
	}
	e.SetConfig(scheduler.Config{Decisions: -1})
	take(t, e, named("7", of("x")))
	check(10, "")
}

// What was read isn't changed by what comes later.
func TestADecisionThatWasReadIsTheReadersOwn(t *testing.T) {
	t.Parallel()
	e := healthy(t, scheduler.Config{Decisions: 1}, endpoint("a", 100), endpoint("b", 100))
	take(t, e, named("1", of("x")))
	got, _ := e.Decision("1")
	again, _ := e.Decision("1")
	for i := range 10 {
		take(t, e, named(fmt.Sprint(i+2), of("x")))
	}
	if diff := cmp.Diff(again, got); diff != "" {
		t.Errorf("changed afterwards (-before +after):\n%s", diff)
	}
}

//nolint:paralleltest // others' allocations would be counted
func TestADecisionIsRememberedWithoutAllocation(t *testing.T) {
	run := func(decisions int) float64 {
		e := healthy(t, scheduler.Config{Decisions: decisions}, endpoint("a", 4), endpoint("b", 4), endpoint("c", 4))
		r := named("1", of("x"))
		for range 100 { // until the ring has turned
			take(t, e, r).End(scheduler.Outcome{})
		}
		return testing.AllocsPerRun(1000, func() {
			l, _ := e.Schedule(context.Background(), r)
			l.End(scheduler.Outcome{})
		})
	}
	if with, without := run(8), run(-1); with > without {
		t.Errorf("%v allocations with records, %v without", with, without)
	}
}
