package llmd_test

import (
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weir/scheduler"
	"weir/scheduler/llmd"
	"weir/scheduler/llmd/eppsim"
)

// BenchmarkExchange is one attempt through a simulated picker over loopback:
// decision, 64 events, end. The picker's own work is in it.
func BenchmarkExchange(b *testing.B) {
	for _, size := range []int{1_000, 20_000, 200_000} {
		for _, own := range []bool{false, true} {
			b.Run(fmt.Sprintf("prompt=%d/own=%v", size, own), func(b *testing.B) { exchange(b, size, own) })
		}
	}
}

func exchange(b *testing.B, size int, own bool) {
	b.Helper()
	sim, server := eppsim.New(eppsim.Config{}), grpc.NewServer()
	sim.SetEndpoints([]eppsim.Endpoint{{Address: "a.test:80", Max: 1 << 20}})
	extprocv3.RegisterExternalProcessorServer(server, sim)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	conn, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	c := llmd.New(slog.New(slog.DiscardHandler), llmd.Config{Picker: llmd.Single(conn, "picker"), Allowed: known, Own: own})
	b.Cleanup(func() {
		c.Close()
		c.Wait()
		_ = conn.Close()
		server.Stop()
		serving.Wait()
	})
	prompt, event := body(size), []byte(`{"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word "}}]}`)
	b.ReportAllocs()
	for b.Loop() {
		lease, err := c.Schedule(b.Context(), scheduler.Request{ID: "r.1", Flow: scheduler.Flow{FairnessID: "f"}, Body: prompt, Streams: true})
		if err != nil {
			b.Fatal(err)
		}
		lease.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived, Status: 200})
		for i := range 64 {
			lease.Observe(scheduler.Progress{Kind: scheduler.EventReceived, OutputTokens: i, Event: event})
		}
		lease.End(scheduler.Outcome{})
	}
}
