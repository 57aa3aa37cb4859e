package api

import (
	"net/netip"
	"sync"
	"time"

	"weir/gateway"
)

// Bad keys are counted by the caller's network, never by what the key claims:
// a stranger can't lock out a tenant. A network may send a burst of them, then
// one each interval.
const (
	badKeyBurst    = 60
	badKeyInterval = time.Second
	maxNetworks    = 1 << 14
)

// badKeys limits how many bad keys a network may try. For each network it holds
// the instant at which its whole burst is back; one in the past says nothing
// and may be forgotten.
type badKeys struct {
	now func() time.Time

	mu       sync.Mutex
	networks map[netip.Prefix]time.Time
}

func newBadKeys(now func() time.Time) *badKeys {
	return &badKeys{now: now, networks: map[netip.Prefix]time.Time{}}
}

// blocked returns how long the caller's network has to wait; 0: not at all.
func (b *badKeys) blocked(client netip.Addr) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	full, known := b.networks[network(client)]
	if !known {
		return 0
	}
	return max(0, full.Sub(b.now())-(badKeyBurst-1)*badKeyInterval)
}

// record counts one bad key.
func (b *badKeys) record(client netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, net := b.now(), network(client)
	full := b.networks[net]
	if full.IsZero() && len(b.networks) >= maxNetworks {
		b.forget(now)
	}
	if full.Before(now) {
		full = now
	}
	b.networks[net] = full.Add(badKeyInterval)
}

// forget makes room: what has recovered goes, else half of all, whichever.
func (b *badKeys) forget(now time.Time) {
	for net, full := range b.networks {
		if full.Before(now) {
			delete(b.networks, net)
		}
	}
	for net := range b.networks {
		if len(b.networks) <= maxNetworks/2 {
			return
		}
		delete(b.networks, net)
	}
}

// network is what one caller can be expected to have: an IPv4 address or a /64.
func network(client netip.Addr) netip.Prefix {
	bits := 64
	if client.Is4() {
		bits = 32
	}
	p, err := client.Prefix(bits)
	if err != nil {
		return netip.Prefix{} // no address: all such callers together
	}
	return p
}

func tooManyBadKeysFor(wait time.Duration) error {
	return &gateway.Error{Cause: tooManyBadKeys, RetryAfter: wait}
}
