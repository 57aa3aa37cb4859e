package gateway_test

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/gateway"
	"weir/scheduler"
)

// wire is a network in memory, so that virtual time passes while both of its
// ends wait.
type wire struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newWire() *wire { return &wire{conns: make(chan net.Conn), done: make(chan struct{})} }

func (w *wire) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case <-w.done:
		return nil, net.ErrClosed
	}
}

func (w *wire) Close() error {
	w.once.Do(func() { close(w.done) })
	return nil
}

func (w *wire) Addr() net.Addr { return &net.TCPAddr{} }

func (w *wire) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case w.conns <- theirs:
		return ours, nil
	case <-w.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// wait lets virtual time pass at the engine.
func wait(d time.Duration) step {
	return func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
		}
	}
}

// inBubble runs one exchange in virtual time against an engine that does the
// step, and returns how long it took.
func inBubble(t *testing.T, s step, change func(*gateway.Call), h func(*house)) (*house, *caller, time.Duration, error) {
	t.Helper()
	t.Helper()
	w := newWire()
	e := &engine{gone: make(chan struct{}, 16)}
	server := &http.Server{Handler: e.handler([]step{s})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(w)
	}()
	house := build(t, []string{"http://engine"}, func(b *house) {
		b.config.Dial = w.dial
		if h != nil {
			h(b)
		}
	})
	to := &caller{}
	begin := time.Now()
	err := house.Run(t.Context(), house.call(change), to)
	took := time.Since(begin)
	house.idle(t)
	house.Close()
	_ = server.Close()
	<-served
	return house, to, took, err
}

// The model's limits: connect 2 s, first byte 10 s, idle 5 s, total 60 s.
func TestTimeLimitsAreEndingsOfTheirOwn(t *testing.T) {
	t.Parallel()
	stream := func(c *gateway.Call) { c.Stream = true }
	var drip []step
	for i := range 40 {
		drip = append(drip, events(chunk("a", i+1)), wait(4*time.Second))
	}
	tests := []struct {
		name   string
		step   step
		call   func(*gateway.Call)
		house  func(*house)
		cause  gateway.Cause
		after  time.Duration
		result []scheduler.Result
	}{
		{
			name: "no connection", cause: gateway.ConnectFailed, after: 2 * time.Second, step: hang,
			house: func(h *house) {
				h.config.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
					<-ctx.Done()
					return nil, ctx.Err()
				}
			},
			result: []scheduler.Result{scheduler.EndpointFault},
		},
		{name: "no first byte of a stream", step: hang, call: stream, cause: gateway.FirstByteLimit, after: 10 * time.Second, result: []scheduler.Result{scheduler.EndpointFault}},
		{name: "no first byte of a document", step: hang, cause: gateway.FirstByteLimit, after: 10 * time.Second, result: []scheduler.Result{scheduler.EndpointFault}},
		{
			name: "headers are no first byte", call: stream, cause: gateway.FirstByteLimit, after: 10 * time.Second,
			step: then(events(""), hang), result: []scheduler.Result{scheduler.EndpointFault},
		},
		{
			name: "a gap in a stream", call: stream, cause: gateway.IdleLimit, after: 13 * time.Second,
			step: then(wait(4*time.Second), events(chunk("a", 1)), wait(4*time.Second), events(chunk("b", 2)), hang), result: []scheduler.Result{scheduler.EndpointFault},
		},
		{name: "too long in all", step: then(drip...), call: stream, cause: gateway.TotalLimit, after: 60 * time.Second, result: []scheduler.Result{scheduler.Abandoned}},
		{
			name: "a slow stream within its limits", call: stream, cause: gateway.Success, after: 9*time.Second + 4*time.Second,
			step: then(wait(9*time.Second), events(chunk("a", 1)), wait(4*time.Second), events(usageEvent, doneEvent)), result: []scheduler.Result{scheduler.Completed},
		},
		{
			name: "an engine that holds the connection after its end costs the caller nothing much", call: stream, cause: gateway.Success, after: 100 * time.Millisecond,
			step: then(events(chunk("a", 1), usageEvent, doneEvent), hang), result: []scheduler.Result{scheduler.Completed},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h, to, took, err := inBubble(t, tt.step, tt.call, tt.house)
				if got := causeOf(err); got != tt.cause {
					t.Errorf("ended as %q (%v), want %q", got, err, tt.cause)
				}
				if took != tt.after {
					t.Errorf("took %v, want %v", took, tt.after)
				}
				if diff := cmp.Diff(tt.result, h.pools.results()); diff != "" {
					t.Errorf("leases (-want +got):\n%s", diff)
				}
				if n := len(h.ledger.all()); n != 1 {
					t.Errorf("%d receipts, want 1", n)
				}
				if begun := to.begins == 1; begun && err != nil && len(to.failed) != 1 {
					t.Error("the caller was not told")
				}
			})
		})
	}
}

func TestSilentStreamsAreKeptAlive(t *testing.T) {
	t.Parallel()
	const ping = ": keepalive\n\n"
	tests := []struct {
		name string
		step step
		want string
	}{
		{
			"a slow first token", then(wait(8*time.Second), events(chunk("a", 1), usageEvent, doneEvent)),
			ping + ping + shown("a") + doneEvent,
		},
		{
			"a gap", then(events(chunk("a", 1)), wait(4*time.Second), events(usageEvent, doneEvent)),
			shown("a") + ping + doneEvent,
		},
		{
			"no gap is long enough", then(events(chunk("a", 1)), wait(2*time.Second), events(chunk("b", 2)), wait(2*time.Second), events(usageEvent, doneEvent)),
			shown("a") + shown("b") + doneEvent,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, to, _, err := inBubble(t, tt.step, func(c *gateway.Call) { c.Stream = true }, func(h *house) { h.config.KeepAlive = 3 * time.Second })
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, to.text()); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestDocumentsAreNotKeptAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, to, _, err := inBubble(t, then(wait(8*time.Second), answers(200, document)), nil, func(h *house) { h.config.KeepAlive = time.Second })
		if err != nil || strings.Contains(to.text(), "keepalive") {
			t.Errorf("%v, %s", err, to.text())
		}
	})
}

// A keep-alive commits to a success, so a failure after it is told in the
// stream, and not tried again.
func TestNoRetryAfterAKeepAlive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, to, _, err := inBubble(t, then(wait(4*time.Second), answers(500, `{}`)), func(c *gateway.Call) { c.Stream = true },
			func(h *house) { h.config.KeepAlive = 3 * time.Second })
		if got := causeOf(err); got != gateway.UpstreamStatus || len(to.failed) != 1 || len(h.pools.results()) != 1 {
			t.Errorf("ended as %q after %d attempts, the caller was told %d times", got, len(h.pools.results()), len(to.failed))
		}
	})
}

// Each burst of events is passed on when it comes, not when the next one does.
func TestEventsAreFlushedAsTheyCome(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		begin := time.Now()
		w := newWire()
		e := &engine{gone: make(chan struct{}, 1)}
		server := &http.Server{Handler: e.handler([]step{then(
			events(chunk("a", 1)), wait(time.Second),
			events(chunk("b", 2)[:20]), wait(time.Second), events(chunk("b", 2)[20:]+chunk("c", 3)), wait(time.Second),
			events(doneEvent))})}
		served := make(chan struct{})
		go func() { defer close(served); _ = server.Serve(w) }()
		h := build(t, []string{"http://engine"}, func(h *house) { h.config.Dial = w.dial })
		to := &caller{onSend: func(string) { at = append(at, time.Since(begin)) }}
		if err := h.Run(t.Context(), h.call(func(c *gateway.Call) { c.Stream = true }), to); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]time.Duration{0, 2 * time.Second, 3 * time.Second}, at); diff != "" {
			t.Errorf("sent at (-want +got):\n%s", diff)
		}
		if got := h.ledger.all()[0]; got.TTFT != 1 || got.Duration != 3*time.Second {
			t.Errorf("TTFT %v, duration %v", got.TTFT, got.Duration)
		}
		h.Close()
		_ = server.Close()
		<-served
	})
}
