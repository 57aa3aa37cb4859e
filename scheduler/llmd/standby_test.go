package llmd_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"weir/scheduler"
	"weir/scheduler/llmd"
)

// epp is a scheduler of which only health is asked.
type epp struct {
	*health.Server

	address string

	mu     sync.Mutex
	server *grpc.Server
}

func startEPP(t *testing.T) *epp {
	t.Helper()
	e := &epp{Server: health.NewServer(), address: "127.0.0.1:0"}
	e.start(t)
	t.Cleanup(e.stop)
	return e
}

func (e *epp) start(t *testing.T) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", e.address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, e)
	e.mu.Lock()
	e.address, e.server = l.Addr().String(), s
	e.mu.Unlock()
	go func() { _ = s.Serve(l) }() // ends with stop
}

func (e *epp) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.server.Stop()
}

// standby runs a list of which one second lasts 20 ms.
func standby(t *testing.T, all ...*epp) *llmd.Standby {
	t.Helper()
	c := llmd.StandbyConfig{Interval: 20 * time.Millisecond, Timeout: 2 * time.Second}
	for _, e := range all {
		c.EPPs = append(c.EPPs, llmd.EPP{Address: e.address})
	}
	s, err := llmd.NewStandby(slog.New(slog.DiscardHandler), c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return s
}

func name(s *llmd.Standby) string {
	p, err := s.Pick()
	if err != nil {
		return err.Error()
	}
	return p.Name()
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.After(10 * time.Second); !ok(); {
		select {
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestTheStandbyIsUsedWhileThePrimaryIsAway(t *testing.T) {
	t.Parallel()
	primary, second := startEPP(t), startEPP(t)
	s := standby(t, primary, second)
	if got := name(s); got != primary.address {
		t.Fatalf("%s is used first, want %s", got, primary.address)
	}
	primary.stop()
	until(t, "the standby is used", func() bool { return name(s) == second.address })
	second.stop()
	until(t, "nobody is left", func() bool { return name(s) == llmd.ErrNoScheduler.Error() })
	primary.start(t)
	until(t, "the primary is used again", func() bool { return name(s) == primary.address })
	second.start(t)
	until(t, "the standby is up again", func() bool { return s.State().EPPs[1].Up })
	primary.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	until(t, "one that doesn't serve is left", func() bool { return name(s) == second.address })
	if e := s.State().EPPs[0]; e.Up || !e.Waits {
		t.Errorf("one that waits is %+v", e)
	}
	primary.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	until(t, "one that serves again is wanted", func() bool { return name(s) == primary.address })
	state := s.State()
	if !state.EPPs[0].InUse || state.EPPs[1].InUse || state.Failovers < 4 {
		t.Errorf("%+v", state)
	}
}

func TestOneBrokenStreamMovesTheNextRequest(t *testing.T) {
	t.Parallel()
	primary, second := startEPP(t), startEPP(t)
	c := llmd.StandbyConfig{EPPs: []llmd.EPP{{Address: primary.address}, {Address: second.address}}}
	s, err := llmd.NewStandby(slog.New(slog.DiscardHandler), c) // that nobody probes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	p, err := s.Pick()
	if err != nil {
		t.Fatal(err)
	}
	p.Report(nil)
	p.Report(errors.New("strange"))
	if got := name(s); got != primary.address {
		t.Errorf("after one strange answer %s is used", got)
	}
	p.Report(status.Error(codes.Unavailable, "connection refused"))
	if got := name(s); got != second.address {
		t.Errorf("after a broken stream %s is used", got)
	}
	p, err = s.Pick()
	if err != nil {
		t.Fatal(err)
	}
	p.Report(&scheduler.Refusal{Reason: scheduler.ShuttingDown})
	if _, err := s.Pick(); !errors.Is(err, llmd.ErrNoScheduler) {
		t.Errorf("with one broken and one that stops: %v", err)
	}
	s.Close()
	if _, err := s.Pick(); !errors.Is(err, llmd.ErrNoScheduler) {
		t.Errorf("a closed list gave %v", err)
	}
}

// A peer that takes connections and says nothing, such as one behind a broken
// path, holds what was sent to it. Its streams end when it is found out.
func TestASilentSchedulerLetsGo(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mute := &stuck{Server: health.NewServer(), free: make(chan struct{})}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, mute)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	t.Cleanup(func() { close(mute.free) })
	s, err := llmd.NewStandby(slog.New(slog.DiscardHandler), llmd.StandbyConfig{
		EPPs: []llmd.EPP{{Address: l.Addr().String()}}, Interval: 10 * time.Millisecond, Timeout: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	p, err := s.Pick()
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := healthpb.NewHealthClient(p.Conn()).Check(t.Context(), &healthpb.HealthCheckRequest{})
		waits <- err
	}()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case err := <-waits:
		if err == nil {
			t.Error("the silent one answered")
		}
	case <-time.After(10 * time.Second):
		t.Error("who waits on a silent scheduler waits for ever")
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

type stuck struct {
	*health.Server

	free chan struct{}
}

func (s *stuck) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	select {
	case <-s.free:
	case <-ctx.Done():
	}
	return nil, ctx.Err()
}
