package notify

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
)

func noneOwn() ([]netip.Addr, error) { return nil, nil }

func TestOnlyPublicAddressesAreReachable(t *testing.T) {
	t.Parallel()
	d := NewDialer(Config{Own: func() ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("2606:2800:220:1::1")}, nil
	}})
	for _, tt := range []struct {
		name, address string
		ok            bool
	}{
		{"a public IPv4 address", "93.184.216.35:443", true},
		{"a public IPv6 address", "[2606:2800:220:1::2]:80", true},
		{"a public address, IPv4-mapped", "[::ffff:93.184.216.35]:443", true},
		{"just outside 172.16/12", "172.32.0.1:80", true},
		{"just outside 100.64/10", "100.128.0.1:80", true},
		{"just above 2001::/23", "[2001:200::1]:443", true},

		{"loopback", "127.0.0.1:80", false},
		{"all of loopback", "127.255.255.254:80", false},
		{"loopback, IPv6", "[::1]:80", false},
		{"unspecified", "0.0.0.0:80", false},
		{"this network", "0.1.2.3:80", false},
		{"unspecified, IPv6", "[::]:80", false},
		{"private 10/8", "10.255.0.1:80", false},
		{"private 172.16/12", "172.31.255.255:80", false},
		{"private 192.168/16", "192.168.1.1:443", false},
		{"unique local", "[fd12:3456::1]:443", false},
		{"carrier-grade NAT", "100.64.0.1:80", false},
		{"metadata of AWS, GCP and Azure", "169.254.169.254:80", false},
		{"metadata of AWS, IPv6", "[fd00:ec2::254]:80", false},
		{"metadata of Alibaba", "100.100.100.200:80", false},
		{"metadata of Oracle", "192.0.0.192:80", false},
		{"Azure's wire server, which is public", "168.63.129.16:80", false},
		{"link-local, IPv6, with a zone", "[fe80::1%eth0]:80", false},
		{"site-local", "[fec0::1]:80", false},
		{"multicast", "224.0.0.1:80", false},
		{"multicast, IPv6", "[ff02::1]:80", false},
		{"broadcast", "255.255.255.255:80", false},
		{"benchmarking", "198.19.0.1:80", false},
		{"documentation", "203.0.113.9:80", false},
		{"documentation, IPv6", "[2001:db8::1]:80", false},
		{"newer documentation, IPv6", "[3fff::1]:80", false},
		{"mapped loopback", "[::ffff:127.0.0.1]:80", false},
		{"mapped metadata", "[::ffff:169.254.169.254]:80", false},
		{"IPv4-compatible loopback", "[::127.0.0.1]:80", false},
		{"IPv4-translated loopback", "[::ffff:0:127.0.0.1]:80", false},
		{"NAT64 of a private address", "[64:ff9b::10.0.0.1]:80", false},
		{"NAT64 of a public address", "[64:ff9b::93.184.216.35]:80", false},
		{"local NAT64", "[64:ff9b:1::a00:1]:80", false},
		{"6to4 of a private address", "[2002:a00:1::1]:80", false},
		{"Teredo", "[2001:0:a00:1::1]:80", false},
		{"ORCHID", "[2001:20::1]:80", false},
		{"not assigned", "[4000::1]:80", false},
		{"our own public address", "93.184.216.34:443", false},
		{"our own public address, mapped", "[::ffff:93.184.216.34]:443", false},
		{"our own public IPv6 address", "[2606:2800:220:1::1]:443", false},
		{"ssh on a public address", "93.184.216.35:22", false},
		{"a database's port", "93.184.216.35:5432", false},
		{"port 0", "93.184.216.35:0", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			err := d.control(t.Context(), "tcp", tt.address, nil)
			_, refused := errors.AsType[*RefusedError](err)
			if refused == tt.ok || tt.ok && err != nil {
				t.Errorf("%s: %v", tt.address, err)
			}
		})
	}
}

func TestOperatorsAllowWhatIsNotPublic(t *testing.T) {
	t.Parallel()
	d := NewDialer(Config{
		Allow: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32")},
		Ports: []uint16{8443}, Own: noneOwn,
	})
	for address, ok := range map[string]bool{
		"10.1.2.3:8443": true, "[::ffff:10.1.2.3]:8443": true, "[fd00:1::5]:8443": true, "93.184.216.35:8443": true,
		"10.1.2.3:443": false, "10.2.0.1:8443": false, "127.0.0.1:8443": false, "[fd00:2::5]:8443": false,
	} {
		if err := d.control(t.Context(), "tcp", address, nil); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestNothingIsReachableWhileOurOwnAddressesAreUnknown(t *testing.T) {
	t.Parallel()
	d := NewDialer(Config{Own: func() ([]netip.Addr, error) { return nil, errors.New("no interfaces") }})
	if err := d.control(t.Context(), "tcp", "93.184.216.35:443", nil); err == nil {
		t.Error("reachable")
	}
	if _, err := d.DialContext(t.Context(), "udp", "93.184.216.35:443"); err == nil {
		t.Error("UDP is reachable")
	}
	if own, err := ownAddresses(); err != nil || len(own) == 0 {
		t.Errorf("own addresses: %v, %v", own, err)
	}
}

// nameserver answers each question for an A record with the next of its
// addresses, the last one again and again: a name that rebinds.
type nameserver struct {
	mu      sync.Mutex
	answers []netip.Addr
	asked   int
}

func (n *nameserver) next() netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	a := n.answers[0]
	if len(n.answers) > 1 {
		n.answers = n.answers[1:]
	}
	return a
}

// serve answers on a loopback socket until the test ends and returns a
// resolver that asks there.
func (n *nameserver) serve(t *testing.T) *net.Resolver {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { _ = conn.Close(); <-done })
	go func() {
		defer close(done)
		buf := make([]byte, 1500)
		for {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(n.answer(buf[:size]), from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

// answer is the reply to a query (RFC 1035, 4.1): its header and question, and
// one record where it asks for an A record.
func (n *nameserver) answer(query []byte) []byte {
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5 // the root, type and class
	reply := append([]byte(nil), query[:end]...)
	binary.BigEndian.PutUint16(reply[2:], 0x8180) // a reply, recursion available
	clear(reply[6:12])
	if binary.BigEndian.Uint16(query[end-4:]) != 1 {
		return reply
	}
	reply[7] = 1
	reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4) // the name above, A, IN, TTL 0
	return append(reply, n.next().AsSlice()...)
}

func TestANameThatRebindsGainsNothing(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := netip.MustParseAddrPort(listener.Addr().String()).Port()
	names := &nameserver{answers: []netip.Addr{netip.MustParseAddr("93.184.216.35"), netip.MustParseAddr("127.0.0.1")}}
	d := NewDialer(Config{Ports: []uint16{port}, Resolver: names.serve(t), Own: noneOwn})

	// Whoever looks first, as a filter in front would, sees a public address.
	seen, err := d.dialer.Resolver.LookupNetIP(t.Context(), "ip4", "rebind.test")
	if err != nil || len(seen) != 1 || d.rules.check(netip.AddrPortFrom(seen[0], port)) != nil {
		t.Fatalf("first look: %v, %v", seen, err)
	}
	conn, err := d.DialContext(t.Context(), "tcp4", net.JoinHostPort("rebind.test", listener.Addr().String()[len("127.0.0.1:"):]))
	if conn != nil {
		_ = conn.Close()
	}
	if _, refused := errors.AsType[*RefusedError](err); !refused {
		t.Fatalf("connected to loopback: %v", err)
	}
	names.mu.Lock()
	defer names.mu.Unlock()
	if names.asked < 2 {
		t.Fatalf("asked %d times: the name did not rebind", names.asked)
	}
}
