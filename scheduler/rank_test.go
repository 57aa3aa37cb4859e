package scheduler_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/scheduler"
)

// ranked is an endpoint a of so many ranks.
func ranked(ranks, maxConcurrency int) scheduler.Endpoint {
	p := endpoint("a", maxConcurrency)
	p.Ranks = ranks
	return p
}

// rankOf is which rank a lease is for; "" where it names none.
func rankOf(l scheduler.Lease) string {
	for _, h := range l.Targets()[0].Headers {
		if h[0] == "X-Data-Parallel-Rank" {
			return h[1]
		}
	}
	return ""
}

func TestEachRankHasItsOwnLoadAndPrefix(t *testing.T) {
	t.Parallel()
	e := judged(t, scheduler.Config{}, ranked(2, 2))
	first := take(t, e, prompted("1", 6400, "one"))
	second := take(t, e, prompted("2", 6400, "two"))
	if rankOf(first) == rankOf(second) || at(first) != "a" || at(second) != "a" {
		t.Fatalf("ranks %s and %s of %s and %s, want one of each of a", rankOf(first), rankOf(second), at(first), at(second))
	}
	for i, l := range []scheduler.Lease{second, first} {
		l.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
		r := prompted(fmt.Sprint("turn ", i), 6400, []string{"two", "one"}[i])
		if again := take(t, e, r); rankOf(again) != rankOf(l) || expected(t, e, r.ID) != 6400 {
			t.Errorf("a turn went to rank %s with %d tokens cached, want the %s that has its prompt", rankOf(again), expected(t, e, r.ID), rankOf(l))
		}
	}
	s := e.State().Endpoints
	if len(s) != 1 || s[0].Live != 4 || s[0].MaxConcurrency != 4 || len(s[0].Ranks) != 2 || s[0].Ranks[1].Live != 2 {
		t.Errorf("state %+v, want one endpoint with all of its ranks", s)
	}
	audit(t, e)
}

func TestRanksShareHealthAndCircuit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := judged(t, scheduler.Config{TTL: time.Minute, NoEndpointTTL: time.Second, Breaker: scheduler.Breaker{Faults: 2, Backoff: 5 * time.Second}}, ranked(3, 4))
		take(t, e, of("f")).End(scheduler.Outcome{Result: scheduler.EndpointFault})
		take(t, e, of("f")).End(scheduler.Outcome{Result: scheduler.EndpointFault})
		a := <-send(t.Context(), e, of("f")) // whichever rank it is for
		if a.err != nil || a.after != 5*time.Second {
			t.Fatalf("got %v after %v, want the trial after the backoff of all ranks", a.err, a.after)
		}
		blocked := send(t.Context(), e, of("f"))
		synctest.Wait()
		a.lease.End(scheduler.Outcome{}) // the trial speaks for all
		if b := <-blocked; b.err != nil {
			t.Error(b.err)
		}
		e.SetHealth("a", scheduler.Unhealthy)
		expectAt(t, send(t.Context(), e, of("f")), scheduler.NoEndpoints, time.Second)
		audit(t, e)
	})
}

func TestARankIsToldItsLoad(t *testing.T) {
	t.Parallel()
	queue := scheduler.Profile{Scorers: []scheduler.Scorer{{Kind: "queue-scorer", Weight: 1}}}
	e := judged(t, scheduler.Config{Profile: queue}, ranked(2, 8))
	e.SetLoad("a#0", scheduler.Load{Waiting: 9, At: time.Now()})
	e.SetLoad("a#1", scheduler.Load{Waiting: 1, At: time.Now()})
	for range 4 {
		if l := take(t, e, of("f")); rankOf(l) != "1" {
			t.Errorf("sent to rank %s, want the one with the shorter queue", rankOf(l))
		}
	}
	e.SetLoad("a", scheduler.Load{Waiting: 4, Running: 3, Blocks: 100, BlockSize: 16, KVUsage: 0.5, At: time.Now()})
	var got []scheduler.Load
	for _, r := range e.State().Endpoints[0].Ranks {
		r.Load.At = time.Time{}
		got = append(got, r.Load)
	}
	want := scheduler.Load{Waiting: 2, Running: 2, Blocks: 50, BlockSize: 16, KVUsage: 0.5}
	if diff := cmp.Diff([]scheduler.Load{want, want}, got); diff != "" {
		t.Errorf("what one says of all its ranks (-want +got):\n%s", diff)
	}
}

func TestBothLegsOfAPairAreOfOneRank(t *testing.T) {
	t.Parallel()
	server := func(id, role string, ranks int) scheduler.Endpoint {
		p := placed(id, role, "", 8)
		p.Ranks = ranks
		return p
	}
	for _, tt := range []struct {
		name    string
		prefill int
		want    map[string]bool // ranks of answers that have their prompts computed apart
	}{
		{"as many", 2, map[string]bool{"0": true, "1": true}},
		{"fewer", 1, map[string]bool{"0": true, "1": false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := judged(t, scheduler.Config{}, server("d", "decode", 2), server("p", "prefill", tt.prefill))
			got := map[string]bool{}
			for i := range 4 {
				l := take(t, e, prompted(fmt.Sprint(i), 6400, fmt.Sprintf("text %d.", i)))
				got[rankOf(l)] = computes(l.Targets()[0]) == "p"
				if d, _ := e.Decision(fmt.Sprint(i)); got[rankOf(l)] && tt.prefill > 1 && d.Prefill != "p#"+rankOf(l) {
					t.Errorf("rank %s has its prompt computed by %s", rankOf(l), d.Prefill)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("computed apart, by rank (-want +got):\n%s", diff)
			}
			audit(t, e)
		})
	}
}

func TestAnEndpointMayGetMoreRanksAndLoseThem(t *testing.T) {
	t.Parallel()
	e := judged(t, scheduler.Config{}, ranked(1, 2))
	held := []scheduler.Lease{take(t, e, of("f"))}
	for _, ranks := range []int{3, 2, 1, 2} {
		e.SetEndpoints([]scheduler.Endpoint{ranked(ranks, 2)})
		r := of("f")
		r.TTL = -1
		for {
			l, err := e.Schedule(t.Context(), r)
			if err != nil {
				break
			}
			held = append(held, l)
		}
		audit(t, e)
	}
	for _, l := range held {
		l.End(scheduler.Outcome{OutputTokens: 1})
	}
	if s := e.State(); s.Live != 0 || len(s.Endpoints) != 1 || s.Endpoints[0].Health != scheduler.Healthy {
		t.Errorf("%d leases at %+v, want one endpoint, healthy and idle", s.Live, s.Endpoints)
	}
	audit(t, e)
}

func TestATrialOnARankThatIsNoMoreEndsWithTheRank(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := judged(t, scheduler.Config{TTL: time.Minute, NoEndpointTTL: time.Minute, Breaker: scheduler.Breaker{Faults: 1, Backoff: time.Second, MaxBackoff: time.Second}}, ranked(2, 4))
		l := take(t, e, of("f"))
		for tries := 0; ; tries++ {
			l.End(scheduler.Outcome{Result: scheduler.EndpointFault})
			a := <-send(t.Context(), e, of("f")) // the trial of an open circuit
			if l = a.lease; a.err != nil || tries > 10 {
				t.Fatalf("no trial on rank 1: %v", a.err)
			}
			if rankOf(l) == "1" {
				break
			}
		}
		e.SetEndpoints([]scheduler.Endpoint{ranked(1, 4)})
		l.End(scheduler.Outcome{Result: scheduler.Abandoned})
		if a := <-send(t.Context(), e, of("f")); a.err != nil || a.after > 2*time.Second {
			t.Errorf("after the trial's end: %v after %s, want another trial", a.err, a.after)
		} else {
			a.lease.End(scheduler.Outcome{Result: scheduler.Completed})
		}
		audit(t, e)
	})
}
