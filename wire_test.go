package main

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// wire is a way to a server that a test can cut, mend and slow down.
type wire struct {
	t     *testing.T
	proxy *toxiproxy.Proxy
}

func newWire(t *testing.T, target string) *wire {
	t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	w := &wire{t: t, proxy: toxiproxy.NewProxy(server, "wire", "127.0.0.1:0", target)}
	w.mend()
	t.Cleanup(w.cut)
	return w
}

// address is where the wire begins. It stays the same when it was cut.
func (w *wire) address() string { return w.proxy.Listen }

// cut ends all connections and refuses new ones.
func (w *wire) cut() { w.proxy.Stop() }

func (w *wire) mend() {
	w.t.Helper()
	if err := w.proxy.Start(); err != nil {
		w.t.Fatal(err)
	}
}

// slow delays whatever comes back, from now on.
func (w *wire) slow(delay time.Duration) {
	w.t.Helper()
	toxic := fmt.Sprintf(`{"type": "latency", "stream": "downstream", "attributes": {"latency": %d}}`, delay.Milliseconds())
	if _, err := w.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		w.t.Fatal(err)
	}
}

// throughWire leads all of an environment's database URLs through one wire.
func throughWire(t *testing.T, environment []string) (w *wire, through []string) {
	t.Helper()
	for _, line := range environment {
		name, value, _ := strings.Cut(line, "=")
		u, err := url.Parse(value)
		if err != nil || !strings.HasSuffix(name, "DATABASE_URL") {
			continue
		}
		if w == nil {
			w = newWire(t, u.Host)
		}
		u.Host = w.address()
		through = append(through, name+"="+u.String())
	}
	return w, through
}

// mute holds back what goes one way, "upstream" or "downstream", until hear.
func (w *wire) mute(stream string) {
	w.t.Helper()
	toxic := fmt.Sprintf(`{"name": "mute", "type": "timeout", "stream": %q, "attributes": {"timeout": 0}}`, stream)
	if _, err := w.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) hear() {
	w.t.Helper()
	if err := w.proxy.Toxics.RemoveToxic(w.t.Context(), "mute"); err != nil {
		w.t.Fatal(err)
	}
}
