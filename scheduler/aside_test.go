package scheduler_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/scheduler"
)

const atWorkTokens = 16_000

// session is a request of a session with a prompt of its own.
func session(name string) scheduler.Request {
	text := append([]byte(name), bytes.Repeat([]byte(name[:1]), 4*atWorkTokens-len(name))...)
	return scheduler.Request{
		ID: name, Session: name, Model: "m", InputTokens: atWorkTokens, OutputTokens: 10, Streams: true,
		Flow: scheduler.Flow{FairnessID: "tenant"}, Prompt: [][]byte{text},
	}
}

// sessionsAtWork is a scheduler with an endpoint whose cache four sessions fill,
// which come back again and again.
func sessionsAtWork(t *testing.T, cfg scheduler.Config) embedded {
	t.Helper()
	e := healthy(t, cfg, workplace("a"))
	for range 6 {
		for i := range 4 {
			turn(t, e, fmt.Sprint(i, " at work"))
		}
	}
	return e
}

func workplace(id string) scheduler.Endpoint {
	p := endpoint(id, 8)
	p.CacheBlocks = 4 * atWorkTokens / 64
	return p
}

// turn has a session answered where there is room for it at once.
func turn(t *testing.T, e embedded, name string) {
	t.Helper()
	r := session(name)
	r.Flow.Band = 0
	l := take(t, e, r)
	l.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
	l.End(scheduler.Outcome{Result: scheduler.Completed, InputTokens: atWorkTokens, OutputTokens: 10})
}

// newcomer schedules a request, and tells how long it waited.
func newcomer(t *testing.T, e embedded, r scheduler.Request) <-chan time.Duration {
	t.Helper()
	waited := make(chan time.Duration, 1)
	began := time.Now()
	go func() {
		l, err := e.Schedule(t.Context(), r)
		if err != nil {
			t.Errorf("%s: %v", r.ID, err)
			waited <- -1
			return
		}
		waited <- time.Since(began)
		l.End(scheduler.Outcome{Result: scheduler.Completed})
	}()
	synctest.Wait()
	return waited
}

func TestASessionThatWouldDriveOutOthersStandsAsideForAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := sessionsAtWork(t, scheduler.Config{TTL: -1, Decisions: 10})
		waited := newcomer(t, e, session("new"))
		if p, ok := e.Position("new"); !ok || p.Hold != scheduler.HeldByCaches {
			t.Fatalf("it stands at %+v, %v", p, ok)
		}
		if s := e.State(); s.Queued != 1 || s.Bands[0].Queued != 1 || s.Bands[0].Flows[0].Queued != 1 || e.Demand().QueuedTokens != atWorkTokens {
			t.Errorf("state: %+v, demand: %+v", s.Bands, e.Demand())
		}
		for i := range 4 {
			turn(t, e, fmt.Sprint(i, " at work")) // passes at once, or take fails
		}
		if took := <-waited; took < time.Minute || took > 62*time.Second {
			t.Errorf("it stood aside for %s", took)
		}
		d, ok := e.Decision("new")
		if !ok || d.Held != scheduler.HeldByCaches || !strings.Contains(d.Why, "stood aside") {
			t.Errorf("decision: %+v", d)
		}
		if s := e.State(); s.Queued != 0 {
			t.Errorf("%d wait at the end", s.Queued)
		}
	})
}

func TestWhoStandsAsideGoesWhenThatDrivesOutNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := sessionsAtWork(t, scheduler.Config{TTL: -1})
		waited := newcomer(t, e, session("new"))
		<-time.After(5 * time.Second)
		e.SetEndpoints([]scheduler.Endpoint{workplace("a"), workplace("b")})
		if took := <-waited; took > 7*time.Second {
			t.Errorf("with room elsewhere it still stood aside until %s", took)
		}
	})
}

func TestWhoDoesNotStandAside(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		cfg     scheduler.Config
		below   bool // a lower band is at work
		request func(*scheduler.Request)
		want    time.Duration
	}{
		{"a session of the only band does", scheduler.Config{TTL: -1}, false, func(*scheduler.Request) {}, time.Minute},
		{"who may wait for less, for half of that", scheduler.Config{TTL: -1}, false, func(r *scheduler.Request) { r.TTL = 20 * time.Second }, 10 * time.Second},
		{"whose first token is wanted sooner, for half of that", scheduler.Config{TTL: -1, DefaultBand: scheduler.BandConfig{Ordering: scheduler.SLODeadline}}, false, func(r *scheduler.Request) { r.TTFT = 8 * time.Second }, 4 * time.Second},
		{"who may not wait", scheduler.Config{TTL: -1}, false, func(r *scheduler.Request) { r.TTL = -1 }, 0},
		{"a retry", scheduler.Config{TTL: -1}, false, func(r *scheduler.Request) { r.QueuedAt = time.Now() }, 0},
		{"who has a reservation", scheduler.Config{TTL: -1}, false, func(r *scheduler.Request) { r.Reserved = 1_000_000 }, 0},
		{"a band above one at work", scheduler.Config{TTL: -1}, true, func(r *scheduler.Request) { r.Flow.Band = 10 }, 0},
		{"who brings little", scheduler.Config{TTL: -1}, false, func(r *scheduler.Request) {
			r.InputTokens, r.Prompt = 2000, [][]byte{r.Prompt[0][:8000]}
		}, 0},
		{"in a pool with a document", scheduler.Config{TTL: -1, Profile: scheduler.Profile{
			Scorers: []scheduler.Scorer{{Kind: scheduler.WorkScorer, Weight: 1}},
		}}, false, func(*scheduler.Request) {}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := sessionsAtWork(t, tt.cfg)
				if tt.below {
					l := take(t, e, session("0 at work"))
					defer l.End(scheduler.Outcome{})
				}
				r := session("new")
				tt.request(&r)
				if took := <-newcomer(t, e, r); took < tt.want || took > tt.want+2*time.Second {
					t.Errorf("dispatched after %s, want %s", took, tt.want)
				}
			})
		})
	}
}

func TestAFullQueueRefusesNobodyForWhomThereIsRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := sessionsAtWork(t, scheduler.Config{TTL: -1, MaxQueued: 1})
		first := newcomer(t, e, session("new"))
		if took := <-newcomer(t, e, session("other")); took != 0 {
			t.Errorf("dispatched after %s", took)
		}
		<-first
	})
}

func TestAllThatStandAsideCanLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := sessionsAtWork(t, scheduler.Config{TTL: -1})
		ctx, leave := context.WithCancel(t.Context())
		for i := range 100 {
			go func() {
				if _, err := e.Schedule(ctx, session(fmt.Sprint("n", i))); err == nil {
					t.Error("dispatched")
				}
			}()
		}
		synctest.Wait()
		if s := e.State(); s.Queued != 100 || s.QueuedBytes != 0 {
			t.Errorf("%d stand aside", s.Queued)
		}
		leave()
		synctest.Wait()
		if s := e.State(); s.Queued != 0 || len(s.Bands[0].Flows) != 0 {
			t.Errorf("%d are left, flows: %+v", s.Queued, s.Bands[0].Flows)
		}
	})
}

// The flow that was served least is the first to begin again, whoever came
// before it.
func TestThoseThatStandAsideRejoinByShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := sessionsAtWork(t, scheduler.Config{TTL: -1})
		a, b := session("new"), session("other")
		b.Flow.FairnessID = "another tenant"
		first, second := newcomer(t, e, a), newcomer(t, e, b)
		small := workplace("b")
		small.CacheBlocks /= 4 // for one of the two
		e.SetEndpoints([]scheduler.Endpoint{workplace("a"), small})
		if took := <-second; took > 2*time.Second {
			t.Errorf("the tenant that was served nothing so far waited for %s", took)
		}
		if took := <-first; took < 2*time.Second {
			t.Errorf("the tenant that was served went after %s", took)
		}
	})
}
