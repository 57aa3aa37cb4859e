package scheduler_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"weir/scheduler"
)

// TestWhoeverGoesNextIsTried: one server takes long prompts and is busy, the
// other takes short ones and is free. A long prompt waits at the head of the
// line; whatever takes it from there lets the short one behind it go at once.
func TestWhoeverGoesNextIsTried(t *testing.T) {
	t.Parallel()
	lengths := func(id, span string) scheduler.Endpoint {
		p := endpoint(id, 1)
		p.Labels = map[string]string{"llm-d.ai/context-length-range": span}
		return p
	}
	prompt := func(band, tokens int) scheduler.Request {
		r := in(band, "x")
		r.InputTokens = tokens
		return r
	}
	const long, short = 5000, 10
	for _, tt := range []struct {
		name  string
		leave func(e embedded, cancel func())
		after time.Duration // a second is when leave is called
	}{
		{"when the head's caller leaves", func(_ embedded, cancel func()) { cancel() }, time.Second},
		{"when the head's time is up", func(embedded, func()) {}, 30 * time.Second},
		{"when the head's time is shortened", func(e embedded, _ func()) {
			cfg := byLength()
			cfg.Bands[0].TTL = time.Second
			e.SetConfig(cfg)
		}, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := healthy(t, byLength(), lengths("long", "1000-9999"), lengths("short", "0-999"))
				take(t, e, prompt(1, long))
				ctx, cancel := context.WithCancel(t.Context())
				head := send(ctx, e, prompt(1, long))
				synctest.Wait()
				behind := send(t.Context(), e, prompt(0, short))
				synctest.Sleep(time.Second)
				select {
				case a := <-behind:
					t.Fatalf("it went before the head: %+v", a)
				default:
				}
				tt.leave(e, cancel)
				if a := <-behind; a.err != nil || a.after != tt.after {
					t.Errorf("it got %v after %v, want a lease after %v", a.err, a.after, tt.after)
				}
				cancel()
				<-head
			})
		})
	}
	t.Run("when one comes that goes before the head", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			e := healthy(t, byLength(), lengths("long", "1000-9999"), lengths("short", "0-999"))
			take(t, e, prompt(0, long))
			send(t.Context(), e, prompt(0, long))
			synctest.Sleep(time.Second)
			urgent := prompt(0, short)
			urgent.QueuedAt = time.Now().Add(-time.Minute) // a retry goes to the head of its flow
			if a := <-send(t.Context(), e, urgent); a.err != nil || a.after != 0 {
				t.Errorf("it got %v after %v, want a lease at once", a.err, a.after)
			}
		})
	})
}

// byLength sends prompts to the endpoints that are meant for their length.
func byLength() scheduler.Config {
	return scheduler.Config{
		Bands:   []scheduler.BandConfig{{Priority: 1, TTL: 30 * time.Second}, {Priority: 0, TTL: time.Hour}},
		Profile: scheduler.Profile{Filters: []scheduler.Filter{{Kind: "context-length-aware"}}},
	}
}
