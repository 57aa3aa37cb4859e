package api

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"weir/gateway"
)

func TestAResponseHasTheHeadersOfAChat(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	for _, stream := range []string{"false", "true"} {
		r := h.send(t, http.MethodPost, "/v1/responses", strings.NewReader(`{"model":"sim-chat","input":"x","store":false,"client_metadata":{},"stream":`+stream+`}`))
		if r.status != http.StatusOK {
			t.Fatalf("%d %s", r.status, r.body)
		}
		for name, want := range map[string]string{
			"X-Weir-Queue-Ms": "12", "X-Weir-Band": "standard", "X-Weir-Ignored": "client_metadata",
			"X-Ratelimit-Limit-Requests": "60", "X-Ratelimit-Remaining-Requests": "59", "X-Ratelimit-Reset-Requests": "1s",
		} {
			if got := r.header.Get(name); got != want {
				t.Errorf("stream %s: %s is %q, want %q", stream, name, got, want)
			}
		}
		if r.header.Get("X-Request-Id") == "" || r.header.Get("Openai-Processing-Ms") == "" {
			t.Errorf("headers %v", r.header)
		}
	}
}

func TestAFaultOfAResponsesInputIsNamedByItsOwnParameter(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	r := h.send(t, http.MethodPost, "/v1/responses", strings.NewReader(`{"model":"sim-chat","store":false,"input":[{"role":"user","content":[{"type":"input_image","image_url":"ftp://x"}]}]}`))
	if r.status != http.StatusBadRequest || strings.Contains(r.body, `"messages`) || !strings.Contains(r.body, `"param":"input`) {
		t.Errorf("%d %s", r.status, r.body)
	}
}

// A context stands in the same bounded memory as bodies, and no longer than it
// is needed.
func TestTheContextOfAResponseIsCountedUntilItWasSent(t *testing.T) {
	t.Parallel()
	var h *house
	var before, after int64
	h = newHouse(t, func(ctx context.Context, c gateway.Call, s gateway.Sink) error {
		before = h.server.bodies.room.free.Load()
		c.Sent()
		after = h.server.bodies.room.free.Load()
		return respond(ctx, c, s)
	}, Config{MaxBodies: 1 << 20})
	send := func(size int) reply {
		return h.send(t, http.MethodPost, "/v1/responses", strings.NewReader(`{"model":"sim-chat","store":false,"stream":true,"input":"`+strings.Repeat("x", size)+`"}`))
	}
	if r := send(100 << 10); r.status != http.StatusOK || !strings.HasSuffix(r.body, "data: [DONE]\n\n") {
		t.Fatalf("%d %s", r.status, r.body)
	}
	if held := 1<<20 - before; held < 2*100<<10 || after != 1<<20 {
		t.Errorf("%d bytes were held with the body and the context, %d when they were sent", held, 1<<20-after)
	}
	// There is room for this body, and none for its context.
	wantError(t, send(600<<10), http.StatusServiceUnavailable, "server_is_overloaded")
	if got := h.server.bodies.room.free.Load(); got != 1<<20 {
		t.Errorf("%d bytes of room are lost", 1<<20-got)
	}
}
