package scheduler_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/scheduler"
)

// model drives a scheduler at random and knows what must be true of it.
type model struct {
	e       embedded
	pending map[int]pending
	live    map[int]scheduler.Lease
	next    int
	gated   bool // a ceiling may hold requests while an endpoint has room
}

type pending struct {
	answer <-chan answer
	cancel context.CancelFunc
}

// collect takes the answers that came.
func (m *model) collect(t *rapid.T) {
	synctest.Wait()
	for id, p := range m.pending {
		select {
		case a := <-p.answer:
			p.cancel()
			delete(m.pending, id)
			if (a.lease == nil) == (a.err == nil) {
				t.Fatalf("a request got lease %v and error %v", a.lease, a.err)
			}
			if a.err == nil {
				m.live[id] = a.lease
			} else if a.reason() == "" || a.reason() == scheduler.Internal {
				t.Fatalf("refused without a reason: %v", a.err)
			}
		default:
		}
	}
}

func (m *model) check(t *rapid.T) {
	m.collect(t)
	if err := m.e.Audit(); err != nil {
		t.Fatal(err)
	}
	s := m.e.State()
	if s.Live != len(m.live) {
		t.Fatalf("%d leases live, %d were given out and not ended", s.Live, len(m.live))
	}
	if s.Queued != len(m.pending) {
		t.Fatalf("%d requests queued, %d have no answer", s.Queued, len(m.pending))
	}
	for id := range m.pending {
		if p, waits := m.e.Position(fmt.Sprint(id)); !waits || p.Ahead < 0 || p.Ahead >= s.Queued || p.Expected < 0 {
			t.Fatalf("request %d waits among %d at %+v (%v)", id, s.Queued, p, waits)
		}
	}
	for id := range m.live {
		if _, waits := m.e.Position(fmt.Sprint(id)); waits {
			t.Fatalf("request %d runs and waits", id)
		}
	}
	if !m.gated && s.Queued > maxQueued {
		t.Fatalf("%d queued in a pool that takes %d", s.Queued, maxQueued)
	}
	queued, live := 0, 0
	for _, b := range s.Bands {
		sum := 0
		if !m.gated && b.Queued > maxBandQueued {
			t.Fatalf("%d queued in a band that takes %d", b.Queued, maxBandQueued)
		}
		for _, f := range b.Flows {
			sum += f.Queued
			if !m.gated && f.Queued > maxFlowQueued {
				t.Fatalf("%d queued in a flow that takes %d", f.Queued, maxFlowQueued)
			}
		}
		if sum != b.Queued {
			t.Fatalf("band %d has %d queued, its flows %d", b.Priority, b.Queued, sum)
		}
		queued += b.Queued
		live += b.Live
	}
	if queued != s.Queued || live != s.Live {
		t.Fatalf("bands have %d queued and %d live, the pool %d and %d", queued, live, s.Queued, s.Live)
	}
	live, limit := 0, 0
	for _, p := range s.Endpoints {
		if p.Limit > 0 {
			live, limit = live+p.Live, limit+p.Limit
		}
	}
	for _, p := range s.Endpoints {
		room := !p.Draining && p.Health == scheduler.Healthy && p.Circuit == scheduler.CircuitClosed && !p.Paused && p.Live < p.Limit
		// What one holds beyond its limit another may hold less, up to half.
		room = room && (live < limit || 2*p.Live < p.Limit)
		if room && s.Queued > 0 && !m.gated {
			t.Fatalf("%d wait while endpoint %s has room: %+v", s.Queued, p.ID, p)
		}
	}
}

// grew fails if an endpoint took a lease that it may not have.
func (m *model) grew(t *rapid.T, before scheduler.State) {
	had := map[string]int{}
	for _, p := range before.Endpoints {
		had[p.ID+p.URL] += p.Live
	}
	for _, p := range m.e.State().Endpoints {
		grown := p.Live > had[p.ID+p.URL]
		if grown && (p.Draining || p.Health == scheduler.Unhealthy || p.Live > p.MaxConcurrency+p.MaxConcurrency/2) {
			t.Fatalf("endpoint took a lease too many: %+v", p)
		}
	}
}

func (m *model) actions() map[string]func(*rapid.T) {
	act := func(do func(*rapid.T)) func(*rapid.T) {
		return func(t *rapid.T) {
			before := m.e.State()
			do(t)
			m.collect(t)
			m.grew(t, before)
		}
	}
	id := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	return map[string]func(*rapid.T){
		"": m.check,
		"send": act(func(t *rapid.T) {
			ctx, cancel := context.WithCancel(context.Background())
			r := scheduler.Request{
				Flow:        scheduler.Flow{FairnessID: id.Draw(t, "flow"), Band: rapid.IntRange(-1, 1).Draw(t, "band")},
				Weight:      rapid.IntRange(0, 3).Draw(t, "weight"),
				InputTokens: rapid.IntRange(0, 1000).Draw(t, "input"),
				TTL:         time.Duration(rapid.IntRange(-1, 20).Draw(t, "ttl")) * time.Second,
				Exclude:     rapid.SliceOfN(id, 0, 2).Draw(t, "exclude"),
				ID:          fmt.Sprint(m.next),
				Body:        make([]byte, rapid.IntRange(0, 50).Draw(t, "bytes")),
				Session:     rapid.SampledFrom([]string{"", "s", "t"}).Draw(t, "session"),
				Turn:        rapid.IntRange(0, 3).Draw(t, "turn"),
				TTFT:        time.Duration(rapid.IntRange(-1, 5).Draw(t, "ttft")) * time.Second,
				Reserved:    rapid.SampledFrom([]int{0, 0, 500}).Draw(t, "reserved"),
				Prompt:      [][]byte{bytes.Repeat([]byte(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "prompt")), 256*rapid.IntRange(0, 6).Draw(t, "blocks"))},
			}
			if rapid.Bool().Draw(t, "retry") {
				r.QueuedAt = time.Now().Add(-time.Duration(rapid.IntRange(-1, 5).Draw(t, "age")) * time.Second)
			}
			m.pending[m.next] = pending{send(ctx, m.e, r), cancel}
			m.next++
		}),
		"cancel": act(func(*rapid.T) {
			for _, p := range m.pending {
				p.cancel()
				break
			}
		}),
		"end": act(func(t *rapid.T) {
			o := scheduler.Outcome{
				Result: scheduler.Result(rapid.IntRange(0, 4).Draw(t, "result")), OutputTokens: rapid.IntRange(0, 500).Draw(t, "output"),
				InputTokens: rapid.IntRange(0, 300).Draw(t, "uncached"), CachedTokens: rapid.SampledFrom([]int{0, 0, 100, 1000}).Draw(t, "cached"),
			}
			begun := rapid.Bool().Draw(t, "begun")
			for id, l := range m.live {
				delete(m.live, id)
				if begun {
					l.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
				}
				l.End(o)
				l.End(scheduler.Outcome{Result: scheduler.EndpointFault})
				break
			}
		}),
		"end and cancel at once": act(func(*rapid.T) {
			for _, p := range m.pending {
				p.cancel()
				break
			}
			for id, l := range m.live {
				delete(m.live, id)
				l.End(scheduler.Outcome{})
				break
			}
		}),
		"pass time": act(func(t *rapid.T) {
			synctest.Sleep(time.Duration(rapid.IntRange(1, 3000).Draw(t, "ms")) * time.Millisecond)
		}),
		"probe": act(func(t *rapid.T) {
			m.e.SetHealth(id.Draw(t, "endpoint"), scheduler.Health(rapid.IntRange(0, 2).Draw(t, "health")))
		}),
		"change endpoints": act(func(t *rapid.T) {
			var endpoints []scheduler.Endpoint
			for _, name := range rapid.SliceOfNDistinct(id, 0, 4, rapid.ID[string]).Draw(t, "endpoints") {
				p := endpoint(name, rapid.IntRange(1, 4).Draw(t, "cap"))
				p.Draining = rapid.IntRange(0, 9).Draw(t, "draining") == 0
				if rapid.IntRange(0, 9).Draw(t, "moved") == 0 {
					p.URL = fmt.Sprintf("http://%s-%d.test", name, m.next)
				}
				endpoints = append(endpoints, p)
			}
			m.e.Embedded.SetEndpoints(endpoints)
		}),
	}
}

// The caps of the pool that random operations are tried on.
const maxQueued, maxBandQueued, maxFlowQueued = 12, 8, 4

// settings draws policies for three bands.
func settings(t *rapid.T) scheduler.Config {
	cfg := scheduler.Config{
		MaxConcurrency: 2, MaxQueued: maxQueued, MaxBandQueued: maxBandQueued, MaxFlowQueued: maxFlowQueued, TTL: 10 * time.Second,
		NoEndpointTTL: 5 * time.Second, Breaker: scheduler.Breaker{Faults: 2},
		MaxBytes: int64(rapid.SampledFrom([]int{0, 300}).Draw(t, "max bytes")),
	}
	for priority := -1; priority <= 1; priority++ {
		cfg.Bands = append(cfg.Bands, scheduler.BandConfig{
			Priority: priority,
			TTL:      time.Duration(rapid.SampledFrom([]int{0, -1, 3}).Draw(t, "band ttl")) * time.Second,
			MaxBytes: int64(rapid.SampledFrom([]int{0, 100}).Draw(t, "max band bytes")),
			MinShare: rapid.SampledFrom([]float64{0, 0.3}).Draw(t, "share"),
			Ordering: rapid.SampledFrom([]scheduler.Ordering{scheduler.FirstCome, scheduler.Earliest, scheduler.SLODeadline}).Draw(t, "ordering"),
			Fairness: scheduler.Fairness{
				Policy: rapid.SampledFrom([]scheduler.FairnessPolicy{
					scheduler.VirtualTokenCounter, scheduler.GlobalStrict, scheduler.RoundRobin,
					scheduler.LeastAttainedService, scheduler.TurnPriority,
				}).Draw(t, "fairness"),
				IgnoreTurns: rapid.Bool().Draw(t, "ignore turns"),
			},
		})
	}
	return cfg
}

// Whatever the policies and whatever happens, in whatever order: leases never exceed what their endpoint
// may take, every request is either in the queue or has its answer, nobody
// waits while a healthy endpoint has room, and in the end nothing is left.
func TestRandomOperationsLoseNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// The bare TB: rapid would ask a *testing.T for its deadline, which a
		// bubble does not have.
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			m := &model{
				e:       embedded{scheduler.New(settings(t), nil)},
				pending: map[int]pending{}, live: map[int]scheduler.Lease{},
			}
			defer m.e.Close()
			m.e.SetEndpoints([]scheduler.Endpoint{endpoint("a", 2), endpoint("b", 1)})
			actions := m.actions()
			actions["change policies"] = func(t *rapid.T) { m.e.SetConfig(settings(t)) }
			t.Repeat(actions)
			m.finish(t)
		})
	})
}

// finish ends all, after which nothing may be left.
func (m *model) finish(t *rapid.T) {
	m.e.Close()
	m.collect(t)
	for _, l := range m.live {
		l.End(scheduler.Outcome{})
	}
	m.live = nil
	s := m.e.State()
	if len(m.pending) != 0 || s.Live != 0 || s.Queued != 0 {
		t.Fatalf("at the end %d have no answer, %d are live and %d queued", len(m.pending), s.Live, s.Queued)
	}
	if err := m.e.Left(); err != nil {
		t.Fatalf("at the end %v", err)
	}
}
