package scheduler_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/scheduler"
)

// drive keeps clients going for a time, each with one request after another,
// and counts by endpoint what was completed. An attempt takes as long as serve
// says, and ends as it says.
func drive(t *testing.T, e embedded, clients int, long time.Duration, serve func(endpoint string) (time.Duration, scheduler.Result)) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	var mu sync.Mutex
	done := map[string]int{}
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for ctx.Err() == nil {
				l, err := e.Schedule(ctx, of("x"))
				if err != nil {
					if ctx.Err() == nil {
						t.Errorf("refused: %v", err)
					}
					return
				}
				id := l.Targets()[0].Endpoint
				takes, result := serve(id)
				<-time.After(takes)
				l.End(scheduler.Outcome{Result: result, InputTokens: 10})
				if result == scheduler.Completed {
					mu.Lock()
					done[id]++
					mu.Unlock()
				}
			}
		})
	}
	running.Wait()
	if s := e.State(); s.Live != 0 || s.Queued != 0 {
		t.Errorf("%d live and %d queued at the end", s.Live, s.Queued)
	}
	return done
}

func completes(d time.Duration) func(string) (time.Duration, scheduler.Result) {
	return func(string) (time.Duration, scheduler.Result) { return d, scheduler.Completed }
}

func TestDispatchGoesOnWithoutScrapes(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"that never came": false, "that stopped": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := healthy(t, scheduler.Config{
					Detector: scheduler.Detector{Kind: scheduler.UtilizationDetector, Staleness: 200 * time.Millisecond},
				}, endpoint("a", 2), endpoint("b", 2))
				if before {
					for _, id := range []string{"a", "b"} {
						e.SetLoad(id, scheduler.Load{Waiting: 50, KVUsage: 1, At: time.Now()})
					}
					synctest.Sleep(time.Second)
				}
				calls := flood(t, e, of("x"), 6)
				if got := dispatched(t, calls); len(got) != 4 {
					t.Fatalf("%d were dispatched at once, want as many as the endpoints may take", len(got))
				} else {
					for _, l := range got {
						l.End(scheduler.Outcome{})
					}
				}
				if got := dispatched(t, calls); len(got) != 2 {
					t.Errorf("%d of those who waited were dispatched, want both", len(got))
				}
			})
		})
	}
}

func TestAHangingEndpointStopsNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{}, endpoint("hangs", 4), endpoint("b", 4), endpoint("c", 4))
		done := drive(t, e, 12, time.Minute, func(id string) (time.Duration, scheduler.Result) {
			if id == "hangs" {
				return 20 * time.Second, scheduler.EndpointFault // the time limit for the first byte
			}
			return 100 * time.Millisecond, scheduler.Completed
		})
		if done["hangs"] != 0 || done["b"]+done["c"] < 80*59 {
			t.Errorf("completed %v, want the 8 places of the others used for the whole minute", done)
		}
		if p := e.State().Endpoints[0]; p.Circuit == scheduler.CircuitClosed {
			t.Error("the circuit of an endpoint that never answers is closed")
		}
	})
}

func TestAFlappingEndpointLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{TTL: 5 * time.Second}, endpoint("flaps", 4), endpoint("b", 4))
		stop := make(chan struct{})
		var flapping sync.WaitGroup
		flapping.Go(func() {
			for h := scheduler.Unhealthy; ; h = scheduler.Healthy + scheduler.Unhealthy - h {
				e.SetHealth("flaps", h)
				select {
				case <-time.After(130 * time.Millisecond):
				case <-stop:
					return
				}
			}
		})
		done := drive(t, e, 16, 30*time.Second, completes(100*time.Millisecond))
		close(stop)
		flapping.Wait()
		if done["b"] < 40*29 || done["flaps"] < 40*10 {
			t.Errorf("completed %v, want b busy throughout, and the other while it was up", done)
		}
		if err := e.Audit(); err != nil {
			t.Error(err)
		}
	})
}

// What an endpoint says of itself, true or not, is never all that is known: a
// slow one that calls itself idle is found out by what we have sent there.
func TestInFlightCountsKeepWorkFromASlowLiar(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]scheduler.DetectorKind{
		"with our own detector": scheduler.ConcurrencyDetector, "with a detector that believes it": scheduler.UtilizationDetector,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := healthy(t, scheduler.Config{Detector: scheduler.Detector{Kind: kind}}, endpoint("slow", 8), endpoint("b", 8), endpoint("c", 8))
				stop := make(chan struct{})
				var scrapes sync.WaitGroup
				scrapes.Go(func() {
					for {
						e.SetLoad("slow", scheduler.Load{At: time.Now()})
						e.SetLoad("b", scheduler.Load{Running: 4, KVUsage: 0.5, At: time.Now()})
						e.SetLoad("c", scheduler.Load{Running: 4, KVUsage: 0.5, At: time.Now()})
						select {
						case <-time.After(50 * time.Millisecond):
						case <-stop:
							return
						}
					}
				})
				done := drive(t, e, 12, time.Minute, func(id string) (time.Duration, scheduler.Result) {
					if id == "slow" {
						return time.Second, scheduler.Completed
					}
					return 100 * time.Millisecond, scheduler.Completed
				})
				close(stop)
				scrapes.Wait()
				all := done["slow"] + done["b"] + done["c"]
				if done["slow"]*8 > all || all < 60*60 {
					t.Errorf("completed %v, want less than an eighth on the slow one and the others busy", done)
				}
			})
		})
	}
}

// One that calls itself full is believed only where a document asks for that.
func TestAnIdleEndpointThatCallsItselfFullIsUsed(t *testing.T) {
	t.Parallel()
	e := healthy(t, scheduler.Config{}, endpoint("a", 1))
	e.SetLoad("a", scheduler.Load{Waiting: 1 << 30, KVUsage: 1, At: time.Now()})
	take(t, e, of("x"))
}

func TestAPoolThatWasEmptyLosesNoQueuedRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{NoEndpointTTL: time.Minute, TTL: time.Minute})
		const n = 200
		var calls []<-chan answer
		for range n {
			calls = append(calls, send(t.Context(), e, of("x")))
		}
		synctest.Sleep(50 * time.Second) // a machine is being started
		if s := e.State(); s.Queued != n {
			t.Fatalf("%d wait, want all", s.Queued)
		}
		e.SetEndpoints([]scheduler.Endpoint{endpoint("a", 4)})
		for _, c := range calls {
			go func() {
				a := <-c
				if a.err != nil {
					t.Errorf("refused after %v: %v", a.after, a.err)
					return
				}
				<-time.After(time.Second)
				a.lease.End(scheduler.Outcome{})
			}()
		}
		synctest.Sleep(n/4*time.Second + time.Second)
		if s := e.State(); s.Queued != 0 || s.Live != 0 || s.Bands[0].Dispatched != n {
			t.Errorf("%d queued, %d live, %d dispatched of %d", s.Queued, s.Live, s.Bands[0].Dispatched, n)
		}
	})
}

// One that fails at once is always the idlest: its circuit keeps it from
// drawing everybody.
func TestAnEndpointThatFailsAtOnceDrawsNobody(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]scheduler.DetectorKind{
		"with our own detector": scheduler.ConcurrencyDetector, "with a detector that reads metrics": scheduler.UtilizationDetector,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := healthy(t, scheduler.Config{Detector: scheduler.Detector{Kind: kind}}, endpoint("fails", 8), endpoint("b", 8), endpoint("c", 8))
				var failed atomic.Int64
				done := drive(t, e, 12, time.Minute, func(id string) (time.Duration, scheduler.Result) {
					if id == "fails" {
						failed.Add(1)
						return time.Millisecond, scheduler.EndpointFault
					}
					return 100 * time.Millisecond, scheduler.Completed
				})
				// Three faults open the circuit; then one request tries it after 1, 3, 7, 15, 31 s and each 30 s.
				if n := failed.Load(); n > 3+12+6 {
					t.Errorf("%d requests of a minute met the endpoint that fails", n)
				}
				if all := done["b"] + done["c"]; all < 120*59 {
					t.Errorf("%d completed, want the 12 clients served throughout", all)
				}
			})
		})
	}
}
