package api

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"
)

// nowhere is a response writer that keeps nothing.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header              { return n.header }
func (n *nowhere) Write(p []byte) (int, error)      { return len(p), nil }
func (n *nowhere) WriteHeader(int)                  {}
func (n *nowhere) FlushError() error                { return nil }
func (n *nowhere) SetReadDeadline(time.Time) error  { return nil }
func (n *nowhere) SetWriteDeadline(time.Time) error { return nil }

func BenchmarkHandler(b *testing.B) {
	bodies := map[string]string{
		"small":      helloBody,
		"stream":     helloBody[:len(helloBody)-1] + `,"stream":true,"stream_options":{"include_usage":true}}`,
		"prompt200K": string(bodyOf(200_000)),
		"edited200K": `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 200_000) + `"}],"model":"sim-chat","user":"u","top_k":4}`,
	}
	for name, text := range bodies {
		s := New(slog.New(slog.DiscardHandler), Deps{Keys: newKeyring(), Gateway: runner(respond), Catalogue: func() Catalogue { return newShop() }})
		h, body := s.Handler(), []byte(text)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/chat/completions", io.NopCloser(bytes.NewReader(body)))
				if err != nil {
					b.Fatal(err)
				}
				r.ContentLength, r.RemoteAddr = int64(len(body)), "192.0.2.1:80"
				r.Header["Authorization"] = []string{"Bearer good"}
				r.Header["Content-Type"] = []string{"application/json"}
				h.ServeHTTP(&nowhere{header: http.Header{}}, r)
			}
		})
	}
}
