package epp

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
)

// Serving sets how a Server listens.
type Serving struct {
	TLS   *tls.Config   // nil: plain, which only loopback should be
	Grace time.Duration // how long running requests may finish once ctx has ended
}

const (
	maxMessage = 4 << 20 // bytes, as llm-d has it
	// A gateway's machine that vanished is noticed, and its requests ended, within
	// these two.
	pingEvery = 20 * time.Second
	pingWait  = 10 * time.Second
	// Callers may ping as often.
	leastPing = 5 * time.Second
)

// Serve answers on the listener until ctx ends. Then it refuses what waits and
// what comes, lets running requests finish within the grace, cuts those that
// haven't, and returns when no goroutine of a stream is left. It closes the
// listener.
func (s *Server) Serve(ctx context.Context, l net.Listener, o Serving) error {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingWait}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: leastPing, PermitWithoutStream: true}),
	}
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	server := grpc.NewServer(options...)
	extprocv3.RegisterExternalProcessorServer(server, s)
	healthv1.RegisterHealthServer(server, s.health)
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		s.halt()
		patience := time.AfterFunc(o.Grace, server.Stop)
		defer patience.Stop()
		server.GracefulStop()
	})
	err := server.Serve(l)
	if stop() { // it failed by itself
		server.Stop()
	} else {
		<-stopped
		err = nil
	}
	s.readers.Wait()
	return err
}

// halt admits nothing any more.
func (s *Server) halt() {
	s.mu.Lock()
	s.halted = true
	s.mu.Unlock()
	s.Follow(false)
}

// serving is what the health service answers: of the whole, and of the service
// by which llm-d's users ask. That the process lives is another question.
func (s *Server) serving(primary bool) {
	is := healthv1.HealthCheckResponse_NOT_SERVING
	if primary {
		is = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range []string{"", "readiness", extprocv3.ExternalProcessor_ServiceDesc.ServiceName} {
		s.health.SetServingStatus(name, is)
	}
	s.health.SetServingStatus("liveness", healthv1.HealthCheckResponse_SERVING)
}
