package epp_test

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"weir/scheduler"
	"weir/scheduler/epp"
	"weir/scheduler/llmd"
	"weir/scheduler/schedulertest"
)

// nearby is a connection in memory that says that it comes from this machine,
// which it does.
type nearby struct{ net.Listener }

type nearbyConn struct{ net.Conn }

func (n nearby) Accept() (net.Conn, error) {
	c, err := n.Listener.Accept()
	return nearbyConn{c}, err
}

func (nearbyConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// remote is a client of a server over a connection in memory, and what stands
// behind.
type remote struct {
	*llmd.Client

	near *scheduler.Embedded
}

func (r remote) SetEndpoints(endpoints []scheduler.Endpoint) {
	r.near.SetEndpoints(endpoints)
	for _, e := range endpoints {
		r.near.SetHealth(e.ID, scheduler.Healthy)
	}
}

func (r remote) Queued() int { return r.near.State().Queued }
func (r remote) Live() int   { return r.near.State().Live }

// Close closes what the client asks: what waits is refused there.
func (r remote) Close() { r.near.Close() }

// known finds an endpoint of the contract.
func known(hostport string) (scheduler.Target, bool) {
	host, _, _ := strings.Cut(hostport, ":")
	id, ok := strings.CutSuffix(host, ".test")
	return scheduler.Target{Endpoint: id, URL: "http://" + host}, ok
}

// connect serves a scheduler in memory and returns so many clients' ends.
func connect(t *testing.T, near scheduler.Scheduler, n int) []*llmd.Client {
	t.Helper()
	clients := make([]*llmd.Client, n)
	dial := inMemory(t, near, epp.Config{})
	for i := range clients {
		clients[i] = ask(t, llmd.Single(dial(), "scheduler"))
	}
	return clients
}

// ask is a gateway that asks whom it is told to.
func ask(t *testing.T, picker func() (llmd.Peer, error)) *llmd.Client {
	t.Helper()
	c := llmd.New(slog.New(slog.DiscardHandler), llmd.Config{
		Pool: "main", Own: true, Picker: picker, Allowed: known, Patience: time.Millisecond,
	})
	t.Cleanup(func() {
		c.Close()
		c.Wait()
	})
	return c
}

// inMemory serves a scheduler, and returns what connects to it.
func inMemory(t *testing.T, near scheduler.Scheduler, cfg epp.Config) (dial func() *grpc.ClientConn) {
	t.Helper()
	server := epp.New(slog.New(slog.DiscardHandler), onePool{of: near}, epp.NewMetrics(nil), cfg)
	listener := bufconn.Listen(64 << 10)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(ctx, nearby{listener}, epp.Serving{Grace: time.Second}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		serving.Wait()
		if live := server.Live(); live != 0 {
			t.Errorf("%d exchanges are left", live)
		}
	})
	return func() *grpc.ClientConn {
		conn, err := grpc.NewClient("passthrough:///scheduler", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
}

// settle is enough for what is said over a connection without latency; the
// counts of an answer go at the latest with its end.
const settle = 5 * time.Millisecond

func rest() {
	synctest.Sleep(settle)
	synctest.Wait()
}

func TestGatewaysKeepTheWholeContractThroughTheServer(t *testing.T) {
	t.Parallel()
	schedulertest.Test(t, schedulertest.Harness{
		New: func(t *testing.T, p schedulertest.Pool) schedulertest.Subject {
			t.Helper()
			cfg := scheduler.Config{
				MaxQueued: p.MaxQueued, MaxBandQueued: p.MaxBandQueued, MaxFlowQueued: p.MaxFlowQueued, TTL: p.TTL, Eviction: p.Eviction,
			}
			for priority, share := range p.Shares {
				cfg.Bands = append(cfg.Bands, scheduler.BandConfig{Priority: priority, MinShare: share})
			}
			r := remote{near: scheduler.New(cfg, nil)}
			t.Cleanup(r.near.Close)
			r.SetEndpoints(p.Endpoints)
			r.Client = connect(t, r.near, 1)[0]
			return r
		},
		Run:    synctest.Test,
		Settle: rest,
		Slack:  2 * settle,
		Can: schedulertest.Capabilities{
			ExactCaps: true, LeastLoaded: true, Excludes: true, FlowCap: true, RequestTTL: true, Turns: true,
			Weights: true, Sessions: true, Retries: true, Shares: true, Reservations: true, Eviction: true,
		},
	})
}

// `weir explain` shows the wait, which nobody but the scheduler knows.
func TestAGatewayIsToldHowLongItsRequestWaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near := scheduler.New(scheduler.Config{}, nil)
		t.Cleanup(near.Close)
		remote{near: near}.SetEndpoints([]scheduler.Endpoint{{ID: "a", URL: "http://a.test", MaxConcurrency: 1}})
		c := connect(t, near, 1)[0]
		first := granted(t, c, asked("r.1", "t", 1))
		time.AfterFunc(2*time.Second, func() { first.End(scheduler.Outcome{}) })
		second := granted(t, c, asked("r.2", "t", 1))
		defer second.End(scheduler.Outcome{})
		told, ok := second.(interface {
			Told() (string, time.Duration, bool)
		})
		if !ok {
			t.Fatalf("%T tells nothing", second)
		}
		if _, queued, known := told.Told(); !known || queued < 2*time.Second || queued > 3*time.Second {
			t.Errorf("told were %v, %v", queued, known)
		}
	})
}
