package llmd_test

import (
	"context"
	"fmt"
	"net"
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
)

// address is where a picker listens; one that starts again has it again.
type address struct {
	mu       sync.Mutex
	listener *bufconn.Listener // nil: nobody listens
}

func (a *address) dial(ctx context.Context, _ string) (net.Conn, error) {
	a.mu.Lock()
	l := a.listener
	a.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("connection refused")
	}
	return l.DialContext(ctx)
}

// start runs a fresh picker at the address; kill ends it as kill -9 does.
func (a *address) start(t *testing.T) (sim *eppsim.Server, kill func()) {
	t.Helper()
	sim, server := eppsim.New(eppsim.Config{}), grpc.NewServer()
	sim.SetEndpoints([]eppsim.Endpoint{{Address: "a.test:80", Max: 10}})
	extprocv3.RegisterExternalProcessorServer(server, sim)
	l := bufconn.Listen(64 << 10)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	a.mu.Lock()
	a.listener = l
	a.mu.Unlock()
	return sim, func() {
		a.mu.Lock()
		a.listener = nil
		a.mu.Unlock()
		server.Stop()
		serving.Wait()
	}
}

func TestARestartOfThePickerUnderLoadLosesNoStreamAndNoRequest(t *testing.T) {
	t.Parallel()
	at := &address{}
	synctest.Test(t, func(t *testing.T) {
		_, kill := at.start(t)
		conn, err := grpc.NewClient("passthrough:///picker", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(at.dial))
		if err != nil {
			t.Fatal(err)
		}
		cfg := llmd.Config{Picker: llmd.Single(conn, "picker"), Allowed: known}
		client := newClient(cfg)
		var running []scheduler.Lease
		for i := range 10 {
			running = append(running, granted(t, client, scheduler.Request{ID: fmt.Sprintf("run%d.1", i), Body: body(1), Streams: true}))
		}
		results := make(chan error, 30)
		for i := range 30 {
			go func() {
				l, err := client.Schedule(t.Context(), scheduler.Request{ID: fmt.Sprintf("wait%d.1", i), Body: body(1)})
				if err == nil {
					<-time.After(100 * time.Millisecond)
					l.End(scheduler.Outcome{})
				}
				results <- err
			}()
		}
		synctest.Wait()
		kill()
		synctest.Sleep(3 * time.Second) // it takes that long to start
		sim, kill := at.start(t)
		for i := range 30 {
			if err := <-results; err != nil {
				t.Errorf("request %d was lost: %v", i, err)
			}
		}
		for _, l := range running {
			select {
			case <-l.Evicted():
				t.Error("a running stream was evicted")
			default:
			}
			l.Observe(scheduler.Progress{Kind: scheduler.EventReceived, Event: []byte(`{}`)})
			l.End(scheduler.Outcome{})
		}
		client.Close()
		client.Wait()
		synctest.Wait()
		if n := client.Counts(); n.Lost != 10 || n.Granted != 40 || sim.Live() != 0 {
			t.Errorf("counts are %+v, and %d places are taken", n, sim.Live())
		}
		_ = conn.Close()
		kill()
	})
}
