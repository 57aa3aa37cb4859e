package kvevents_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"weir/scheduler"
	"weir/scheduler/kvevents"
)

func TestWhatAnEnginePublishesIsWhatTheSchedulerKnows(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	r := follow(t, kvevents.Source{Events: to(s.l)})
	s.connected()
	s.publish(0, batch(t, 0, 4))
	s.publish(1, batch(t, 4, 6))
	r.expects(scheduler.Trusted, 6)
	if got := r.cached(8); got != 96 {
		t.Errorf("%d tokens are expected of a prompt that begins with 6 blocks that are there, want 96", got)
	}
	s.publish(2, pack(t, []any{2.5, []any{
		[]any{"BlockRemoved", []any{1005, 1004}, "GPU"},
		[]any{"SomethingNew", []any{map[string]any{"a": 1}}},
	}}))
	r.expects(scheduler.Trusted, 4)
	s.publish(3, pack(t, []any{3.5, []any{[]any{"AllBlocksCleared"}}}))
	r.expects(scheduler.Trusted, 0)
}

func TestAGapIsFilledByReplay(t *testing.T) {
	t.Parallel()
	s, again := newScript(t), newReplays(t)
	all := [][]byte{batch(t, 0, 2), batch(t, 2, 3), batch(t, 3, 5), batch(t, 5, 6), batch(t, 6, 7)}
	again.set(0, all[:1]...)
	r := follow(t, kvevents.Source{Events: to(s.l), Replay: to(again)})
	s.connected()
	r.expects(scheduler.Trusted, 2)
	again.set(0, all[:4]...)
	s.publish(3, all[3]) // 1 and 2 were missed, and 3 is replayed too
	r.expects(scheduler.Trusted, 6)
	s.publish(2, all[2]) // late
	s.publish(4, all[4])
	r.expects(scheduler.Trusted, 7)
	if st := r.follower.Stats(); st.Gaps != 1 || st.Orphans != 0 {
		t.Errorf("seen: %+v, want one gap and no block without its beginning", st)
	}
}

func TestAGapWithoutReplayDropsWhatWasKnown(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	r := follow(t, kvevents.Source{Events: to(s.l)})
	s.connected()
	s.publish(0, batch(t, 0, 4))
	r.expects(scheduler.Trusted, 4)
	s.publish(2, batch(t, 4, 5))
	r.expects(scheduler.Unproven, 0)
	s.publish(3, batch(t, 0, 2)) // a prompt that begins anew can be told again
	r.expects(scheduler.Unproven, 2)
	if got := r.cached(4); got != 0 {
		t.Errorf("%d tokens are expected by what is not proven", got)
	}
	s.publish(4, pack(t, []any{1, []any{[]any{"AllBlocksCleared"}}}))
	s.publish(5, batch(t, 0, 3))
	r.expects(scheduler.Trusted, 3)
	if st := r.follower.Stats(); st.Gaps != 1 || st.Orphans != 1 {
		t.Errorf("seen: %+v, want one gap and one block without its beginning", st)
	}
}

func TestWhatComesOutOfOrderIsNotApplied(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	r := follow(t, kvevents.Source{Events: to(s.l)})
	s.connected()
	gone := pack(t, []any{1, []any{[]any{"BlockRemoved", []any{1000}, "GPU"}}})
	s.publish(0, batch(t, 0, 1))
	s.publish(2, batch(t, 0, 2)) // stored again after it was removed
	s.publish(1, gone)           // which comes late
	s.publish(3, batch(t, 2, 3))
	r.expects(scheduler.Unproven, 3)
	if st := r.follower.Stats(); st.Reordered != 1 || st.Gaps != 1 {
		t.Errorf("seen: %+v, want one gap and one message out of order", st)
	}
}

func TestAfterABrokenConnection(t *testing.T) {
	t.Parallel()
	t.Run("the same engine goes on where it was", func(t *testing.T) {
		t.Parallel()
		s, again := newScript(t), newReplays(t)
		r := follow(t, kvevents.Source{Events: to(s.l), Replay: to(again)})
		s.connected()
		s.publish(0, batch(t, 0, 2))
		s.publish(1, batch(t, 2, 3))
		r.expects(scheduler.Trusted, 3)
		again.set(1, batch(t, 2, 3), batch(t, 3, 5)) // the first one it has forgotten
		s.cut()
		s.connected()
		r.expects(scheduler.Trusted, 5)
	})
	t.Run("another engine begins with nothing", func(t *testing.T) {
		t.Parallel()
		s, again := newScript(t), newReplays(t)
		r := follow(t, kvevents.Source{Events: to(s.l), Replay: to(again)})
		s.connected()
		s.publish(0, batch(t, 0, 5))
		s.publish(1, batch(t, 5, 9))
		r.expects(scheduler.Trusted, 9)
		again.set(0, batch(t, 0, 1), batch(t, 1, 2), batch(t, 2, 3)) // as many messages, but others
		s.cut()
		s.connected()
		r.expects(scheduler.Trusted, 3)
	})
	t.Run("an engine without replay is taken up again when it starts at 0", func(t *testing.T) {
		t.Parallel()
		s := newScript(t)
		r := follow(t, kvevents.Source{Events: to(s.l)})
		s.connected()
		s.publish(0, batch(t, 0, 5))
		s.publish(1, batch(t, 5, 6))
		r.expects(scheduler.Trusted, 6)
		s.cut()
		s.connected()
		s.publish(0, batch(t, 0, 1))
		r.expects(scheduler.Trusted, 1)
	})
	t.Run("another engine whose replay can't be had begins with nothing", func(t *testing.T) {
		t.Parallel()
		s, again := newScript(t), newReplays(t)
		again.set(0, batch(t, 0, 1), batch(t, 1, 2), batch(t, 2, 5))
		r := follow(t, kvevents.Source{Events: to(s.l), Replay: to(again)})
		s.connected()
		r.expects(scheduler.Trusted, 5)
		_ = again.Close()
		s.cut()
		s.connected()
		s.publish(0, batch(t, 0, 2))
		r.expects(scheduler.Trusted, 2)
	})
	t.Run("an engine that ran on unseen is not trusted", func(t *testing.T) {
		t.Parallel()
		s := newScript(t)
		r := follow(t, kvevents.Source{Events: to(s.l)})
		s.connected()
		s.publish(0, batch(t, 0, 5))
		r.expects(scheduler.Trusted, 5)
		s.cut()
		s.connected()
		s.publish(9, batch(t, 0, 1))
		r.expects(scheduler.Unproven, 1)
	})
}

func TestAnEngineWithNothingCachedIsKnownToHaveNothing(t *testing.T) {
	t.Parallel()
	s, again := newScript(t), newReplays(t)
	r := follow(t, kvevents.Source{Events: to(s.l), Replay: to(again)})
	s.connected()
	r.expects(scheduler.Trusted, 0)
}

func TestNonsenseIsCountedAndDropsWhatWasKnown(t *testing.T) {
	t.Parallel()
	deep := append([]byte{0x92, 0x01}, make([]byte, 1<<20)...)
	for i := range deep[2:] {
		deep[2+i] = 0x91 // an array in an array in an array
	}
	for name, payload := range map[string][]byte{
		"no msgpack":            []byte("\xc1nonsense"),
		"cut short":             batch(t, 0, 4)[:20],
		"a length without end":  {0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff},
		"nested without end":    deep,
		"hashes of other types": pack(t, []any{1, []any{[]any{"BlockRemoved", []any{map[string]int{}}, "GPU"}}}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScript(t)
			r := follow(t, kvevents.Source{Events: to(s.l)})
			s.connected()
			s.publish(0, batch(t, 0, 4))
			r.expects(scheduler.Trusted, 4)
			s.publish(1, payload)
			r.expects(scheduler.Unproven, 0)
			if st := r.follower.Stats(); st.Malformed != 1 {
				t.Errorf("seen: %+v", st)
			}
		})
	}
}

func TestASourceThatIsNotFollowedAnyMoreIsNotTakenAtItsLastWord(t *testing.T) {
	t.Parallel()
	s := newScript(t)
	e := scheduler.New(scheduler.Config{Profile: scheduler.Profile{Precise: scheduler.PreciseCache{Enabled: true}}}, nil)
	t.Cleanup(e.Close)
	e.SetEndpoints([]scheduler.Endpoint{{ID: "a"}})
	g := kvevents.NewGroup(slog.New(slog.DiscardHandler), e)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
	trusted := func(want scheduler.Trust) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); e.State().Endpoints[0].Cache.Trust != want; <-time.After(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("want %v, have %+v", want, e.State().Endpoints[0].Cache)
			}
		}
	}
	source := kvevents.Source{ID: "a", Key: "1", Events: to(s.l)}
	g.Set([]kvevents.Source{source})
	s.connected()
	s.publish(0, batch(t, 0, 4))
	trusted(scheduler.Trusted)
	source.Key = "2" // it is another one
	g.Set([]kvevents.Source{source})
	s.connected()
	trusted(scheduler.Unproven)
	s.publish(0, batch(t, 0, 4))
	trusted(scheduler.Trusted)
	g.Set(nil)
	trusted(scheduler.Unproven)
}
