package epp

import (
	"context"
	"net"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"weir/scheduler/extproc"
)

// caller is who opened a stream, as its connection and its first metadata say.
type caller struct {
	pool string
	own  bool // a gateway of ours
}

// caller finds out who calls and which pool is meant. That somebody is a gateway
// of ours is believed where the connection proves it: by a certificate that was
// checked, or by coming from this machine.
func (s *Server) caller(ctx context.Context) (caller, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	c := caller{own: slices.Contains(md.Get(extproc.GatewayKey), "1")}
	if c.own && !proven(ctx) {
		return caller{}, status.Error(codes.PermissionDenied, "a gateway must present a client certificate, or be on this machine")
	}
	named := md.Get(extproc.PoolKey)
	if len(named) > 0 {
		c.pool = named[0]
	} else if all := s.fleet.Pools(); len(all) == 1 {
		c.pool = all[0]
	} else {
		return caller{}, status.Errorf(codes.InvalidArgument, "there are %d pools: the metadata %s must name one", len(all), extproc.PoolKey)
	}
	if _, known := s.fleet.Scheduler(c.pool); !known {
		return caller{}, status.Error(codes.NotFound, "there is no such pool")
	}
	return c, nil
}

func proven(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	if t, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(t.State.VerifiedChains) > 0 {
		return true
	}
	a, ok := p.Addr.(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}
