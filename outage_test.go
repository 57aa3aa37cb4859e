package main

import (
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// gate forwards connections to an address while it is open.
type gate struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	shut  bool
	conns map[net.Conn]bool
}

func newGate(t *testing.T, target string) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{listener: l, target: target, conns: map[net.Conn]bool{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { g.forward(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		g.set(true)
		serving.Wait()
	})
	return g
}

func (g *gate) address() string { return g.listener.Addr().String() }

// set shuts the gate, which cuts what goes through it, or opens it.
func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	for c := range g.conns {
		if shut {
			_ = c.Close()
		}
	}
}

// hold notes connections, to be cut; it refuses while the gate is shut.
func (g *gate) hold(conns ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		g.conns[c] = true
	}
	return !g.shut
}

func (g *gate) forward(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", g.target)
	if err != nil {
		return
	}
	defer to.Close()
	if !g.hold(from, to) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(from, to)
		_ = from.Close()
	})
	_, _ = io.Copy(to, from)
	_ = to.Close()
	back.Wait()
}

// While Postgres is away, known keys are served and their receipts kept; when
// it is back, the receipts are there.
func TestServesKnownKeysWhilePostgresIsAway(t *testing.T) {
	t.Parallel()
	in := install(t)
	unseen := lastWord(runWeir(t, in.dir, in.environment, "key", "create", "--tenant", in.tenant, "--name", "unseen", "--quiet"))
	var g *gate
	var through []string
	for _, line := range in.environment {
		name, value, _ := strings.Cut(line, "=")
		if u, err := url.Parse(value); err == nil && strings.HasSuffix(name, "DATABASE_URL") {
			if g == nil {
				g = newGate(t, u.Host)
			}
			u.Host = g.address()
			through = append(through, name+"="+u.String())
		}
	}
	base, _ := in.serve(t, through...)
	ask := func(key string) (status int, id string) {
		t.Helper()
		res, err := post(t.Context(), base+"/v1/chat/completions", key, chatBody(3, true))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode == http.StatusOK && !strings.HasSuffix(string(text), "data: [DONE]\n\n") {
			t.Errorf("a stream without its end: %s", text)
		}
		return res.StatusCode, res.Header.Get("X-Request-Id")
	}
	if status, _ := ask(in.key); status != http.StatusOK {
		t.Fatalf("before: %d", status)
	}

	g.set(true)
	status, id := ask(in.key)
	if status != http.StatusOK {
		t.Errorf("a known key while Postgres is away: %d", status)
	}
	if status, _ := ask(unseen); status != http.StatusServiceUnavailable {
		t.Errorf("a key that was never seen: %d, want 503: nobody knows that it is wrong", status)
	}
	var ready readiness
	if status := getJSON(t, in.ops+"/readyz", "", &ready); status != http.StatusOK || ready.Status != "degraded" || ready.Checks["postgres"] == "ok" {
		t.Errorf("/readyz: %d %+v", status, ready)
	}

	g.set(false)
	eventually(t, 30*time.Second, func() string {
		if out := runWeir(t, in.dir, in.environment, "receipts", "--tenant", in.tenant, "--request", id); !strings.Contains(out, "completed") {
			return "no receipt of what was answered meanwhile: " + out
		}
		return ""
	})
	eventually(t, 30*time.Second, func() string {
		if status, _ := ask(unseen); status != http.StatusOK {
			return "the other key is still refused"
		}
		return ""
	})
}
