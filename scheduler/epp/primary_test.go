package epp_test

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"weir/scheduler"
	"weir/scheduler/epp"
	"weir/scheduler/extproc"
)

func (s *served) health(t *testing.T, service string) healthv1.HealthCheckResponse_ServingStatus {
	t.Helper()
	answer, err := healthv1.NewHealthClient(s.conn).Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetStatus()
}

// sent is how a request is sent to the primary.
func sent() refusedAs {
	return refusedAs{503, "server_error", "rejected-shutting-down", "shutting_down", "1"}
}

func TestWhoIsNoLongerPrimarySendsWhatWaitsAway(t *testing.T) {
	t.Parallel()
	s := serve(t, 1, scheduler.Config{}, epp.Config{})
	running, waiting := s.open(t), s.open(t)
	running.chat("running")
	running.routed()
	waiting.chat("waiting")
	s.rests(t, 1, 1)

	s.primary.Store(false)
	s.Follow(false)
	if got := waiting.refused(); got != sent() {
		t.Errorf("who waited was refused as %+v", got)
	}
	late := s.open(t)
	late.chat("late")
	if got := late.refused(); got != sent() {
		t.Errorf("who came was refused as %+v", got)
	}
	for _, service := range []string{"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"} {
		if got := s.health(t, service); got != healthv1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("service %q is %v", service, got)
		}
	}
	if got := s.health(t, "liveness"); got != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("liveness is %v", got)
	}

	// What ran is not hurt: it ends as it would have.
	running.responseHeaders(":status", "200")
	running.recv()
	running.responseBody("{}", true)
	running.recv()
	s.rests(t, 0, 0)
	if err := running.end(); err != nil {
		t.Error(err)
	}

	s.primary.Store(true)
	s.Follow(true)
	if got := s.health(t, ""); got != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health is %v", got)
	}
	again := s.open(t)
	again.chat("late")
	again.routed()
	again.cancel()
}

// The lease may end in the very instant in which an endpoint is found.
func TestAnEndpointThatComesTooLateIsGivenBack(t *testing.T) {
	t.Parallel()
	s, w := watched(t)
	w.then = func() { s.primary.Store(false) }
	p := s.open(t)
	p.chat("r")
	if got := p.refused(); got != sent() {
		t.Errorf("refused as %+v", got)
	}
	if _, o := w.first(t); o.Result != scheduler.CallerFault {
		t.Errorf("the lease ended as %+v, want one that costs nothing", o)
	}
}

func TestAStopLetsWhatRunsFinish(t *testing.T) {
	t.Parallel()
	s := serve(t, 2, scheduler.Config{}, epp.Config{})
	finishes, stays := s.open(t), s.open(t)
	for i, p := range []*proxy{finishes, stays} {
		p.chat(string(rune('a' + i)))
		p.routed()
	}
	waiting := s.open(t)
	waiting.chat("waiting")
	s.rests(t, 2, 1)
	s.stop()
	if got := waiting.refused(); got != sent() {
		t.Errorf("who waited was refused as %+v", got)
	}
	finishes.responseHeaders(":status", "200")
	finishes.recv()
	finishes.responseBody("{}", true)
	finishes.recv()
	if err := finishes.end(); err != nil {
		t.Errorf("a running stream was cut: %v", err)
	}
	began := time.Now()
	if _, err := stays.stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("one that outlasts the grace got %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the grace of 2 s took %v", took)
	}
	<-s.done
}

func TestAnEvictedRequestKeepsItsPlaceUntilItHasLeft(t *testing.T) {
	t.Parallel()
	s := serve(t, 1, scheduler.Config{Eviction: true}, epp.Config{})
	low, high := s.open(t), s.open(t)
	low.chat("low", extproc.Objective, "batch")
	low.routed()
	high.chat("high", extproc.Objective, "gold")
	want := refusedAs{429, "rate_limit_error", "evicted", "", "1"}
	if got := low.refused(); got != want {
		t.Errorf("evicted as %+v, want %+v", got, want)
	}
	if st := s.pool.State(); st.Live != 1 || st.Queued != 1 {
		t.Errorf("%d run and %d wait before the evicted one has left", st.Live, st.Queued)
	}
	if err := low.end(); err != nil {
		t.Error(err)
	}
	high.routed()
	high.cancel()
}

func TestOneThatDoesNotLeaveIsCut(t *testing.T) {
	t.Parallel()
	s := serve(t, 1, scheduler.Config{Eviction: true}, epp.Config{Evicting: 50 * time.Millisecond})
	low, high := s.open(t), s.open(t)
	low.chat("low", extproc.Objective, "batch")
	low.routed()
	high.chat("high", extproc.Objective, "gold")
	low.refused()
	high.routed()
	if err := low.end(); err != nil {
		t.Error(err)
	}
	high.cancel()
}

func TestRefusalsAreWordedAsAnEndpointPickers(t *testing.T) {
	t.Parallel()
	for reason, want := range map[scheduler.Reason]refusedAs{
		scheduler.FlowFull:     {429, "rate_limit_error", "rejected-saturated", "flow_full", "3"},
		scheduler.BandFull:     {429, "rate_limit_error", "rejected-saturated", "band_full", "3"},
		scheduler.PoolFull:     {429, "rate_limit_error", "rejected-saturated", "pool_full", "3"},
		scheduler.ShedLoad:     {429, "rate_limit_error", "rejected-saturated", "shed", "3"},
		scheduler.QueueTimeout: {429, "rate_limit_error", "rejected-ttl-expired", "queue_timeout", "3"},
		scheduler.NoEndpoints:  {503, "server_error", "rejected-no-endpoints", "no_endpoints", "3"},
		scheduler.ShuttingDown: {503, "server_error", "rejected-shutting-down", "shutting_down", "3"},
		scheduler.Internal:     {500, "server_error", "rejected-internal", "internal", "3"},
	} {
		t.Run(string(reason), func(t *testing.T) {
			t.Parallel()
			s := &served{done: make(chan struct{})}
			s.with(t, onePool{of: refuses(func() error {
				return &scheduler.Refusal{Reason: reason, RetryAfter: 2500 * time.Millisecond}
			})}, epp.Config{})
			p := s.open(t)
			p.chat("r")
			if got := p.refused(); got != want {
				t.Errorf("refused as %+v, want %+v", got, want)
			}
		})
	}
	t.Run("an error that is none of its own", func(t *testing.T) {
		t.Parallel()
		s := &served{done: make(chan struct{})}
		s.with(t, onePool{of: refuses(func() error { return errors.New("broken: secret detail") })}, epp.Config{})
		p := s.open(t)
		p.chat("r")
		if got, want := p.refused(), (refusedAs{500, "server_error", "rejected-internal", "internal", ""}); got != want {
			t.Errorf("refused as %+v, want %+v", got, want)
		}
	})
}
