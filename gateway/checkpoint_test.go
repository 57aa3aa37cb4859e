package gateway_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/billing"
	"weir/gateway"
	"weir/gateway/admission"
)

// journalOf is what would be found of this process if it died now: the journal as it
// is in the file.
func journalOf(t *testing.T, dir string) []admission.Intent {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "intents"))
	if err != nil {
		t.Error(err)
	}
	heir := t.TempDir()
	if err := os.WriteFile(filepath.Join(heir, "intents"), raw, 0o600); err != nil {
		t.Error(err)
	}
	j, err := admission.OpenJournal(heir)
	if err != nil {
		t.Error(err)
		return nil
	}
	defer func() { _ = j.Close() }()
	found, err := admission.NewMemory(admission.MemoryConfig{Journal: j}).Orphans(t.Context(), nil, 100)
	if err != nil {
		t.Error(err)
	}
	return found
}

// journaled keeps the house's intents in the folder, and bills.
func journaled(t *testing.T, dir string) func(*house) {
	t.Helper()
	return func(h *house) {
		j, err := admission.OpenJournal(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = j.Close() })
		h.limits = admission.NewMemory(admission.MemoryConfig{Journal: j})
		h.config.BillingMode, h.config.Replica = billing.ModeShadow, "rep_us"
	}
}

func TestIntentIsThereUntilTheReceiptIs(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		house  func(*house)
		dies   bool // the engine, in mid-stream
		during int  // intents while the engine works
		after  int
	}{
		{"a success", func(*house) {}, false, 1, 0},
		{"without limits", func(h *house) { h.plan.Limits.Concurrency = 0 }, false, 1, 0},
		{"a success that nobody is told, since it can't be stored", func(h *house) { h.ledger.err = billing.ErrUnavailable }, false, 1, 0},
		{"a receipt that nobody will ever take", func(h *house) { h.ledger.err = billing.ErrRejected }, true, 1, 0},
		{"what was used before a stream broke, which can't be stored", func(h *house) { h.ledger.err = billing.ErrUnavailable }, true, 1, 1},
		{"nothing is billed", func(h *house) { h.config.BillingMode = "" }, false, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, during := t.TempDir(), -1
			e := serve(t, func(w http.ResponseWriter, r *http.Request) {
				during = len(journalOf(t, dir))
				if tt.dies {
					w.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}`+"\n\n")
					_ = http.NewResponseController(w).Flush()
					panic(http.ErrAbortHandler)
				}
				answers(200, document)(w, r)
			})
			h := build(t, []string{e.URL}, journaled(t, dir), tt.house)
			_ = h.Run(t.Context(), h.call(func(c *gateway.Call) { c.Stream = tt.dies }), &caller{})
			if after := len(journalOf(t, dir)); during != tt.during || after != tt.after {
				t.Errorf("%d intents while it ran, %d after it, want %d and %d", during, after, tt.during, tt.after)
			}
		})
	}
}

func TestCountingTokensLeavesNoIntent(t *testing.T) {
	t.Parallel()
	dir, during := t.TempDir(), -1
	e := serve(t, func(w http.ResponseWriter, r *http.Request) {
		during = len(journalOf(t, dir))
		answers(200, `{"count":17}`)(w, r)
	})
	h := build(t, []string{e.URL}, journaled(t, dir))
	if _, err := h.CountTokens(t.Context(), h.call(nil)); err != nil || during != 0 {
		t.Errorf("%v, %d intents", err, during)
	}
}

// Should the process die in the middle of a stream, what it made until a second
// before is known.
func TestCheckpointsFollowAStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		var seen []admission.Intent
		look := func(http.ResponseWriter, *http.Request) { seen = append(seen, journalOf(t, dir)...) }
		w := newWire()
		e := &engine{gone: make(chan struct{}, 1)}
		server, served := &http.Server{Handler: e.handler([]step{then(
			look, events(chunk("a", 1), chunk("b", 2)), wait(1100*time.Millisecond), look,
			events(chunk("c", 3)), look, wait(time.Second), look, events(usageEvent, doneEvent),
		)})}, make(chan struct{})
		go func() { defer close(served); _ = server.Serve(w) }()
		h := build(t, []string{"http://engine"}, journaled(t, dir), func(h *house) { h.config.Dial = w.dial })
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if err := h.Checkpoint(ctx); err != nil {
				t.Error(err)
			}
		})
		call := h.call(func(c *gateway.Call) { c.Stream = true })
		if err := h.Run(t.Context(), call, &caller{}); err != nil {
			t.Fatal(err)
		}
		cancel()
		running.Wait()

		first := admission.Intent{
			Request: "req_1", Tenant: "ten_a", Project: "prj_a", Key: "key_a", Model: "pub", Operation: "chat", Tier: "default", Mode: "shadow",
			PriceVersion: 7, Prompt: int64(len(call.Fields)/4 + 1), StartedAt: call.ReceivedAt.Round(0), Replica: "rep_us",
		}
		two, three := first, first
		two.Dispatched, two.Input, two.Output = true, 11, 2 // the engine's count of the input, not ours
		three.Dispatched, three.Input, three.Output = true, 11, 3
		if diff := cmp.Diff([]admission.Intent{first, two, two, three}, seen); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if n := len(journalOf(t, dir)); n != 0 {
			t.Errorf("%d intents after the end", n)
		}
		h.Close()
		_ = server.Close()
		<-served
	})
}
