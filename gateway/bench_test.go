package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"weir/gateway"
)

type discard struct{}

func (discard) Begin(context.Context, gateway.Head) error { return nil }
func (discard) Send(context.Context, []byte) error        { return nil }
func (discard) Fail(context.Context, error)               {}

// benchmark runs exchanges over loopback; the engine's share is in the figures.
func benchmark(b *testing.B, s step, change func(*gateway.Call)) {
	b.Helper()
	e := serve(b, func(w http.ResponseWriter, r *http.Request) { s(w, r) })
	h := build(b, []string{e.URL})
	c := h.call(change)
	b.ReportAllocs()
	for b.Loop() {
		if err := h.Run(b.Context(), c, discard{}); err != nil {
			b.Fatal(err)
		}
		h.ledger.reset()
		h.pools.reset()
		e.requests = e.requests[:0]
	}
}

func BenchmarkDocument(b *testing.B) { benchmark(b, answers(200, document), nil) }

func BenchmarkStreamOf64(b *testing.B) {
	var burst strings.Builder
	for i := range 64 {
		burst.WriteString(chunk(fmt.Sprintf("word %d", i), i+1))
	}
	benchmark(b, events(burst.String(), usageEvent+doneEvent), stream)
}

func BenchmarkDocumentWith200KBPrompt(b *testing.B) {
	fields := []byte(`"messages":[{"role":"user","content":"` + strings.Repeat("a word ", 200_000/7) + `"}]`)
	benchmark(b, answers(200, document), func(c *gateway.Call) { c.Fields = fields })
}
