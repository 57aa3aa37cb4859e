package admission_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"weir/gateway/admission"
)

// spender is a request that is charged 800 of 1,000 tokens, and has an intent.
func spender() *admission.Request {
	r := asked(1)
	r.Nodes = []admission.Node{{ID: "ten_a", PerMinute: admission.Counts{Tokens: 1000}, Concurrency: 10}}
	r.Estimate = admission.Counts{Requests: 1, Tokens: 800}
	return r
}

// ended checks that a spender used nothing, holds no slot, and has left its
// intent.
func ended(t *testing.T, m *miniredis.Miniredis) {
	t.Helper()
	other := newRedis(t, m.Addr(), admission.RedisConfig{})
	eventually(t, "its slot is free", func() bool {
		live, _ := m.ZMembers("weir:{ten_a}:live:ten_a")
		return len(live) == 0
	})
	at, err := other.Look(t.Context(), "ten_a", spender().Nodes)
	if err != nil || len(at) != 1 || at[0].Rates[admission.TokenMeter].Left < 1000 {
		t.Errorf("%+v, %v: want its tokens given back", at, err)
	}
	if left, err := other.Orphans(t.Context(), []string{"rep_child"}, 10); err != nil || len(left) != 1 {
		t.Errorf("intents %+v, %v: want that of the request, which is to stay", left, err)
	}
}

// A renewal that was made up before a request ended knows nothing of what it
// used, nor that its intent is to stay.
func TestRedisRenewalLeavesToTheReleaseWhatIsToBeCorrected(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := newRedis(t, m.Addr(), quick())
	if v, err := s.Admit(t.Context(), spender()); err != nil || !v.Admitted {
		t.Fatalf("%+v, %v", v, err)
	}
	var once sync.Once
	m.Server().SetPreHook(func(_ *server.Peer, cmd string, _ ...string) bool {
		if cmd == "PING" { // a renewal begins
			once.Do(func() {
				r := spender()
				r.Intent = nil
				if err := s.Release(t.Context(), r, admission.Counts{Requests: 1}); err != nil {
					t.Error(err)
				}
			})
		}
		return false
	})
	run(t, s)
	ended(t, m)
}

// Where the renewal comes to Redis after a release whose answer is on its way, it
// has put the request back: that is ended once more.
func TestRedisRenewalThatComesAfterAReleaseKeepsNoSlot(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := newRedis(t, m.Addr(), quick())
	if v, err := s.Admit(t.Context(), spender()); err != nil || !v.Admitted {
		t.Fatalf("%+v, %v", v, err)
	}
	var renewals, scripts atomic.Int32
	var wg sync.WaitGroup
	told, over := make(chan struct{}), make(chan struct{})
	telling, ending := sync.OnceFunc(func() { close(told) }), sync.OnceFunc(func() { close(over) })
	m.Server().SetPreHook(func(_ *server.Peer, cmd string, _ ...string) bool {
		switch {
		case cmd == "PING" && renewals.Add(1) == 1: // the first renewal waits until the release is told
			r := spender()
			r.Intent = nil
			if err := s.Release(t.Context(), r, admission.Counts{Requests: 1}); err != nil {
				t.Error(err)
			}
			wg.Go(func() {
				if _, err := s.Admit(t.Context(), ask("req_next", []admission.Node{{ID: "key_a", Concurrency: 1}})); err != nil {
					t.Error(err)
				}
			})
			<-told
		case cmd == "PING": // what followed the first renewal is done
			ending()
		case cmd == "EVALSHA" && scripts.Add(1) == 2: // the admission, behind the release
			telling()
			<-over
		}
		return false
	})
	run(t, s)
	ended(t, m)
	wg.Wait()
}

// The same where the release is on its way when the renewal ends.
func TestRedisRenewalLeavesReleasesOnTheirWayAlone(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := newRedis(t, m.Addr(), quick())
	if v, err := s.Admit(t.Context(), spender()); err != nil || !v.Admitted {
		t.Fatalf("%+v, %v", v, err)
	}
	var renewals atomic.Int32
	var wg sync.WaitGroup
	sent, over := make(chan struct{}), make(chan struct{})
	sending, ending := sync.OnceFunc(func() { close(sent) }), sync.OnceFunc(func() { close(over) })
	m.Server().SetPreHook(func(_ *server.Peer, cmd string, _ ...string) bool {
		switch {
		case cmd == "PING" && renewals.Add(1) == 1: // the first renewal waits until the release is sent
			r := spender()
			r.Intent = nil
			if err := s.Release(t.Context(), r, admission.Counts{Requests: 1}); err != nil {
				t.Error(err)
			}
			wg.Go(func() {
				if _, err := s.Admit(t.Context(), ask("req_next", []admission.Node{{ID: "key_a", Concurrency: 1}})); err != nil {
					t.Error(err)
				}
			})
			<-sent
		case cmd == "PING": // what followed the first renewal is done
			ending()
		case cmd == "EVALSHA": // the release, ahead of the next admission
			sending()
			<-over
		}
		return false
	})
	run(t, s)
	ended(t, m)
	wg.Wait()
}
