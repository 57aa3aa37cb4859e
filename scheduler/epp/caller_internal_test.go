package epp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"weir/scheduler"
	"weir/scheduler/extproc"
)

// shelf is a fleet of pools that are only named.
type shelf []string

func (s shelf) Pools() []string                       { return s }
func (s shelf) Endpoints(string) []scheduler.Endpoint { return nil }
func (s shelf) Band(string) (int, bool)               { return 0, false }
func (s shelf) Scheduler(n string) (scheduler.Scheduler, bool) {
	return nil, slices.Contains(s, n)
}

func TestWhoCallsIsBelievedByTheConnectionAlone(t *testing.T) {
	t.Parallel()
	remote, local := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
	checked := credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}}
	presented := credentials.TLSInfo{State: tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}}
	gateway, pool := []string{extproc.GatewayKey, "1"}, []string{extproc.PoolKey, "a"}
	for _, c := range []struct {
		name  string
		peer  peer.Peer
		said  []string
		pools shelf
		want  caller
		code  codes.Code
	}{
		{name: "a gateway with a checked certificate", peer: peer.Peer{Addr: remote, AuthInfo: checked}, said: gateway, pools: shelf{"a"}, want: caller{pool: "a", own: true}},
		{name: "a gateway on this machine", peer: peer.Peer{Addr: local}, said: gateway, pools: shelf{"a"}, want: caller{pool: "a", own: true}},
		{name: "a gateway that proves nothing", peer: peer.Peer{Addr: remote}, said: gateway, pools: shelf{"a"}, code: codes.PermissionDenied},
		{name: "a gateway with a certificate that nobody checked", peer: peer.Peer{Addr: remote, AuthInfo: presented}, said: gateway, pools: shelf{"a"}, code: codes.PermissionDenied},
		{name: "a proxy from anywhere", peer: peer.Peer{Addr: remote}, pools: shelf{"a"}, want: caller{pool: "a"}},
		{name: "one of several pools", peer: peer.Peer{Addr: remote}, said: pool, pools: shelf{"a", "b"}, want: caller{pool: "a"}},
		{name: "no pool named where there are several", peer: peer.Peer{Addr: remote}, pools: shelf{"a", "b"}, code: codes.InvalidArgument},
		{name: "a pool that isn't there", peer: peer.Peer{Addr: remote}, said: pool, pools: shelf{"b"}, code: codes.NotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := New(slog.New(slog.DiscardHandler), c.pools, NewMetrics(nil), Config{})
			ctx := peer.NewContext(metadata.NewIncomingContext(context.WithoutCancel(t.Context()), metadata.Pairs(c.said...)), &c.peer)
			got, err := s.caller(ctx)
			if got != c.want || status.Code(err) != c.code {
				t.Errorf("got %+v, %v; want %+v, %v", got, err, c.want, c.code)
			}
		})
	}
}
