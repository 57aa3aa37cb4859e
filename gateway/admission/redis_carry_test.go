package admission_test

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"weir/gateway/admission"
)

// outage is a Redis that can be lost and come back.
type outage struct {
	addr string
	lose func()
	back func()
}

func mini(t *testing.T, keeps bool) outage {
	t.Helper()
	m := miniredis.RunT(t)
	return outage{addr: m.Addr(), lose: m.Close, back: func() {
		if !keeps {
			m.FlushAll()
		}
		if err := m.Restart(); err != nil {
			t.Error(err)
		}
	}}
}

// realRedis starts anew, with nothing of what it had.
func realRedis(t *testing.T) outage {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server is not installed (apt-get install redis-server)")
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	o := outage{addr: l.Addr().String()}
	_, port, _ := net.SplitHostPort(o.addr)
	var cmd *exec.Cmd
	o.back = func() {
		cmd = exec.CommandContext(context.WithoutCancel(t.Context()), "redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", t.TempDir())
		if err := cmd.Start(); err != nil {
			t.Error(err)
			return
		}
		eventually(t, "redis answers", func() bool {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", o.addr)
			if err == nil {
				_ = conn.Close()
			}
			return err == nil
		})
	}
	o.lose = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	o.back()
	t.Cleanup(func() { o.lose() })
	return o
}

// ten is a request of a tenant that may make ten a minute, counted in tokens.
func ten(id string) *admission.Request {
	r := ask(id, []admission.Node{{ID: "ten_a", PerMinute: admission.Counts{Tokens: 1_000_000}}})
	r.Estimate = admission.Counts{Requests: 1, Tokens: 100_000}
	return r
}

// spend asks for so many, and returns how many were admitted.
func spend(t *testing.T, s *admission.Redis, name string, n int) (admitted int) {
	t.Helper()
	for i := range n {
		v, err := s.Admit(t.Context(), ten(fmt.Sprintf("req_%s_%d", name, i)))
		if err != nil {
			t.Fatal(err)
		}
		if v.Admitted {
			admitted++
		}
	}
	return admitted
}

// leftIn is what Redis has left of the tenant's ten, but for what came back since.
func leftIn(t *testing.T, s *admission.Redis, since time.Time) (least, most float64) {
	t.Helper()
	at, err := s.Look(t.Context(), "ten_a", ten("").Nodes)
	if err != nil {
		t.Fatal(err)
	}
	left := float64(at[0].Rates[admission.TokenMeter].Left) / 100_000
	return left - time.Since(since).Seconds()/6, left
}

func wantLeft(t *testing.T, s *admission.Redis, since time.Time, want float64) {
	t.Helper()
	if least, most := leftIn(t, s, since); want < least-0.01 || want > most+0.01 {
		t.Errorf("Redis has %.2f to %.2f of ten left, want %v", least, most, want)
	}
}

// What was admitted while Redis was away is spent in the Redis that comes back,
// once, whether it comes back with what it had or without.
func TestWhatWasAdmittedWithoutRedisIsSpentWhenItIsBack(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) outage{
		"a server that starts empty":     realRedis,
		"data that was lost":             func(t *testing.T) outage { t.Helper(); return mini(t, false) },
		"a server that was out of reach": func(t *testing.T) outage { t.Helper(); return mini(t, true) },
	} {
		t.Run(name+"/one replica", func(t *testing.T) {
			t.Parallel()
			began, o := time.Now(), start(t)
			s := newRedis(t, o.addr, quick())
			if n := spend(t, s, "before", 4); n != 4 {
				t.Fatalf("%d admitted", n)
			}
			if err := s.Release(t.Context(), ten("req_before_0"), one); err != nil { // 3 are spent
				t.Fatal(err)
			}
			s.Flush(t.Context())
			s.Heal(t.Context())
			o.lose()
			eventually(t, "it is lost", func() bool { _, _ = s.Admit(t.Context(), probe()); return !s.Healthy() })
			if n := spend(t, s, "lost", 3); n != 3 {
				t.Fatalf("%d admitted", n)
			}
			o.back()
			back(t, s)
			wantLeft(t, s, began, 4)
			s.Heal(t.Context())
			wantLeft(t, s, began, 4)
		})
		t.Run(name+"/each of two replicas its share", func(t *testing.T) {
			t.Parallel()
			began, o := time.Now(), start(t)
			cfg := quick()
			cfg.Replicas = func() int { return 2 }
			a, b := newRedis(t, o.addr, cfg), newRedis(t, o.addr, cfg)
			a.Heal(t.Context())
			b.Heal(t.Context())
			o.lose()
			for _, s := range []*admission.Redis{a, b} {
				eventually(t, "it is lost", func() bool { _, _ = s.Admit(t.Context(), probe()); return !s.Healthy() })
			}
			if n := spend(t, a, "a", 3); n != 3 {
				t.Fatalf("%d admitted", n)
			}
			if n := spend(t, b, "b", 5); n != 5 {
				t.Fatalf("%d admitted", n)
			}
			o.back()
			back(t, a)
			back(t, b)
			wantLeft(t, a, began, 2)
		})
	}
}

// probe is a request of another tenant.
func probe() *admission.Request {
	return &admission.Request{ID: "req_probe", Tenant: "ten_b", Nodes: []admission.Node{{ID: "ten_b", Concurrency: 100}}, Estimate: one}
}

// back has the store find the way back.
func back(t *testing.T, s *admission.Redis) {
	t.Helper()
	eventually(t, "it is back", func() bool { s.Heal(t.Context()); return s.Healthy() })
}

// An estimate that was charged without Redis is corrected there, when the request
// ends after Redis is back as well as before.
func TestWhatWasEstimatedWithoutRedisIsCorrected(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ late, probed bool }{
		"it ends before Redis is back":                         {},
		"it ends before Redis is back, which was asked for it": {probed: true},
		"it ends when Redis is back":                           {late: true},
		"it ends when Redis is back, which was asked for it":   {late: true, probed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			late := tt.late
			began, o := time.Now(), mini(t, false)
			s := newRedis(t, o.addr, quick())
			s.Heal(t.Context())
			o.lose()
			eventually(t, "it is lost", func() bool { _, _ = s.Admit(t.Context(), probe()); return !s.Healthy() })
			r := ten("req_1")
			r.Estimate.Tokens = 800_000
			if v, err := s.Admit(t.Context(), r); err != nil || !v.Admitted {
				t.Fatalf("%+v, %v", v, err)
			}
			release := func() {
				t.Helper()
				if err := s.Release(t.Context(), r, admission.Counts{Requests: 1, Tokens: 100_000}); err != nil {
					t.Error(err)
				}
			}
			if tt.probed {
				s.Heal(t.Context())
			}
			if !late {
				release()
			}
			o.back()
			back(t, s)
			if late {
				wantLeft(t, s, began, 2)
				release()
			}
			eventually(t, "it is corrected", func() bool { _, _ = s.Admit(t.Context(), probe()); _, most := leftIn(t, s, began); return most > 8.9 })
			wantLeft(t, s, began, 9)
		})
	}
}

// A renewal that Redis took, but whose answer never came, is repeated: what it
// carried is spent once.
func TestWhatIsCarriedTwiceIsSpentOnce(t *testing.T) {
	t.Parallel()
	began, m := time.Now(), miniredis.RunT(t)
	s := newRedis(t, m.Addr(), quick())
	s.Heal(t.Context())
	m.SetError("LOADING")
	eventually(t, "it is lost", func() bool { _, _ = s.Admit(t.Context(), probe()); return !s.Healthy() })
	m.SetError("")
	if n := spend(t, s, "lost", 9); n != 9 {
		t.Fatalf("%d admitted", n)
	}
	var carried atomic.Int32
	m.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		switch {
		case cmd != "EVAL":
		case strings.HasPrefix(args[0], "-- Adds to the rates"):
			carried.Add(1)
		case strings.HasPrefix(args[0], "-- Renews the slots") && carried.Load() < 3:
			c.WriteError("ERR broken off")
			return true
		}
		return false
	})
	back(t, s)
	if n := carried.Load(); n < 3 {
		t.Fatalf("carried %d times", n)
	}
	wantLeft(t, s, began, 1)
}
