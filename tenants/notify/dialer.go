// Package notify is how Weir reaches addresses that tenants choose: media of
// their requests, and their webhooks. It has the one dialer that checks where a
// connection goes at the moment at which it is made, so that nobody makes us
// talk to ourselves, to a neighbour or to a cloud's metadata.
package notify

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// Config says what is reachable, beside public addresses on the usual ports.
// The zero value is right for the open internet.
type Config struct {
	// Allow names networks that are reachable though they are not public: those
	// of a private deployment. Nil allows none.
	Allow []netip.Prefix
	// Ports that may be connected to; nil is 80 and 443.
	Ports []uint16
	// Resolver finds the addresses of names; nil is the system's.
	Resolver *net.Resolver
	// Own lists the addresses of this machine, at which our own listeners are;
	// nil asks the system.
	Own func() ([]netip.Addr, error)
}

// connectTimeout bounds one attempt, with all addresses of a name.
const connectTimeout = 10 * time.Second

// Dialer makes connections to public addresses only. What it checks is the
// address of the socket, after names are resolved: a name that resolves to
// something else a moment later gains nothing. It is safe for concurrent use.
type Dialer struct {
	rules  rules
	dialer net.Dialer
}

// NewDialer makes a Dialer.
func NewDialer(c Config) *Dialer {
	d := &Dialer{rules: rules{
		allow: c.Allow, ports: c.Ports, own: c.Own,
		networks: append(networks4(), networks6()...),
	}}
	if d.rules.ports == nil {
		d.rules.ports = []uint16{80, 443}
	}
	if d.rules.own == nil {
		d.rules.own = ownAddresses
	}
	d.dialer = net.Dialer{Timeout: connectTimeout, Resolver: c.Resolver, ControlContext: d.control}
	return d
}

// DialContext connects to host:port over TCP. Where the address is none that
// may be reached, the error has a *RefusedError in it.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
		return d.dialer.DialContext(ctx, network, address)
	default:
		return nil, &RefusedError{Target: address, Reason: "network " + network}
	}
}

// control is called with the address of each socket before it connects.
func (d *Dialer) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("address of a connection: %w", err)
	}
	return d.rules.check(to)
}

func ownAddresses() ([]netip.Addr, error) {
	interfaces, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var own []netip.Addr
	for _, a := range interfaces {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, p.Addr().WithZone("").Unmap())
		}
	}
	return own, nil
}
