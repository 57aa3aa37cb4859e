package api

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"compress/zlib"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"weir/gateway"
)

func encode(t *testing.T, coding string, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch coding {
	case "gzip", "x-gzip", "GZIP":
		w = gzip.NewWriter(&b)
	case "zstd":
		w, err = zstd.NewWriter(&b)
	case "deflate":
		w = zlib.NewWriter(&b)
	case "raw deflate":
		w, err = flate.NewWriter(&b, flate.BestSpeed)
	default:
		return data
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// record keeps the fields of the last call.
func record(into *string) runner {
	return func(ctx context.Context, c gateway.Call, s gateway.Sink) error {
		*into = string(c.Fields)
		return respond(ctx, c, s)
	}
}

func bodyOf(size int) []byte {
	return []byte(`{"model":"sim-chat","messages":[{"role":"user","content":"` + strings.Repeat("x", size) + `"}]}`)
}

func TestEveryCodingGivesTheSameBody(t *testing.T) {
	t.Parallel()
	for _, coding := range []string{"", "identity", "gzip", "x-gzip", "GZIP", "zstd", "deflate", "raw deflate"} {
		for _, size := range []int{0, 5000, 3 << 20} {
			t.Run(coding, func(t *testing.T) {
				t.Parallel()
				var got string
				h := newHouse(t, record(&got), Config{})
				data := bodyOf(size)
				header := strings.TrimPrefix(coding, "raw ")
				r := h.send(t, http.MethodPost, "/v1/chat/completions", bytes.NewReader(encode(t, coding, data)), "Content-Encoding", header)
				want := string(data[len(`{"model":"sim-chat",`) : len(data)-1])
				if r.status != http.StatusOK || got != want {
					t.Errorf("status %d, %d bytes of %d", r.status, len(got), len(want))
				}
			})
		}
	}
}

func TestABodyWithoutALengthIsTakenToo(t *testing.T) {
	t.Parallel()
	var got string
	h := newHouse(t, record(&got), Config{})
	r := h.send(t, http.MethodPost, "/v1/chat/completions", io.MultiReader(bytes.NewReader(bodyOf(100_000)))) // chunked
	if r.status != http.StatusOK || len(got) < 100_000 {
		t.Errorf("status %d, %d bytes", r.status, len(got))
	}
}

func TestBadBodiesHaveTheirStatus(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	zstdBody, gzipBody := encode(t, "zstd", bodyOf(5000)), encode(t, "gzip", bodyOf(5000))
	wide := func() []byte { // a frame that wants a window of 16 MiB
		var b bytes.Buffer
		w, err := zstd.NewWriter(&b, zstd.WithWindowSize(16<<20))
		if err != nil {
			t.Fatal(err)
		}
		noise := make([]byte, 20<<20)
		src := rand.NewChaCha8([32]byte{})
		_, _ = src.Read(noise[:1<<20])
		_, _ = w.Write(noise)
		_ = w.Close()
		return b.Bytes()
	}()
	tests := []struct {
		name    string
		body    []byte
		headers []string
		status  int
		code    string
	}{
		{"empty", nil, nil, 400, ""},
		{"not JSON", []byte("hello"), nil, 400, ""},
		{"an array", []byte("[]"), nil, 400, "invalid_type"},
		{"40 MiB", bytes.Repeat([]byte(" "), 40<<20), nil, 413, "request_too_large"},
		{"plain text", []byte(helloBody), []string{"Content-Type", "text/plain"}, 415, "unsupported_content_type"},
		{"a form", []byte("a=b"), []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "unsupported_content_type"},
		{"no type", []byte(helloBody), []string{"Content-Type", ""}, 200, ""},
		{"a type with its charset", []byte(helloBody), []string{"Content-Type", "Application/JSON; charset=UTF-8"}, 200, ""},
		{"another charset", []byte(helloBody), []string{"Content-Type", "application/json; charset=utf-16"}, 415, "unsupported_content_type"},
		{"an unknown coding", []byte(helloBody), []string{"Content-Encoding", "br"}, 415, "unsupported_content_encoding"},
		{"two codings", []byte(helloBody), []string{"Content-Encoding", "gzip, zstd"}, 415, "unsupported_content_encoding"},
		{"not gzip at all", []byte(helloBody), []string{"Content-Encoding", "gzip"}, 400, ""},
		{"not zstd at all", []byte(helloBody), []string{"Content-Encoding", "zstd"}, 400, ""},
		{"not deflate at all", []byte("{{{{"), []string{"Content-Encoding", "deflate"}, 400, ""},
		{"a cut zstd frame", zstdBody[:len(zstdBody)-5], []string{"Content-Encoding", "zstd"}, 400, ""},
		{"a cut gzip stream", gzipBody[:len(gzipBody)-5], []string{"Content-Encoding", "gzip"}, 400, ""},
		{"a gzip stream with a wrong sum", append(bytes.Clone(gzipBody[:len(gzipBody)-8]), 1, 2, 3, 4, 5, 6, 7, 8), []string{"Content-Encoding", "gzip"}, 400, ""},
		{"zstd that is not announced", zstdBody, nil, 400, ""},
		{"a zstd frame with a huge window", wide, []string{"Content-Encoding", "zstd"}, 400, ""},
		{"a zstd bomb", encode(t, "zstd", make([]byte, 40<<20)), []string{"Content-Encoding", "zstd"}, 413, "request_too_large"},
		{"a gzip bomb", encode(t, "gzip", make([]byte, 40<<20)), []string{"Content-Encoding", "gzip"}, 413, "request_too_large"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := h.send(t, http.MethodPost, "/v1/chat/completions", bytes.NewReader(tt.body), tt.headers...)
			if tt.status == http.StatusOK {
				if r.status != tt.status {
					t.Errorf("got %d %s", r.status, r.body)
				}
				return
			}
			wantError(t, r, tt.status, tt.code)
		})
	}
}

// Not parallel: it measures the allocations of the whole process.
func TestABombNeverHasRoomBeyondTheLimit(t *testing.T) { //nolint:paralleltest // see above
	const limit = 4 << 20
	b := &bodies{limit: limit, room: newRoom(1 << 30), decoders: newDecoders()}
	for _, coding := range []string{"gzip", "zstd", "deflate"} {
		bomb := encode(t, coding, make([]byte, 24<<20))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := b.decode(t.Context(), coding, bomb)
		runtime.ReadMemStats(&after)
		if !isCause(err, bodyTooLarge) {
			t.Errorf("%s: %v", coding, err)
		}
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 6*limit+zstdWindow {
			t.Errorf("%s: %d bytes were allocated", coding, grown)
		}
	}
}

func TestTheRoomForBodiesIsBoundedAndComesBack(t *testing.T) {
	t.Parallel()
	const size = 256 << 10
	hold, running := make(chan struct{}), make(chan struct{}, 10)
	h := newHouse(t, func(ctx context.Context, c gateway.Call, s gateway.Sink) error {
		running <- struct{}{}
		<-hold
		return respond(ctx, c, s)
	}, Config{MaxBodies: 3 << 20})
	free := h.server.bodies.room.free.Load()
	var wg sync.WaitGroup
	for range 2 { // each holds half a MiB
		wg.Go(func() {
			if r := h.chat(t, string(bodyOf(size))); r.status != http.StatusOK {
				t.Errorf("got %d %s", r.status, r.body)
			}
		})
	}
	<-running
	<-running
	r := h.chat(t, string(bodyOf(2<<20)))
	wantError(t, r, http.StatusServiceUnavailable, "server_is_overloaded")
	if r.header.Get("Retry-After") == "" {
		t.Error("it does not say when to come back")
	}
	close(hold)
	wg.Wait()
	if got := h.server.bodies.room.free.Load(); got != free {
		t.Errorf("%d bytes of room are lost", free-got)
	}
}

func TestABodyThatWasSentLeavesRoomWhileItsStreamRuns(t *testing.T) {
	t.Parallel()
	var h *house
	var before, after int64
	h = newHouse(t, func(ctx context.Context, c gateway.Call, s gateway.Sink) error {
		before = h.server.bodies.room.free.Load()
		c.Sent()
		after = h.server.bodies.room.free.Load()
		return respond(ctx, c, s)
	}, Config{})
	free := h.server.bodies.room.free.Load()
	if r := h.chat(t, string(bodyOf(100<<10))); r.status != http.StatusOK {
		t.Fatalf("got %d %s", r.status, r.body)
	}
	if before >= free || after != free {
		t.Errorf("of %d bytes %d were free with the body, %d when it was sent", free, before, after)
	}
	if got := h.server.bodies.room.free.Load(); got != free {
		t.Errorf("in the end %d bytes are free, want %d", got, free)
	}
}

func TestBuffersHoldWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	r := newRoom(1 << 40)
	for _, n := range []int{0, 1, smallest, smallest + 1, 100_000, largest, largest + 1, 5 << 20} {
		b, err := r.take(n)
		if err != nil || cap(b.bytes) < n || len(b.bytes) != 0 {
			t.Fatalf("%d: cap %d, len %d, %v", n, cap(b.bytes), len(b.bytes), err)
		}
		if int64(cap(b.bytes)) != 1<<40-r.free.Load() {
			t.Errorf("%d: %d are counted, %d are held", n, 1<<40-r.free.Load(), cap(b.bytes))
		}
		r.giveBack(b)
	}
	if r.free.Load() != 1<<40 {
		t.Error("room is lost")
	}
}
