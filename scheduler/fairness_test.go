package scheduler_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"weir/scheduler"
)

// tenant keeps a number of requests going, each of which takes time in
// proportion to its tokens.
type tenant struct {
	name          string
	weight        int
	clients       int
	input, output int
	bound         int // of the output, as the caller names it
	cached        int // part of the input that turns out to be in the engine's cache
	abandons      bool
}

// compete runs the tenants on one endpoint for a time and returns the tokens
// that each was served, an output token counting double.
func compete(t *testing.T, slots int, long time.Duration, tenants ...tenant) map[string]float64 {
	t.Helper()
	sum := map[string]float64{}
	competeFor(t, scheduler.Config{}, slots, long, func(name string, tokens float64, _ time.Time) { sum[name] += tokens }, tenants...)
	return sum
}

// competeFor does so and tells what is served when.
func competeFor(t *testing.T, cfg scheduler.Config, slots int, long time.Duration, told func(name string, tokens float64, at time.Time), tenants ...tenant) {
	t.Helper()
	e := healthy(t, cfg, endpoint("a", slots))
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	type service struct {
		name   string
		tokens float64
		at     time.Time
	}
	served := make(chan service, 1024)
	done := make(chan struct{})
	for _, n := range tenants {
		for range n.clients {
			go func() {
				defer func() { done <- struct{}{} }()
				for {
					l, err := e.Schedule(ctx, scheduler.Request{
						Flow: scheduler.Flow{FairnessID: n.name}, Weight: n.weight,
						InputTokens: n.input, OutputTokens: n.bound,
					})
					if err != nil {
						return
					}
					tokens := float64(n.input - n.cached + 2*n.output)
					<-time.After(time.Duration(tokens) * 100 * time.Microsecond)
					o := scheduler.Outcome{InputTokens: n.input - n.cached, CachedTokens: n.cached, OutputTokens: n.output}
					if n.abandons { // leaves without a count of the engine
						l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, OutputTokens: n.output})
						o = scheduler.Outcome{Result: scheduler.Abandoned}
					}
					l.End(o)
					served <- service{n.name, tokens, time.Now()}
				}
			}()
		}
	}
	running := 0
	for _, n := range tenants {
		running += n.clients
	}
	for running > 0 {
		select {
		case s := <-served:
			told(s.name, s.tokens, s.at)
		case <-done:
			running--
		}
	}
}

func TestBackloggedFlowsShareTokensByWeight(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		tenants []tenant
	}{
		{"equal flows share equally", []tenant{{name: "a", clients: 20, input: 100, output: 50}, {name: "b", clients: 20, input: 100, output: 50}}},
		{"weights 1 to 4", []tenant{
			{name: "a", weight: 1, clients: 40, input: 100, output: 50},
			{name: "b", weight: 2, clients: 40, input: 100, output: 50},
			{name: "c", weight: 3, clients: 40, input: 100, output: 50},
			{name: "d", weight: 4, clients: 40, input: 100, output: 50},
		}},
		{"fifty times the requests bring no more", []tenant{{name: "a", clients: 500, input: 100, output: 50}, {name: "b", clients: 10, input: 100, output: 50}}},
		{"twenty times the length brings no more", []tenant{{name: "a", clients: 20, input: 4000, output: 50}, {name: "b", clients: 20, input: 200, output: 2}}},
		{"a bound far above what is made costs nothing", []tenant{{name: "a", clients: 20, input: 100, output: 50, bound: 100_000}, {name: "b", clients: 20, input: 100, output: 50, bound: 50}}},
		{"cached prompts cost what they take", []tenant{{name: "a", clients: 20, input: 4000, cached: 3900, output: 50}, {name: "b", clients: 20, input: 100, output: 50}}},
		{"callers who leave pay for what was made", []tenant{{name: "a", clients: 20, input: 300, output: 100, abandons: true}, {name: "b", clients: 20, input: 300, output: 100}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				served := compete(t, 4, 100*time.Second, tt.tenants...)
				total, weights := 0.0, 0.0
				for _, n := range tt.tenants {
					total += served[n.name]
					weights += float64(max(n.weight, 1))
				}
				if total < 100e4*4*0.95 {
					t.Errorf("%.0f tokens served in all, of 4,000,000 that the endpoint can", total)
				}
				for _, n := range tt.tenants {
					got, want := served[n.name]/total, float64(max(n.weight, 1))/weights
					if math.Abs(got-want) > 0.03*want+0.005 {
						t.Errorf("%s was served %.3f of the tokens, want %.3f", n.name, got, want)
					}
				}
			})
		})
	}
}

// counters returns the band's virtual token counters of flows that wait or run.
func counters(e embedded) map[string]float64 {
	served := map[string]float64{}
	for _, b := range e.State().Bands {
		for _, f := range b.Flows {
			served[f.FairnessID] = f.Served
		}
	}
	return served
}

func TestStayingAwaySavesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{MaxFlowQueued: 5000}, endpoint("a", 1))
		// "busy" is served alone for long; "fresh" was here once before.
		take(t, e, of("fresh")).End(scheduler.Outcome{InputTokens: 1})
		for range 1000 {
			take(t, e, of("busy")).End(scheduler.Outcome{InputTokens: 1000})
		}
		running := take(t, e, of("busy"))
		answers := map[string][]<-chan answer{}
		for _, name := range []string{"fresh", "newcomer", "busy"} {
			for range 20 {
				answers[name] = append(answers[name], send(t.Context(), e, of(name)))
				synctest.Wait()
			}
		}
		running.End(scheduler.Outcome{InputTokens: 10, OutputTokens: 10})
		order, taken := map[string]int{}, 0
		for range 30 {
			synctest.Wait()
			for name, c := range answers {
				select {
				case a := <-c[0]:
					answers[name] = c[1:]
					order[name]++
					taken++
					a.lease.End(scheduler.Outcome{InputTokens: 10, OutputTokens: 10})
				default:
				}
			}
		}
		for name, n := range order {
			if n < taken/3-1 || n > taken/3+1 {
				t.Errorf("%s got %d of the first %d turns, want a third", name, n, taken)
			}
		}
	})
}

func TestEndCorrectsTheAccountOnce(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		observe int
		outcome scheduler.Outcome
		want    float64
	}{
		{"to what the engine counted", 5, scheduler.Outcome{InputTokens: 70, CachedTokens: 30, OutputTokens: 9}, 70 + 18},
		{"to nothing where the endpoint failed", 5, scheduler.Outcome{Result: scheduler.EndpointFault}, 0},
		{"to nothing where it was full", 0, scheduler.Outcome{Result: scheduler.Overloaded}, 0},
		{"to nothing where the request was wrong", 0, scheduler.Outcome{Result: scheduler.CallerFault}, 0},
		{"to the prompt and what was seen where the caller left", 5, scheduler.Outcome{Result: scheduler.Abandoned}, 100 + 10},
		{"to what was seen where the engine counted nothing", 8, scheduler.Outcome{Result: scheduler.Completed}, 100 + 16},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := healthy(t, scheduler.Config{}, endpoint("a", 8))
			r := of("f")
			r.InputTokens = 100
			l := take(t, e, r)
			if got := counters(e)["f"]; got != 120 {
				t.Fatalf("charged %v, want the estimate of 120", got)
			}
			l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, OutputTokens: tt.observe})
			// A second lease keeps the flow in sight, at the price of 2.
			stays := take(t, e, scheduler.Request{Flow: scheduler.Flow{FairnessID: "f"}, OutputTokens: 1})
			for range 3 {
				l.End(tt.outcome)
				l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, OutputTokens: 1000})
			}
			if got := counters(e)["f"]; got != tt.want+2 {
				t.Errorf("after the end the flow was served %v, want %v", got-2, tt.want)
			}
			stays.End(scheduler.Outcome{})
		})
	}
}

func TestRefundNeverBuysMoreThanWasPaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{}, endpoint("a", 8))
		// "f" is charged 1,000; others move on by 5,000; f returns and is lifted.
		large := take(t, e, scheduler.Request{Flow: scheduler.Flow{FairnessID: "f"}, InputTokens: 1000, OutputTokens: 1})
		for range 6 {
			take(t, e, of("g")).End(scheduler.Outcome{InputTokens: 1000})
		}
		small := take(t, e, of("f"))
		level := counters(e)["f"]
		large.End(scheduler.Outcome{InputTokens: 1})
		if got := counters(e)["f"]; got < level {
			t.Errorf("a refund from before the flow was lifted took it from %v to %v, below the others", level, got)
		}
		small.End(scheduler.Outcome{})
	})
}

func TestThousandsOfFlowsWaitAndAllAreServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{MaxBandQueued: 10_000}, endpoint("a", 1))
		running := take(t, e, of("first"))
		var answers []<-chan answer
		for i := range 6000 {
			answers = append(answers, send(t.Context(), e, of(fmt.Sprintf("waiting%d", i))))
		}
		synctest.Wait()
		if got := len(e.State().Bands[0].Flows); got != 6001 {
			t.Errorf("%d flows wait or run, want 6001", got)
		}
		running.End(scheduler.Outcome{})
		for _, c := range answers {
			go func() { (<-c).lease.End(scheduler.Outcome{}) }()
		}
		synctest.Wait()
		if s := e.State(); s.Live != 0 || s.Queued != 0 {
			t.Errorf("%d live and %d queued at the end", s.Live, s.Queued)
		}
	})
}
