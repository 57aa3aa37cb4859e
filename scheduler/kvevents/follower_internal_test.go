package kvevents

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"weir/scheduler"
)

// told is a Feed that keeps what it is told.
type told struct {
	most, changes int // in one report, and in all
	missed        []time.Time
}

func (t *told) CacheChanged(_ string, r scheduler.CacheReport) {
	t.most, t.changes = max(t.most, len(r.Changes)), t.changes+len(r.Changes)
}

func (t *told) CacheMissed(string) { t.missed = append(t.missed, time.Now()) }

func TestASourceThatIsGoneForLongIsNotTakenAtItsLastWord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var feed told
		f := New(slog.New(slog.DiscardHandler), Source{ID: "a", Events: func(context.Context) (net.Conn, error) {
			return nil, errors.New("refused")
		}}, &feed)
		f.restart()
		f.apply(message{payload: stores(t, 1, 1)})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.Run(ctx) }()
		began := time.Now()
		<-time.After(time.Hour)
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(feed.missed) != 1 {
			t.Fatalf("it was said %d times that something was missed, want once", len(feed.missed))
		}
		if after := feed.missed[0].Sub(began); after < staleAfter || after > staleAfter+2*lastPause {
			t.Errorf("said after %s", after)
		}
		if len(f.ledger.known) > 0 {
			t.Errorf("%d blocks are still known", len(f.ledger.known))
		}
	})
}

func TestAMessageThatSaysMoreThanItIsLongIsToldInParts(t *testing.T) {
	t.Parallel()
	var feed told
	f := New(slog.New(slog.DiscardHandler), Source{ID: "a"}, &feed)
	f.restart()
	f.apply(message{payload: stores(t, 20, maxBlocks)})
	if feed.changes != 20*maxBlocks || feed.most > maxBlocks+maxUntold {
		t.Errorf("%d changes were told, up to %d at once; want %d and at most %d", feed.changes, feed.most, 20*maxBlocks, maxBlocks+maxUntold)
	}
}

// stores is a message of events that each say many times that one block came.
func stores(t *testing.T, events, times int) []byte {
	t.Helper()
	var all []any
	for i := range events {
		n := times
		if i == 0 { // its tokens are said once
			all = append(all, []any{stored, []any{1}, nil, []any{7}, 1, nil, "GPU"})
			n--
		}
		all = append(all, []any{stored, msgpack.RawMessage(append([]byte{0xdd, 0, byte(n >> 16), byte(n >> 8), byte(n)}, bytes.Repeat([]byte{1}, n)...)), nil, []any{}, 1, nil, "GPU"})
	}
	b, err := msgpack.Marshal([]any{1.5, all, 0})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
