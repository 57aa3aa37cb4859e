package scheduler_test

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/scheduler"
)

// Ten tenants with weights 1 to 10 keep a backlog; one sends fifty times the
// requests of the others, another prompts twenty times as long. In every ten
// seconds each gets its share of what is served, in uncached prompt tokens and
// weighted output tokens, within 5 %.
func TestTenTenantsGetTheirSharesInEveryTenSeconds(t *testing.T) {
	t.Parallel()
	tenants := make([]tenant, 10)
	for i := range tenants {
		tenants[i] = tenant{name: fmt.Sprintf("weight-%d", i+1), weight: i + 1, clients: 40, input: 100, output: 20}
	}
	tenants[2].clients *= 50
	tenants[6].input *= 20
	for i := range tenants {
		tenants[i].cached = tenants[i].input / 4
	}
	synctest.Test(t, func(t *testing.T) {
		// The first second is before all have a backlog.
		const warm, window, windows = time.Second, 10 * time.Second, 3
		served := make([]map[string]float64, windows+1)
		for i := range served {
			served[i] = map[string]float64{}
		}
		began := time.Now().Add(warm)
		competeFor(t, scheduler.Config{MaxFlowQueued: 4000}, 64, warm+windows*window, func(name string, tokens float64, at time.Time) {
			if since := at.Sub(began); since >= 0 {
				served[since/window][name] += tokens
			}
		}, tenants...)
		for i, got := range served[:windows] {
			total := 0.0
			for _, tokens := range got {
				total += tokens
			}
			for _, n := range tenants {
				want := float64(n.weight) / 55
				if part := got[n.name] / total; math.Abs(part-want) > 0.05*want {
					t.Errorf("window %d: %s was served %.4f of the tokens, want %.4f within 5 %%", i, n.name, part, want)
				}
			}
		}
	})
}

func TestAFloodFillsNothingButItsOwnQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{}, endpoint("a", 1))
		running := take(t, e, of("flood"))
		ctx, cancel := context.WithCancel(t.Context())
		var flood []<-chan answer
		for range 20_000 {
			flood = append(flood, send(ctx, e, of("flood")))
		}
		synctest.Wait()
		full := 0
		for _, c := range flood {
			select {
			case a := <-c:
				if a.reason() != scheduler.FlowFull {
					t.Fatalf("got %v, want the flow full", a.err)
				}
				full++
			default:
			}
		}
		if full != 19_000 || e.Queued() != 1000 {
			t.Errorf("%d of 20,000 were refused and %d wait, want 19,000 and the flow's cap of 1,000", full, e.Queued())
		}
		other := of("other")
		other.ID = "other"
		waits := send(t.Context(), e, other)
		synctest.Wait()
		if p, ok := e.Position("other"); !ok || p.Ahead > 1 {
			t.Errorf("another flow's request stands at %+v (%v), want at most one ahead", p, ok)
		}
		running.End(scheduler.Outcome{InputTokens: 10, OutputTokens: 10})
		synctest.Wait()
		select {
		case a := <-waits:
			a.lease.End(scheduler.Outcome{})
		default:
			t.Error("another flow's first request did not go first")
		}
		cancel()
	})
}

func TestTimeLimitsOfBands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{TTL: 10 * time.Second, Bands: []scheduler.BandConfig{
			{Priority: 1, TTL: time.Second}, {Priority: 2, TTL: -1}, {Priority: 3, TTL: time.Hour},
		}}, endpoint("a", 1))
		take(t, e, of("f"))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Hour)
		defer cancel()
		in := func(band int, ttl time.Duration) <-chan answer {
			r := of("f")
			r.Flow.Band, r.TTL = band, ttl
			return send(ctx, e, r)
		}
		answers := []struct {
			c     <-chan answer
			want  scheduler.Reason
			after time.Duration
		}{
			{in(0, 0), scheduler.QueueTimeout, 10 * time.Second},
			{in(1, 0), scheduler.QueueTimeout, time.Second},
			{in(1, time.Minute), scheduler.QueueTimeout, time.Second},
			{in(1, time.Millisecond), scheduler.QueueTimeout, time.Millisecond},
			{in(1, -1), scheduler.QueueTimeout, 0},
			{in(2, 0), scheduler.Cancelled, 100 * time.Hour},
			{in(2, time.Minute), scheduler.QueueTimeout, time.Minute},
			{in(3, 1<<63-1), scheduler.QueueTimeout, time.Hour},
		}
		for _, a := range answers {
			expectAt(t, a.c, a.want, a.after)
		}
	})
}

// A clock that is set while requests wait moves nobody's limit and nobody's
// place: timers say when, and arrival says who.
func TestClockJumpsMoveNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var jump atomic.Int64
		set := func(d time.Duration) { jump.Store(int64(d)) }
		e := embedded{scheduler.New(scheduler.Config{}, func() time.Time { return time.Now().Round(0).Add(time.Duration(jump.Load())) })}
		t.Cleanup(e.Close)
		e.SetEndpoints([]scheduler.Endpoint{endpoint("a", 1)})
		running := take(t, e, of("f"))
		var doomed, saved []<-chan answer
		for _, d := range []time.Duration{0, time.Hour, -time.Hour, 0, -48 * time.Hour, 48 * time.Hour} {
			set(d)
			short := of("f")
			short.TTL = 30 * time.Second
			doomed = append(doomed, send(t.Context(), e, short))
			synctest.Wait()
			saved = append(saved, send(t.Context(), e, of("f")))
			synctest.Wait()
			if rate := e.State().DispatchedPerSec; rate < 0 || math.IsNaN(rate) || math.IsInf(rate, 0) {
				t.Errorf("the rate of dispatches is %v", rate)
			}
		}
		set(-100 * time.Hour)
		for _, c := range doomed {
			expectAt(t, c, scheduler.QueueTimeout, 30*time.Second)
		}
		for i, c := range saved {
			set(time.Duration(-i) * time.Hour)
			running.End(scheduler.Outcome{InputTokens: 10, OutputTokens: 10})
			synctest.Wait()
			select {
			case a := <-c:
				running = a.lease
			default:
				t.Fatalf("number %d is not the next to go", i)
			}
		}
		expectAt(t, send(t.Context(), e, of("f")), scheduler.QueueTimeout, time.Minute)
	})
}

func TestPositionOfAWaitingRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{}, endpoint("a", 1))
		running := take(t, e, of("f"))
		var answers []<-chan answer
		for i := range 4 {
			r := of("f")
			r.ID = fmt.Sprintf("r%d.1", i)
			answers = append(answers, send(t.Context(), e, r))
			synctest.Wait()
		}
		expect := func(id string, want scheduler.Position) {
			t.Helper()
			if got, ok := e.Position(id); !ok || got != want {
				t.Errorf("%s stands at %+v (%v), want %+v", id, got, ok, want)
			}
		}
		synctest.Sleep(2 * time.Second)
		// One was dispatched in two seconds: the others take four and eight.
		first, _ := e.Position("r0.1")
		last, _ := e.Position("r3.1")
		if first.Expected <= 0 || last.Expected.Round(time.Second) != (4*first.Expected).Round(time.Second) {
			t.Errorf("the first of four is expected after %v, the last after %v", first.Expected, last.Expected)
		}
		expect("r0.1", scheduler.Position{Expected: first.Expected, Waited: 2 * time.Second, Hold: scheduler.HeldByEndpoints})
		expect("r3.1", scheduler.Position{Ahead: 3, Expected: last.Expected, Waited: 2 * time.Second, Hold: scheduler.HeldByOrder})
		running.End(scheduler.Outcome{})
		(<-answers[0]).lease.End(scheduler.Outcome{})
		synctest.Wait()
		if p, _ := e.Position("r3.1"); p.Ahead != 1 {
			t.Errorf("%d ahead of the last when two have gone, want 1", p.Ahead)
		}
		for _, id := range []string{"r0.1", "r1.1", "", "nobody"} {
			if _, ok := e.Position(id); ok {
				t.Errorf("%q waits, though it was dispatched or never came", id)
			}
		}
		e.SetHealth("a", scheduler.Unhealthy)
		if p, _ := e.Position("r3.1"); p.Hold != scheduler.HeldByNoEndpoint {
			t.Errorf("in a dead pool it is held by %s", p.Hold)
		}
	})
}
