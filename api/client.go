package api

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// proxies knows which peers may say for whom they forward.
type proxies []netip.Prefix

func (t proxies) trust(a netip.Addr) bool {
	return slices.ContainsFunc(t, func(p netip.Prefix) bool { return p.Contains(a) })
}

// client returns the caller's address: the peer itself or, where that is a
// trusted proxy, the right-most address in X-Forwarded-For that is none. What
// stands left of it may be anyone's invention. The result is invalid where the
// peer has no address.
func (t proxies) client(r *http.Request) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	client := peer.Addr().Unmap().WithZone("")
	if !t.trust(client) {
		return client
	}
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		addr, err := parseHop(strings.TrimSpace(hop))
		if err != nil {
			return client // not an address: the last one that we understood
		}
		client = addr
		if !t.trust(client) {
			break
		}
	}
	return client
}

// parseHop reads an address, with or without a port.
func parseHop(hop string) (netip.Addr, error) {
	if ap, err := netip.ParseAddrPort(hop); err == nil {
		return ap.Addr().Unmap().WithZone(""), nil
	}
	addr, err := netip.ParseAddr(strings.Trim(hop, "[]"))
	return addr.Unmap().WithZone(""), err
}
