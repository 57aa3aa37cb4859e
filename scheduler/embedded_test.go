package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/scheduler"
)

// answer is what a request got, and when.
type answer struct {
	lease scheduler.Lease
	err   error
	after time.Duration
}

func (a answer) reason() scheduler.Reason {
	if r, ok := errors.AsType[*scheduler.Refusal](a.err); ok {
		return r.Reason
	}
	return ""
}

// send schedules r and delivers the answer on a channel.
func send(ctx context.Context, s scheduler.Scheduler, r scheduler.Request) <-chan answer {
	c, began := make(chan answer, 1), time.Now()
	go func() {
		l, err := s.Schedule(ctx, r)
		c <- answer{l, err, time.Since(began)}
	}()
	return c
}

func of(fairnessID string) scheduler.Request {
	return scheduler.Request{Flow: scheduler.Flow{FairnessID: fairnessID}, InputTokens: 10, OutputTokens: 10}
}

func endpoint(id string, maxConcurrency int) scheduler.Endpoint {
	return scheduler.Endpoint{ID: id, URL: "http://" + id + ".test", MaxConcurrency: maxConcurrency}
}

// healthy builds a scheduler whose endpoints a probe has found healthy.
func healthy(t *testing.T, cfg scheduler.Config, endpoints ...scheduler.Endpoint) embedded {
	t.Helper()
	e := embedded{scheduler.New(cfg, nil)}
	t.Cleanup(e.Close)
	e.SetEndpoints(endpoints)
	return e
}

// take schedules where no wait is due.
func take(t *testing.T, e embedded, r scheduler.Request) scheduler.Lease {
	t.Helper()
	l, err := e.Schedule(t.Context(), r)
	if err != nil {
		t.Fatalf("schedule: %v", err)
	}
	return l
}

func expectAt(t *testing.T, c <-chan answer, want scheduler.Reason, after time.Duration) {
	t.Helper()
	a := <-c
	if a.reason() != want || a.after != after {
		t.Errorf("got %v after %v, want %s after %v", a.err, a.after, want, after)
	}
}

// A queue that is full while nobody serves it says so, and a refusal tells
// whether the request had been in the queue.
func TestAFullQueueWithoutEndpointsIsNoEndpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{MaxQueued: 1, NoEndpointTTL: time.Minute})
		first := send(t.Context(), e, of("f"))
		synctest.Wait()
		second := <-send(t.Context(), e, of("f"))
		if r := refusalOf(t, second.err); r.Reason != scheduler.NoEndpoints || r.Waited {
			t.Errorf("the one too many got %+v", r)
		}
		if r := refusalOf(t, (<-first).err); r.Reason != scheduler.NoEndpoints || !r.Waited {
			t.Errorf("the one in the queue got %+v", r)
		}
		e.SetEndpoints([]scheduler.Endpoint{endpoint("a", 1)})
		take(t, e, of("f"))
		third := send(t.Context(), e, of("f"))
		synctest.Wait()
		if r := refusalOf(t, (<-send(t.Context(), e, of("f"))).err); r.Reason != scheduler.PoolFull || r.Waited {
			t.Errorf("the one too many of a busy pool got %+v", r)
		}
		if r := refusalOf(t, (<-third).err); r.Reason != scheduler.QueueTimeout || !r.Waited {
			t.Errorf("the one in its queue got %+v", r)
		}
	})
}

func refusalOf(t *testing.T, err error) *scheduler.Refusal {
	t.Helper()
	r, ok := errors.AsType[*scheduler.Refusal](err)
	if !ok {
		t.Fatalf("%v is no refusal", err)
	}
	return r
}

func TestTimeLimitsAreExact(t *testing.T) {
	t.Parallel()
	const forever = 1<<63 - 1
	tests := []struct {
		name   string
		cfg    scheduler.Config
		ttl    time.Duration
		none   bool // the pool has no endpoint
		want   scheduler.Reason
		after  time.Duration
		cancel time.Duration
	}{
		{name: "a minute where none is named", want: scheduler.QueueTimeout, after: time.Minute},
		{name: "the pool's", cfg: scheduler.Config{TTL: 1500 * time.Millisecond}, want: scheduler.QueueTimeout, after: 1500 * time.Millisecond},
		{name: "the request's, if shorter", ttl: 7 * time.Millisecond, want: scheduler.QueueTimeout, after: 7 * time.Millisecond},
		{name: "the pool's, if the request's is huge", ttl: forever, want: scheduler.QueueTimeout, after: time.Minute},
		{name: "a negative one of the request waits not at all", ttl: -time.Second, want: scheduler.QueueTimeout},
		{name: "a huge one of the pool is none in practice", cfg: scheduler.Config{TTL: forever}, cancel: 1000 * time.Hour, want: scheduler.Cancelled, after: 1000 * time.Hour},
		{name: "a negative one of the pool leaves it to the caller", cfg: scheduler.Config{TTL: -1}, cancel: 1000 * time.Hour, want: scheduler.Cancelled, after: 1000 * time.Hour},
		{name: "a negative one of the pool leaves the request's", cfg: scheduler.Config{TTL: -1}, ttl: time.Hour, want: scheduler.QueueTimeout, after: time.Hour},
		{name: "an empty pool has the same limit", none: true, want: scheduler.NoEndpoints, after: time.Minute},
		{name: "an empty pool's own limit", cfg: scheduler.Config{NoEndpointTTL: 5 * time.Minute}, none: true, want: scheduler.NoEndpoints, after: 5 * time.Minute},
		{name: "an empty pool that refuses at once", cfg: scheduler.Config{NoEndpointTTL: -1}, none: true, want: scheduler.NoEndpoints},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if tt.cancel > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.cancel)
					defer cancel()
				}
				e := healthy(t, tt.cfg)
				if !tt.none {
					e.SetEndpoints([]scheduler.Endpoint{endpoint("a", 1)})
					take(t, e, of("f"))
				}
				r := of("f")
				r.TTL = tt.ttl
				expectAt(t, send(ctx, e, r), tt.want, tt.after)
				if n := e.Queued(); n != 0 {
					t.Errorf("%d still queued", n)
				}
			})
		})
	}
}

func TestWaitBeginsAnewWhenThePoolFillsOrEmpties(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{TTL: time.Minute, NoEndpointTTL: 10 * time.Minute})
		busy := send(t.Context(), e, of("f"))
		synctest.Wait()
		waits := send(t.Context(), e, of("f"))
		synctest.Wait()

		synctest.Sleep(5 * time.Minute) // longer than TTL: the pool is starting
		e.SetEndpoints([]scheduler.Endpoint{endpoint("a", 1)})
		if a := <-busy; a.err != nil {
			t.Fatalf("the first was refused when the endpoint came: %v", a.err)
		}
		expectAt(t, waits, scheduler.QueueTimeout, 6*time.Minute)
	})
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{TTL: time.Minute, NoEndpointTTL: 10 * time.Second}, endpoint("a", 1))
		take(t, e, of("f"))
		waits := send(t.Context(), e, of("f"))
		synctest.Sleep(30 * time.Second)
		e.SetHealth("a", scheduler.Unhealthy)
		expectAt(t, waits, scheduler.NoEndpoints, 40*time.Second)
	})
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{TTL: time.Minute, NoEndpointTTL: 30 * time.Second}, endpoint("a", 1))
		take(t, e, of("f"))
		flaps := send(t.Context(), e, of("f"))
		for range 100 { // never long enough for one limit
			synctest.Sleep(time.Second)
			e.SetHealth("a", scheduler.Unhealthy)
			synctest.Sleep(time.Second)
			e.SetHealth("a", scheduler.Healthy)
		}
		if a := <-flaps; a.after != 90*time.Second {
			t.Errorf("with a flapping endpoint the wait took %v, want both limits together, 90 s", a.after)
		}
	})
}

func TestAllUnhealthyWaitsAndRecovers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{}, endpoint("a", 1), endpoint("b", 1))
		e.SetHealth("a", scheduler.Unhealthy)
		e.SetHealth("b", scheduler.Unhealthy)
		lost := of("f")
		lost.TTL = time.Second
		expectAt(t, send(t.Context(), e, lost), scheduler.NoEndpoints, time.Second)

		saved := send(t.Context(), e, of("f"))
		synctest.Sleep(30 * time.Second)
		e.SetHealth("b", scheduler.Healthy)
		if a := <-saved; a.err != nil || a.lease.Targets()[0].Endpoint != "b" || a.after != 30*time.Second {
			t.Errorf("got %+v, want the endpoint that recovered, at once", a)
		}
	})
}

// The bubble ends only when every goroutine in it has: one that stays behind
// fails the test.
func TestCancellingTenThousandLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, policy := range []scheduler.FairnessPolicy{
		scheduler.VirtualTokenCounter, scheduler.GlobalStrict, scheduler.RoundRobin, scheduler.LeastAttainedService, scheduler.TurnPriority,
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { cancelTenThousand(t, policy) })
		})
	}
}

func cancelTenThousand(t *testing.T, policy scheduler.FairnessPolicy) {
	t.Helper()
	e := healthy(t, scheduler.Config{
		MaxQueued: 1 << 20, MaxBandQueued: 1 << 20, MaxFlowQueued: 1 << 20,
		DefaultBand: scheduler.BandConfig{MinShare: 0.2, Fairness: scheduler.Fairness{Policy: policy}},
	}, endpoint("a", 1))
	running := take(t, e, of("f"))
	ctx, cancel := context.WithCancel(t.Context())
	const n = 10_000
	var answers []<-chan answer
	for i := range n {
		r := of(fmt.Sprintf("f%d", i%100))
		r.ID, r.Flow.Band, r.Body, r.Reserved = fmt.Sprint(i), i%3, make([]byte, i%10), i%2*100
		r.Session = fmt.Sprintf("s%d", i%1000)
		answers = append(answers, send(ctx, e, r))
	}
	synctest.Wait()
	if got := e.Queued(); got != n {
		t.Fatalf("%d queued, want %d", got, n)
	}
	cancel()
	for _, c := range answers {
		if a := <-c; a.reason() != scheduler.Cancelled {
			t.Fatalf("got %+v, want a refusal as cancelled", a)
		}
	}
	synctest.Wait()
	if s := e.State(); s.Queued != 0 || s.Live != 1 {
		t.Errorf("%d queued and %d live, want 0 and 1", s.Queued, s.Live)
	}
	running.End(scheduler.Outcome{})
	if err := e.Left(); err != nil {
		t.Error(err)
	}
	take(t, e, of("g")).End(scheduler.Outcome{})
}

func TestOpenCircuitLetsOneRequestTry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{}, endpoint("a", 8))
		fault := scheduler.Outcome{Result: scheduler.EndpointFault}
		for range 3 {
			take(t, e, of("f")).End(fault)
		}
		if got := e.State().Endpoints[0].Circuit; got != scheduler.CircuitOpen {
			t.Fatalf("circuit is %v after three faults, want open", got)
		}
		first := send(t.Context(), e, of("f"))
		synctest.Wait()
		second := send(t.Context(), e, of("f"))
		trial := <-first
		if trial.after != time.Second {
			t.Errorf("the trial went after %v, want the backoff of 1 s", trial.after)
		}
		synctest.Sleep(10 * time.Second)
		if s := e.State(); s.Live != 1 || s.Queued != 1 || s.Endpoints[0].Circuit != scheduler.CircuitHalfOpen {
			t.Errorf("while the trial runs: %d live, %d queued, circuit %v; want 1, 1, half open", s.Live, s.Queued, s.Endpoints[0].Circuit)
		}
		trial.lease.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
		synctest.Wait()
		if s := e.State(); s.Live != 2 || s.Endpoints[0].Circuit != scheduler.CircuitClosed {
			t.Errorf("after the trial's first token: %d live, circuit %v; want 2 and closed", s.Live, s.Endpoints[0].Circuit)
		}
		if a := <-second; a.err != nil || a.after != 11*time.Second {
			t.Errorf("the second got %+v, want a lease with the trial's first token", a)
		}
	})
}

func TestBrokenPoolRefusesAsWithoutEndpoints(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{Breaker: scheduler.Breaker{Backoff: time.Hour, MaxBackoff: time.Hour}}, endpoint("a", 8))
		for range 3 {
			take(t, e, of("f")).End(scheduler.Outcome{Result: scheduler.EndpointFault})
		}
		expectAt(t, send(t.Context(), e, of("f")), scheduler.NoEndpoints, time.Minute)
	})
}

func TestOverloadedEndpointRestsThenServesWhoWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{OverloadPause: 200 * time.Millisecond}, endpoint("a", 8))
		take(t, e, of("f")).End(scheduler.Outcome{Result: scheduler.Overloaded})
		if a := <-send(t.Context(), e, of("f")); a.err != nil || a.after != 200*time.Millisecond {
			t.Errorf("got %+v, want a lease after the pause of 200 ms", a)
		}
	})
}

func TestEndpointChangesKeepQueueAndLeases(t *testing.T) {
	t.Parallel()
	ids := func(e embedded) []string {
		var ids []string
		for _, p := range e.State().Endpoints {
			ids = append(ids, fmt.Sprintf("%s:%d/%d draining=%v", p.ID, p.Live, p.MaxConcurrency, p.Draining))
		}
		return ids
	}
	expect := func(t *testing.T, e embedded, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, ids(e)); diff != "" {
			t.Errorf("endpoints (-want +got):\n%s", diff)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{}, endpoint("a", 1))
		onA := take(t, e, of("f"))
		waits := []<-chan answer{send(t.Context(), e, of("f")), send(t.Context(), e, of("f"))}
		synctest.Wait()

		e.SetEndpoints([]scheduler.Endpoint{endpoint("b", 1)}) // a leaves, b comes
		synctest.Wait()
		expect(t, e, "b:1/1 draining=false", "a:1/1 draining=true")

		e.SetEndpoints([]scheduler.Endpoint{endpoint("b", 2)}) // b grows
		for _, c := range waits {
			if a := <-c; a.err != nil || a.lease.Targets()[0].Endpoint != "b" {
				t.Errorf("got %+v, want b", a)
			}
		}
		expect(t, e, "b:2/2 draining=false", "a:1/1 draining=true")

		e.SetEndpoints([]scheduler.Endpoint{endpoint("b", 2), endpoint("a", 1)}) // a returns with what runs on it
		expect(t, e, "b:2/2 draining=false", "a:1/1 draining=false")

		moved := endpoint("a", 1)
		moved.URL = "http://elsewhere.test"
		e.SetEndpoints([]scheduler.Endpoint{endpoint("b", 2), moved}) // another server by that name
		expect(t, e, "b:2/2 draining=false", "a:0/1 draining=false", "a:1/1 draining=true")
		if l := take(t, e, of("f")); l.Targets()[0].URL != moved.URL {
			t.Errorf("went to %s, want the new server", l.Targets()[0].URL)
		}
		onA.End(scheduler.Outcome{})
		expect(t, e, "b:2/2 draining=false", "a:1/1 draining=false")

		draining := endpoint("b", 2)
		draining.Draining = true
		e.SetEndpoints([]scheduler.Endpoint{draining})
		r := of("f")
		r.TTL = time.Second
		expectAt(t, send(t.Context(), e, r), scheduler.NoEndpoints, time.Second)
	})
}

func TestUnjudgedEndpointTakesLimitedTraffic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := embedded{scheduler.New(scheduler.Config{}, nil)}
		defer e.Close()
		e.Embedded.SetEndpoints([]scheduler.Endpoint{endpoint("a", 8), endpoint("a", 100)})
		var answers []<-chan answer
		for range 8 {
			answers = append(answers, send(t.Context(), e, of("f")))
		}
		synctest.Wait()
		if s := e.State(); s.Live != 2 || s.Queued != 6 || len(s.Endpoints) != 1 {
			t.Fatalf("%d live and %d queued on %d endpoints, want 2, 6 and 1", s.Live, s.Queued, len(s.Endpoints))
		}
		e.SetHealth("a", scheduler.Healthy)
		e.SetHealth("gone", scheduler.Healthy)
		for _, c := range answers {
			if a := <-c; a.err != nil {
				t.Errorf("refused: %v", a.err)
			}
		}
	})
}

func TestTiesRotate(t *testing.T) {
	t.Parallel()
	e := healthy(t, scheduler.Config{}, endpoint("a", 8), endpoint("b", 8), endpoint("c", 8))
	var got []string
	for range 6 {
		l := take(t, e, of("f"))
		got = append(got, l.Targets()[0].Endpoint)
		l.End(scheduler.Outcome{})
	}
	if want := []string{"a", "b", "c", "a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("an idle pool's endpoints were taken in the order %v, want %v", got, want)
	}
}

func TestLoadIsRelativeToWhatAnEndpointTakes(t *testing.T) {
	t.Parallel()
	e := healthy(t, scheduler.Config{}, endpoint("small", 2), endpoint("large", 20))
	on := map[string]int{}
	for range 11 {
		on[take(t, e, of("f")).Targets()[0].Endpoint]++
	}
	if on["small"] != 1 || on["large"] != 10 {
		t.Errorf("half a pool's load lies as %v, want 1 on the small and 10 on the large", on)
	}
}

func TestStateTellsWhatWaitsAndRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{MaxFlowQueued: 1}, endpoint("a", 2))
		high := of("x")
		high.Flow.Band, high.Weight = 10, 3
		take(t, e, high)
		l := take(t, e, of("y"))
		waits := send(t.Context(), e, of("y"))
		synctest.Wait()
		if a := <-send(t.Context(), e, of("y")); a.reason() != scheduler.FlowFull {
			t.Errorf("got %v, want the flow full", a.err)
		}
		synctest.Sleep(4 * time.Second)
		ignored := cmp.FilterPath(func(p cmp.Path) bool {
			name := p.Last().String()
			return name == ".Served" || name == ".DispatchedPerSec"
		}, cmp.Ignore())
		want := scheduler.State{
			Queued: 1, Live: 2, Saturation: 1, Populated: true, MaxQueued: 10_000,
			Stages: []scheduler.StageState{{Stage: "decode", Saturation: 1}}, Stale: 1, Detector: scheduler.ConcurrencyDetector,
			Cycles: scheduler.Timing{Counts: [11]uint64{4}}, // one for each that came
			Bands: []scheduler.BandState{
				{
					Priority: 10, MaxQueued: 5000, MaxBytes: 1e9, Live: 1, Ceiling: 1, Dispatched: 1, Refused: map[scheduler.Reason]uint64{},
					Flows: []scheduler.FlowState{{FairnessID: "x", Weight: 3, Live: 1}},
				},
				{
					Queued: 1, MaxQueued: 5000, MaxBytes: 1e9, Enqueued: scheduler.Timing{Counts: [11]uint64{1}}, Live: 1, Ceiling: 1, Dispatched: 1, Refused: map[scheduler.Reason]uint64{scheduler.FlowFull: 1},
					Flows: []scheduler.FlowState{{FairnessID: "y", Weight: 1, Queued: 1, Live: 1}},
				},
			},
			Endpoints: []scheduler.EndpointState{{ID: "a", URL: "http://a.test", MaxConcurrency: 2, Limit: 2, Live: 2, Tokens: 20, Health: scheduler.Healthy}},
		}
		if diff := cmp.Diff(want, e.State(), ignored); diff != "" {
			t.Errorf("state (-want +got):\n%s", diff)
		}
		l.End(scheduler.Outcome{})
		<-waits
		if b := e.State().Bands[1]; b.Waited != 4*time.Second || b.Dispatched != 2 {
			t.Errorf("%d dispatched after %v, want 2 after 4 s", b.Dispatched, b.Waited)
		}
	})
}

//nolint:paralleltest // allocations of other tests would be counted
func TestFastPathAllocatesTheLeaseAlone(t *testing.T) {
	if raced {
		t.Skip("under the race detector the scratch of a prompt isn't always found again")
	}
	const remembered = 16
	e := healthy(t, scheduler.Config{Decisions: remembered}, endpoint("a", 8), endpoint("b", 8))
	ctx, r := t.Context(), of("f")
	r.Prompt = [][]byte{make([]byte, 10_000)}
	decide := func() {
		l, err := e.Schedule(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		l.Observe(scheduler.Progress{Kind: scheduler.FirstToken})
		l.End(scheduler.Outcome{Result: scheduler.Completed, InputTokens: 10, OutputTokens: 10})
	}
	for range 2 * remembered { // what is kept of a decision is kept in the place of an older one
		decide()
	}
	got := testing.AllocsPerRun(100, decide)
	if got > 2 { // the lease, and the request that it was made from
		t.Errorf("%v allocations for a decision, want at most 2", got)
	}
}
