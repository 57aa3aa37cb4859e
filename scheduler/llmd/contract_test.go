package llmd_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"weir/scheduler"
	"weir/scheduler/llmd"
	"weir/scheduler/llmd/eppsim"
	"weir/scheduler/schedulertest"
)

// bands are those of the contract; 0 needs no objective.
func bands() map[int]string {
	return map[int]string{-10: "batch", 1: "some", 10: "good", 100: "best"}
}

func objectives() map[string]int {
	named := make(map[string]int)
	for priority, name := range bands() {
		named[name] = priority
	}
	return named
}

// served is a picker over a connection in memory.
type served struct {
	*eppsim.Server
	grpc *grpc.Server
	conn *grpc.ClientConn
}

func serve(t *testing.T, cfg eppsim.Config) served {
	t.Helper()
	s := served{Server: eppsim.New(cfg), grpc: grpc.NewServer()}
	extprocv3.RegisterExternalProcessorServer(s.grpc, s.Server)
	listener := bufconn.Listen(64 << 10)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.grpc.Serve(listener) })
	conn, err := grpc.NewClient("passthrough:///picker", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	s.conn = conn
	t.Cleanup(func() {
		_ = conn.Close()
		s.grpc.Stop()
		serving.Wait()
	})
	return s
}

// known answers for a pool whose endpoints are called as in the contract.
func known(hostport string) (scheduler.Target, bool) {
	host, _, _ := strings.Cut(hostport, ":")
	id, ok := strings.CutSuffix(host, ".test")
	return scheduler.Target{Endpoint: id, URL: "http://" + host}, ok
}

// subject is a client and the picker that it asks.
type subject struct {
	*llmd.Client
	served served
}

func (s subject) Queued() int { return s.served.Queued() }
func (s subject) Live() int   { return s.served.Live() }

func (s subject) SetEndpoints(endpoints []scheduler.Endpoint) {
	all := make([]eppsim.Endpoint, len(endpoints))
	for i, e := range endpoints {
		all[i] = eppsim.Endpoint{Address: strings.TrimPrefix(e.URL, "http://") + ":80", Max: e.MaxConcurrency}
	}
	s.served.SetEndpoints(all)
}

const settle = 5 * time.Millisecond

func TestClientKeepsTheContract(t *testing.T) {
	t.Parallel()
	schedulertest.Test(t, schedulertest.Harness{
		New: func(t *testing.T, p schedulertest.Pool) schedulertest.Subject {
			t.Helper()
			s := subject{served: serve(t, eppsim.Config{
				Objectives: objectives(), MaxQueued: p.MaxQueued, MaxBandQueued: p.MaxBandQueued, TTL: p.TTL, Eviction: p.Eviction,
			})}
			s.Client = llmd.New(slog.New(slog.DiscardHandler), llmd.Config{
				Pool: "p", Picker: llmd.Single(s.served.conn, "picker"), Objectives: bands(), Allowed: known,
			})
			s.SetEndpoints(p.Endpoints)
			t.Cleanup(func() {
				s.Close()
				_ = s.served.conn.Close() // ends what a test that failed has left
				s.Wait()
			})
			return s
		},
		Run: synctest.Test,
		Settle: func() {
			synctest.Sleep(settle)
			synctest.Wait()
		},
		Slack: 200 * time.Millisecond, // a request that won't wait is given a tenth of a second
		// A picker knows no weights, turns of sessions, reservations, minimum
		// shares, excluded endpoints or caps of a flow.
		Can: schedulertest.Capabilities{ExactCaps: true, LeastLoaded: true, RequestTTL: true, Turns: true, Eviction: true},
	})
}
