package api

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/labstack/echo/v4"

	"weir/gateway"
)

// clocked is a writer that remembers its deadlines.
type clocked struct {
	*httptest.ResponseRecorder

	deadlines []time.Time
}

func (c *clocked) SetWriteDeadline(t time.Time) error {
	c.deadlines = append(c.deadlines, t)
	return nil
}

func TestTheWriteDeadlineMovesSeldomAndIsLifted(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	h := newHouse(t, nil, Config{})
	h.server.now = func() time.Time { return now }
	w := &clocked{ResponseRecorder: httptest.NewRecorder()}
	x := &exchange{Context: echo.New().NewContext(httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil), w), w: w}
	k := h.server.newSink(x, nil)
	if err := k.Begin(t.Context(), gateway.Head{Stream: true}); err != nil {
		t.Fatal(err)
	}
	for range 21 { // 20 seconds of a stream
		if err := k.Send(t.Context(), []byte("data: x\n\n")); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Second)
	}
	k.close()
	n := len(w.deadlines)
	if n < 2 || n > 4 || !w.deadlines[n-1].IsZero() {
		t.Fatalf("deadlines: %v", w.deadlines)
	}
	if first := time.Unix(1000, 0).Add(sendTimeout); !w.deadlines[0].Equal(first) {
		t.Errorf("want the first at %v, got %v", first, w.deadlines[0])
	}
}

func TestABodyThatDoesNotArriveHasItsCause(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	tests := []struct {
		name   string
		err    error
		status int
		code   string
	}{
		{"too slow", os.ErrDeadlineExceeded, http.StatusRequestTimeout, "timeout"},
		{"cut", io.ErrUnexpectedEOF, http.StatusBadRequest, ""},
		{"reset", errors.New("connection reset by peer"), http.StatusBadRequest, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/chat/completions", failing{tt.err})
			r.Header.Set("Authorization", "Bearer good")
			w := httptest.NewRecorder()
			h.server.Handler().ServeHTTP(w, r)
			wantError(t, reply{w.Code, w.Header(), w.Body.String()}, tt.status, tt.code)
		})
	}
	if free := h.server.bodies.room.free.Load(); free != 1<<30 {
		t.Errorf("room is lost: %d", 1<<30-free)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A caller who has gone ends the exchange's context, and nothing else happens.
func TestACallerWhoLeavesEndsTheExchange(t *testing.T) {
	t.Parallel()
	ended, started := make(chan error, 1), make(chan struct{})
	h := newHouse(t, func(ctx context.Context, _ gateway.Call, _ gateway.Sink) error {
		close(started)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return &gateway.Error{Cause: gateway.ClientGone}
	}, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url+"/v1/chat/completions", strings.NewReader(helloBody))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer good")
	if resp, err := http.DefaultTransport.RoundTrip(r); err == nil {
		_ = resp.Body.Close()
		t.Error("an answer to nobody")
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
