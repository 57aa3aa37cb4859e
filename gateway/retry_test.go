package gateway_test

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/gateway"
	"weir/scheduler"
)

// Where only the endpoint that failed has room, its failure is told at once:
// the request neither waits for the other one nor goes back, and the pool keeps
// the retry that was not made.
func TestARetryNeverGoesWhereTheRequestWas(t *testing.T) {
	t.Parallel()
	failing, full := serve(t, answers(500, `{}`)), serve(t, answers(200, document))
	h := build(t, []string{failing.URL, full.URL})
	h.pools.avoid = "e2"
	h.pools.queue.SetEndpoints([]scheduler.Endpoint{{ID: "e1", URL: failing.URL}, {ID: "e2", URL: full.URL, MaxConcurrency: 1}})
	held, err := h.pools.queue.Schedule(t.Context(), scheduler.Request{ID: "other.1", Exclude: []string{"e1"}})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 { // more often than the pool has retries
		began := time.Now()
		if got := causeOf(h.Run(t.Context(), h.call(nil), &caller{})); got != gateway.UpstreamStatus || time.Since(began) > 10*time.Second {
			t.Fatalf("ended as %q after %v", got, time.Since(began))
		}
	}
	if a, b := len(failing.seen()), len(full.seen()); a != 10 || b != 0 {
		t.Errorf("%d requests at the failing endpoint and %d at the full one, want 10 and 0", a, b)
	}
	if r := h.ledger.all()[0]; r.Attempts != 1 || r.Endpoint != "e1" {
		t.Errorf("receipt %+v", r)
	}
	held.End(scheduler.Outcome{})
	h.idle(t)
	if err := h.Run(t.Context(), h.call(nil), &caller{}); err != nil || len(full.seen()) != 1 {
		t.Errorf("with room elsewhere: %v, %d requests there", err, len(full.seen()))
	}
}

// What an engine provably never read is sent again within the attempt, even to
// the only endpoint: nothing was tried, so nothing is retried.
func TestWhatAnEngineNeverReadIsSentAgain(t *testing.T) {
	t.Parallel()
	for name, breakIt := range map[string]func(*engine, *muteConn){
		"the engine had closed the connection": func(e *engine, _ *muteConn) { e.CloseClientConnections() },
		"not a byte could be written":          func(_ *engine, c *muteConn) { c.muted.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := serve(t, answers(200, document))
			first, dials := &muteConn{}, 0
			h := build(t, []string{e.URL}, func(h *house) {
				h.config.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
					if dials++; dials == 1 && strings.HasPrefix(name, "not a byte") {
						first.Conn = c
						return first, err
					}
					return c, err
				}
			})
			for i := range 2 {
				if err := h.Run(t.Context(), h.call(func(c *gateway.Call) { c.ID = "req_" + string(rune('1'+i)) }), &caller{}); err != nil {
					t.Fatal(err)
				}
				breakIt(e, first)
			}
			if dials != 2 {
				t.Errorf("%d connections, want another for the second request", dials)
			}
			if diff := cmp.Diff([]scheduler.Result{scheduler.Completed, scheduler.Completed}, h.pools.results()); diff != "" {
				t.Errorf("leases (-want +got):\n%s", diff)
			}
			if seen := e.seen(); len(seen) != 2 || seen[1].body != seen[0].body {
				t.Errorf("the engine saw %d requests", len(seen))
			}
			if r := h.ledger.all()[1]; r.Attempts != 1 {
				t.Errorf("%d attempts", r.Attempts)
			}
		})
	}
}

// muteConn is a connection that takes no more bytes when the test says so.
type muteConn struct {
	net.Conn
	muted atomic.Bool
}

func (c *muteConn) Write(p []byte) (int, error) {
	if c.muted.Load() {
		return 0, io.ErrClosedPipe
	}
	return c.Conn.Write(p)
}
