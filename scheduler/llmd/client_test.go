//nolint:thelper // the functions given to alone are the tests themselves
package llmd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/scheduler"
	"weir/scheduler/extproc"
	"weir/scheduler/llmd"
	"weir/scheduler/llmd/eppsim"
)

// alone runs a test in a bubble, with a client of a picker that has two
// endpoints of one place each. When it ends no goroutine is left: a bubble
// would not end with one.
func alone(t *testing.T, sim eppsim.Config, cfg llmd.Config, test func(t *testing.T, c *llmd.Client, s served)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, sim)
		s.SetEndpoints([]eppsim.Endpoint{{Address: "a.test:80", Max: 1}, {Address: "b.test:80", Max: 1}})
		if cfg.Picker == nil {
			cfg.Picker = llmd.Single(s.conn, "picker")
		}
		cfg.Pool, cfg.Objectives, cfg.Allowed = "p", bands(), known
		c := newClient(cfg)
		t.Cleanup(func() {
			c.Close()
			c.Wait()
			synctest.Wait()
			if n := c.Counts(); n.Live != 0 || n.Waiting != 0 {
				t.Errorf("%d leases and %d waiting are left", n.Live, n.Waiting)
			}
			if n := s.Live() + s.Queued(); n != 0 {
				t.Errorf("the picker still counts %d requests", n)
			}
		})
		test(t, c, s)
	})
}

func newClient(cfg llmd.Config) *llmd.Client { return llmd.New(slog.New(slog.DiscardHandler), cfg) }

func body(n int) []byte {
	return fmt.Appendf(nil, `{"model":"m","messages":[{"role":"user","content":%q}]}`, strings.Repeat("x", n))
}

func granted(t *testing.T, c *llmd.Client, r scheduler.Request) scheduler.Lease {
	t.Helper()
	l, err := c.Schedule(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func refused(t *testing.T, c *llmd.Client, r scheduler.Request) *scheduler.Refusal {
	t.Helper()
	l, err := c.Schedule(t.Context(), r)
	refusal, ok := errors.AsType[*scheduler.Refusal](err)
	if !ok || l != nil {
		t.Fatalf("got %v and %v, want a refusal", l, err)
	}
	return refusal
}

// only is what the picker saw of its only request, once all has come to rest.
func only(t *testing.T, s served) eppsim.Exchange {
	t.Helper()
	synctest.Wait()
	all := s.Exchanges()
	if len(all) != 1 {
		t.Fatalf("the picker saw %d requests, want 1", len(all))
	}
	return all[0]
}

func TestAPickerIsToldWhatIsListedAndNothingElse(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{Objectives: objectives()}, llmd.Config{}, func(t *testing.T, c *llmd.Client, s served) {
		r := scheduler.Request{
			ID: "req.1", Flow: scheduler.Flow{FairnessID: "f", Band: 100}, Weight: 7, Session: "ten_1/chain", Turn: 3,
			Affinity: "ten_1/hint", CacheSalt: "salt", Path: "/v1/completions", Body: body(10),
			QueuedAt: time.Now().Add(-time.Second), TTFT: 3 * time.Second, TTL: 1500 * time.Millisecond, Streams: true,
		}
		granted(t, c, r).End(scheduler.Outcome{})
		x := only(t, s)
		session := x.Headers[extproc.SessionID]
		if want := map[string]string{
			":method": "POST", ":path": "/v1/completions", "content-type": "application/json", "x-request-id": "req.1",
			"x-llm-d-inference-fairness-id": "f", "x-gateway-inference-fairness-id": "f",
			"x-llm-d-inference-objective": "best", "x-gateway-inference-objective": "best",
			"x-llm-d-inference-ttl": "1.5s", "x-llm-d-slo-ttft-ms": "2000", "x-slo-ttft-ms": "2000", "x-session-id": session,
		}; !maps.Equal(want, x.Headers) {
			t.Error(cmp.Diff(want, x.Headers))
		}
		if len(session) != 32 || strings.Contains(session, "ten_1") {
			t.Errorf("the session is called %q, want a digest", session)
		}
		if !bytes.Equal(x.Body, r.Body) {
			t.Errorf("the body came as %q", x.Body)
		}
	})
}

// A picker's gRPC server refuses messages of 4 MiB.
func TestALargeBodyGoesInPieces(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{}, llmd.Config{}, func(t *testing.T, c *llmd.Client, s served) {
		r := scheduler.Request{ID: "r.1", Body: body(5 << 20)}
		l := granted(t, c, r)
		if &l.Body()[0] != &r.Body[0] {
			t.Error("a body that the picker left alone was copied")
		}
		l.End(scheduler.Outcome{})
		if x := only(t, s); x.Pieces < 5 || !bytes.Equal(x.Body, r.Body) {
			t.Errorf("%d bytes came in %d pieces", len(x.Body), x.Pieces)
		}
	})
}

func TestAChangedBodyIsTheOneToSend(t *testing.T) {
	t.Parallel()
	for name, mutate := range map[string]func([]byte) []byte{
		"longer":  func(b []byte) []byte { return append(b[:len(b)-1], `,"priority":-100}`...) },
		"shorter": func([]byte) []byte { return []byte(`{"model":"other"}`) },
		"cut":     func(b []byte) []byte { return b[:len(b)/2] },
		"at its beginning": func(b []byte) []byte {
			return append([]byte(`{"model":"rewritten",`), b[1:]...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			alone(t, eppsim.Config{Mutate: mutate}, llmd.Config{}, func(t *testing.T, c *llmd.Client, _ served) {
				sent := body(200_000)
				l := granted(t, c, scheduler.Request{ID: "r.1", Body: sent})
				if want := mutate(bytes.Clone(sent)); !bytes.Equal(l.Body(), want) {
					t.Errorf("the lease has %d bytes, want the picker's %d", len(l.Body()), len(want))
				}
				l.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived, Status: 200})
				if l.Body() != nil {
					t.Error("the body is kept for as long as the answer runs")
				}
				l.End(scheduler.Outcome{})
			})
		})
	}
}

func TestEachEventReachesThePickerWhole(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{}, llmd.Config{}, func(t *testing.T, c *llmd.Client, s served) {
		l := granted(t, c, scheduler.Request{ID: "r.1", Body: body(1), Streams: true})
		l.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived, Status: 200})
		var want []string
		for i := range 300 {
			event := fmt.Sprintf(`{"choices":[{"delta":{"content":"%d"}}]}`, i)
			l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, OutputTokens: i, Event: []byte(event)})
			want = append(want, "data: "+event+"\n\n")
		}
		l.End(scheduler.Outcome{Result: scheduler.Completed})
		x := only(t, s)
		var got []string
		for _, e := range x.Events {
			got = append(got, string(e))
		}
		if !slices.Equal(want, got) || !x.Complete || x.Left {
			t.Errorf("%d of %d events came, complete %v, left %v", len(got), len(want), x.Complete, x.Left)
		}
		if x.Response[":status"] != "200" || x.Response["status"] != "200" || x.Response["content-type"] != "text/event-stream" {
			t.Errorf("the answer's headers are %v", x.Response)
		}
	})
}

func TestADocumentIsToldInPiecesAndWhole(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{}, llmd.Config{}, func(t *testing.T, c *llmd.Client, s served) {
		l := granted(t, c, scheduler.Request{ID: "r.1", Body: body(1)})
		l.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived, Status: 200})
		document := body(150_000)
		l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, Event: document})
		l.End(scheduler.Outcome{Result: scheduler.Completed})
		x := only(t, s)
		if !bytes.Equal(bytes.Join(x.Events, nil), document) || x.Response["content-type"] != "application/json" || !x.Complete {
			t.Errorf("%d pieces of a document came, headers %v", len(x.Events), x.Response)
		}
	})
}

// How an attempt ended is told so that the picker counts it right: as a
// success, as the engine's error, or as a caller who left.
func TestEveryEndFreesThePlaceAndSaysHow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		status   int // 0: no answer came
		event    bool
		result   scheduler.Result
		want     string // the status that the picker is told
		complete bool
	}{
		{"completed", 200, true, scheduler.Completed, "200", true},
		{"the endpoint refused the connection", 0, false, scheduler.EndpointFault, "502", true},
		{"the endpoint failed", 500, false, scheduler.EndpointFault, "500", true},
		{"the endpoint broke off", 200, true, scheduler.EndpointFault, "200", false},
		{"the endpoint is full", 503, false, scheduler.Overloaded, "503", true},
		{"the caller was wrong", 400, false, scheduler.CallerFault, "400", true},
		{"no target could be used", 0, false, scheduler.CallerFault, "", false},
		{"the caller left", 200, true, scheduler.Abandoned, "200", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			alone(t, eppsim.Config{}, llmd.Config{}, func(t *testing.T, client *llmd.Client, s served) {
				l := granted(t, client, scheduler.Request{ID: "r.1", Body: body(1), Streams: true})
				if c.status != 0 {
					l.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived, Status: c.status})
				}
				if c.event {
					l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, Event: []byte(`{}`)})
				}
				synctest.Wait()
				l.End(scheduler.Outcome{Result: c.result})
				l.End(scheduler.Outcome{Result: scheduler.Completed})
				if x := only(t, s); x.Response[":status"] != c.want || x.Complete != c.complete || x.Left == c.complete {
					t.Errorf("the picker saw status %q, complete %v, left %v; want %q, %v", x.Response[":status"], x.Complete, x.Left, c.want, c.complete)
				}
				if n := s.Live(); n != 0 {
					t.Errorf("%d places are taken after the end", n)
				}
			})
		})
	}
}

func TestDestinationsAreTargetsInTheirOrder(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{Fallbacks: true, Upstream: [][2]string{{"x-prefiller-host-port", "b.test:80"}, {"x-evil", "1"}, {"authorization", "x"}}}, llmd.Config{},
		func(t *testing.T, c *llmd.Client, s served) {
			s.SetEndpoints([]eppsim.Endpoint{{Address: "a.test:80", Max: 1}, {Address: "elsewhere.example:80", Max: 1}, {Address: "b.test:80", Max: 1}})
			l := granted(t, c, scheduler.Request{ID: "r.1", Body: body(1)})
			headers := [][2]string{{"x-prefiller-host-port", "b.test:80"}}
			prefill := &scheduler.Target{Endpoint: "b", URL: "http://b.test"}
			want := []scheduler.Target{
				{Endpoint: "a", URL: "http://a.test", Headers: headers, Prefill: prefill},
				{Endpoint: "b", URL: "http://b.test", Headers: headers, Prefill: prefill},
			}
			if diff := cmp.Diff(want, l.Targets()); diff != "" {
				t.Error(diff)
			}
			l.End(scheduler.Outcome{})
		})
}

// The token says which server a session is on, and goes back with its next
// turn; another session's never.
func TestASessionsTokenComesBackWithItsNextTurnOnly(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{SessionTokens: true}, llmd.Config{}, func(t *testing.T, c *llmd.Client, s served) {
		s.SetEndpoints([]eppsim.Endpoint{{Address: "a.test:80", Max: 9}, {Address: "b.test:80", Max: 9}})
		turn := func(id, session string) scheduler.Lease {
			l := granted(t, c, scheduler.Request{ID: id, Session: session, Body: body(1)})
			l.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived, Status: 200})
			synctest.Wait()
			return l
		}
		first := turn("1.1", "ten_1/s")
		home := first.Targets()[0].Endpoint
		for i := range 5 {
			next := turn(fmt.Sprintf("%d.2", i), "ten_1/s")
			if at := next.Targets()[0].Endpoint; at != home {
				t.Errorf("turn %d went to %s, want %s", i, at, home)
			}
			defer next.End(scheduler.Outcome{})
		}
		other := turn("3.1", "ten_2/s")
		if at := other.Targets()[0].Endpoint; at == home {
			t.Error("another tenant's session of the same name has its token")
		}
		other.End(scheduler.Outcome{})
		first.End(scheduler.Outcome{})
		if n := c.Counts().Sessions; n != 2 {
			t.Errorf("%d tokens are kept, want 2", n)
		}
	})
}

func TestAnEvictionEndsTheLeasesStreamAndSaysSo(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{Objectives: objectives()}, llmd.Config{}, func(t *testing.T, c *llmd.Client, s served) {
		low := granted(t, c, scheduler.Request{ID: "l.1", Flow: scheduler.Flow{Band: -10}, Body: body(1), Streams: true})
		high := granted(t, c, scheduler.Request{ID: "h.1", Flow: scheduler.Flow{Band: 10}, Body: body(1), Streams: true})
		low.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived, Status: 200})
		low.Observe(scheduler.Progress{Kind: scheduler.EventReceived, Event: []byte(`{}`)})
		s.Evict(-10)
		<-low.Evicted()
		synctest.Wait()
		select {
		case <-high.Evicted():
			t.Error("another lease was evicted too")
		default:
		}
		low.Observe(scheduler.Progress{Kind: scheduler.EventReceived, Event: []byte(`{}`)})
		low.End(scheduler.Outcome{Result: scheduler.Abandoned})
		high.End(scheduler.Outcome{})
		if n := c.Counts(); n.Evicted != 1 || n.Lost != 0 {
			t.Errorf("counts are %+v", n)
		}
	})
}

// A `weir scheduler` is told what a picker has no words for, and counts in
// place of the answer's text.
func TestASchedulerOfOursIsToldFactsAndCounts(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{Objectives: objectives()}, llmd.Config{Own: true}, func(t *testing.T, c *llmd.Client, s served) {
		l := granted(t, c, scheduler.Request{
			ID: "r.1", Flow: scheduler.Flow{FairnessID: "f", Band: 10}, Weight: 3, Session: "ten_1/s", Turn: 4, Body: body(1), TTL: -1, Streams: true,
		})
		l.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived, Status: 200})
		l.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
		for i := range 1000 { // in a second
			synctest.Sleep(time.Millisecond)
			l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, OutputTokens: i, Event: []byte(`{"secret":"text"}`)})
		}
		synctest.Wait()
		l.End(scheduler.Outcome{Result: scheduler.Completed, InputTokens: 5, CachedTokens: 6, OutputTokens: 1000})
		x := only(t, s)
		if x.Headers["x-weir-band"] != "10" || x.Headers["x-weir-weight"] != "3" || x.Headers["x-weir-turn"] != "4" {
			t.Errorf("the facts are %v", x.Headers)
		}
		if len(x.Events) < 4 || len(x.Events) > 6 {
			t.Errorf("%d reports in a second", len(x.Events))
		}
		for _, e := range x.Events {
			if _, err := extproc.ReadReport(e); err != nil {
				t.Errorf("the report %q: %v", e, err)
			}
		}
		if x.Trailers["x-weir-result"] != "completed" || x.Trailers["x-weir-output-tokens"] != "1000" {
			t.Errorf("the outcome is %v", x.Trailers)
		}
	})
}

func TestACallerWhoLeavesTheQueueSaysWhy(t *testing.T) {
	t.Parallel()
	alone(t, eppsim.Config{}, llmd.Config{}, func(t *testing.T, c *llmd.Client, s served) {
		s.SetEndpoints(nil)
		left := errors.New("left")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			<-time.After(time.Second)
			cancel(left)
		}()
		_, err := c.Schedule(ctx, scheduler.Request{ID: "r.1", Body: body(1)})
		refusal, _ := errors.AsType[*scheduler.Refusal](err)
		if refusal == nil || refusal.Reason != scheduler.Cancelled || !refusal.Waited || !errors.Is(err, left) {
			t.Errorf("got %v, want a refusal as cancelled with its cause", err)
		}
		synctest.Wait()
	})
}
