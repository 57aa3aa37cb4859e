package gateway_test

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/gateway"
	"weir/gateway/catalogue"
	"weir/scheduler/enginesim"
)

// An engine that kept salts apart when it was first asked may do so no more
// after an upgrade, or not in storage that it got since: a claim holds for a day
// from each probe, and ends with the first that refutes it.
func TestAPoolProvesItsClaimDaily(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		engine := enginesim.New(enginesim.Config{ZeroLatency: true, Models: []string{"pub"}})
		listener := newWire() // whose deadlines are off once they are taken back, as net/http wants it
		server := &http.Server{Handler: engine, ReadHeaderTimeout: time.Minute}
		var running sync.WaitGroup
		running.Go(func() { _ = server.Serve(listener) })

		doc, _, err := catalogue.Parse([]byte(`apiVersion: weir/v1
bands: [{name: standard, priority: 7}]
pools: [{name: p, isolation: verified, endpoints: [{id: e, url: "http://engine.test", engine: vllm}]}]
models: [{name: pub, operations: [chat], routes: [{pool: p}]}]
`))
		if err != nil {
			t.Fatal(err)
		}
		source := fixed{doc.Snapshot(nil)}
		fleet := gateway.NewFleet(slog.New(slog.DiscardHandler), source, nil)
		g := gateway.New(slog.New(slog.DiscardHandler), gateway.Deps{Catalogue: source, Pools: fleet}, gateway.Config{
			SaltSecret: []byte("salt"),
			Dial:       listener.dial,
		})
		ctx, cancel := context.WithCancel(t.Context())
		running.Go(func() { _ = g.WatchIsolation(ctx) })
		defer func() {
			cancel()
			g.Close()
			fleet.Close()
			engine.Close()
			_ = server.Close()
			running.Wait()
		}()

		<-g.IsolationProbed()
		state := func() (bool, time.Time, string) {
			synctest.Wait()
			p := g.Isolation()["p"]
			return p.Holds, p.Endpoints["e"].ProvenAt, p.Endpoints["e"].Fault
		}
		holds, first, fault := state()
		if !holds || fault != "" {
			t.Fatalf("at start: %v, %q", holds, fault)
		}
		synctest.Sleep(24*time.Hour + 10*time.Second)
		if holds, again, fault := state(); !holds || fault != "" || again.Sub(first) < 24*time.Hour {
			t.Errorf("a day later: %v, %q, proven %v after the first", holds, fault, again.Sub(first))
		}
		if err := engine.SetFault("ignore-salt", 0); err != nil { // upgraded
			t.Fatal(err)
		}
		synctest.Sleep(23 * time.Hour)
		if holds, _, _ := state(); !holds {
			t.Error("nobody can know yet")
		}
		synctest.Sleep(time.Hour + 10*time.Second)
		holds, _, fault = state()
		if holds || !strings.Contains(fault, "ignores cache_salt") {
			t.Errorf("after the next probe: %v, %q", holds, fault)
		}
		if err := g.CheckIsolation(t.Context()); err == nil {
			t.Error("operators are told nothing")
		}
		if err := engine.SetFault("", 0); err != nil { // mended
			t.Fatal(err)
		}
		synctest.Sleep(6 * time.Minute)
		if holds, _, fault := state(); !holds || fault != "" {
			t.Errorf("mended: %v, %q", holds, fault)
		}
	})
}
