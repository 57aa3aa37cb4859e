package notify

import (
	"fmt"
	"net/netip"
	"slices"
)

// RefusedError says that an address, or a URL, is none that a caller may make
// us talk to. Its text is for the operator: it tells what a name resolves to
// inside our network.
type RefusedError struct {
	Target string
	Reason string
}

func (e *RefusedError) Error() string { return e.Target + " is refused: " + e.Reason }

// network is a part of the address space that is no public server's.
type network struct {
	prefix netip.Prefix
	reason string
}

// networks4 are the special-purpose networks of IPv4 (IANA's registry, RFC
// 6890), and the one public address at which a cloud answers its machines.
func networks4() []network {
	return []network{
		{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
		{netip.MustParsePrefix("10.0.0.0/8"), "private"},
		{netip.MustParsePrefix("100.64.0.0/10"), "shared by a carrier"},
		{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
		{netip.MustParsePrefix("168.63.129.16/32"), "a cloud's metadata"},
		{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
		{netip.MustParsePrefix("172.16.0.0/12"), "private"},
		{netip.MustParsePrefix("192.0.0.0/24"), "reserved"},
		{netip.MustParsePrefix("192.0.2.0/24"), "documentation"},
		{netip.MustParsePrefix("192.88.99.0/24"), "a 6to4 relay"},
		{netip.MustParsePrefix("192.168.0.0/16"), "private"},
		{netip.MustParsePrefix("198.18.0.0/15"), "benchmarking"},
		{netip.MustParsePrefix("198.51.100.0/24"), "documentation"},
		{netip.MustParsePrefix("203.0.113.0/24"), "documentation"},
		{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
		{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
	}
}

// networks6 are those of IPv6. What carries an IPv4 address inside is among
// them: a translator on the way would unpack it. The last one is the rest of
// the space, of which only 2000::/3 is given to anybody.
func networks6() []network {
	return []network{
		{netip.MustParsePrefix("::/128"), "unspecified"},
		{netip.MustParsePrefix("::1/128"), "loopback"},
		{netip.MustParsePrefix("::/96"), "an IPv4 address inside"},
		{netip.MustParsePrefix("64:ff9b::/96"), "NAT64"},
		{netip.MustParsePrefix("64:ff9b:1::/48"), "NAT64"},
		{netip.MustParsePrefix("100::/64"), "discarded"},
		{netip.MustParsePrefix("2001::/32"), "Teredo"},
		{netip.MustParsePrefix("2001::/23"), "reserved"},
		{netip.MustParsePrefix("2001:db8::/32"), "documentation"},
		{netip.MustParsePrefix("2002::/16"), "6to4"},
		{netip.MustParsePrefix("3fff::/20"), "documentation"},
		{netip.MustParsePrefix("fc00::/7"), "private"},
		{netip.MustParsePrefix("fe80::/10"), "link-local"},
		{netip.MustParsePrefix("fec0::/10"), "site-local"},
		{netip.MustParsePrefix("ff00::/8"), "multicast"},
	}
}

// rules decide over the address of a connection that is about to be made.
type rules struct {
	allow    []netip.Prefix
	ports    []uint16
	networks []network
	own      func() ([]netip.Addr, error)
}

// check refuses what is no public address on an allowed port. Networks that the
// operator allows may be anything, this machine included; the port is checked
// in any case.
func (r *rules) check(to netip.AddrPort) error {
	if !slices.Contains(r.ports, to.Port()) {
		return &RefusedError{Target: to.String(), Reason: fmt.Sprintf("port %d", to.Port())}
	}
	addr := to.Addr().WithZone("").Unmap() // ::ffff:10.0.0.1 is 10.0.0.1
	if slices.ContainsFunc(r.allow, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return nil
	}
	for _, n := range r.networks {
		if n.prefix.Contains(addr) {
			return &RefusedError{Target: to.String(), Reason: n.reason}
		}
	}
	if addr.Is6() && !netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20}), 3).Contains(addr) {
		return &RefusedError{Target: to.String(), Reason: "not assigned"}
	}
	own, err := r.own()
	if err != nil {
		return fmt.Errorf("list our own addresses: %w", err)
	}
	if slices.Contains(own, addr) {
		return &RefusedError{Target: to.String(), Reason: "our own machine"}
	}
	return nil
}
