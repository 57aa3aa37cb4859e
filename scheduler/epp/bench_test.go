package epp_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"weir/scheduler"
	"weir/scheduler/epp"
	"weir/scheduler/llmd"
)

// BenchmarkDecision is what a gateway waits for a decision of an idle scheduler
// over loopback, its own part in it, and the end of the exchange.
func BenchmarkDecision(b *testing.B) {
	for _, size := range []int{1 << 10, 20 << 10, 200 << 10} {
		b.Run(fmt.Sprintf("%dKB", size>>10), func(b *testing.B) {
			near := scheduler.New(scheduler.Config{}, nil)
			b.Cleanup(near.Close)
			remote{near: near}.SetEndpoints([]scheduler.Endpoint{{ID: "a", URL: "http://a.test", MaxConcurrency: 1000}})
			conn := overLoopback(b, near)
			c := llmd.New(slog.New(slog.DiscardHandler), llmd.Config{Pool: "main", Own: true, Picker: llmd.Single(conn, "s"), Allowed: known})
			b.Cleanup(func() { c.Close(); c.Wait() })
			body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", size/5) + `"}]}`)
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n++
				r := asked(fmt.Sprint(n), "t", 1)
				r.Body = body
				l, err := c.Schedule(context.Background(), r)
				if err != nil {
					b.Fatal(err)
				}
				l.End(scheduler.Outcome{Result: scheduler.Completed, InputTokens: 1, OutputTokens: 1})
			}
		})
	}
}

func overLoopback(b *testing.B, near scheduler.Scheduler) *grpc.ClientConn {
	b.Helper()
	server := epp.New(slog.New(slog.DiscardHandler), onePool{of: near}, epp.NewMetrics(nil), epp.Config{})
	l, err := (&net.ListenConfig{}).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(b.Context()))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(ctx, l, epp.Serving{}) })
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close(); stop(); serving.Wait() })
	return conn
}
