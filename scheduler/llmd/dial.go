package llmd

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// handshake bounds that of TLS and HTTP/2, for which both sides have to compute.
const handshake = 2 * time.Second

// dial makes a connection that is opened when it is needed. Every attempt
// resolves the name again, and no proxy of the environment is used. There are
// no keepalive pings: servers of gRPC cut clients off that send them more often
// than each five minutes, and probes tell more.
func dial(e EPP, connect time.Duration) (*grpc.ClientConn, error) {
	var dialer net.Dialer
	security := insecure.NewCredentials()
	if e.TLS != nil {
		security = credentials.NewTLS(e.TLS)
	}
	conn, err := grpc.NewClient("passthrough:///"+e.Address,
		grpc.WithTransportCredentials(security),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, connect)
			defer cancel()
			return dialer.DialContext(ctx, "tcp", addr)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: connect + handshake,
		}),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return nil, fmt.Errorf("scheduler %s: %w", e.Address, err)
	}
	return conn, nil
}
