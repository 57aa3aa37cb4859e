package epp

import (
	"net"
	"net/url"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"weir/scheduler"
)

// subsetSpace is where a proxy's metadata names the endpoints that may be taken.
const (
	subsetSpace = "envoy.lb.subset_hint"
	subsetName  = "x-gateway-destination-endpoint-subset"
	maxSubset   = 10_000
)

// subset is a proxy's hint. As in llm-d the addresses in it count, and not the
// ports.
type subset struct {
	given bool
	hosts map[string]bool
}

func subsetOf(m *corev3.Metadata) subset {
	hint, given := m.GetFilterMetadata()[subsetSpace].GetFields()[subsetName]
	if !given {
		return subset{}
	}
	s := subset{given: true, hosts: make(map[string]bool)}
	for i, v := range hint.GetListValue().GetValues() {
		if i == maxSubset {
			break
		}
		host, _, err := net.SplitHostPort(v.GetStringValue())
		if err != nil {
			host = v.GetStringValue()
		}
		s.hosts[host] = true
	}
	return s
}

// has reports whether an endpoint is in the subset.
func (s subset) has(base string) bool {
	u, err := url.Parse(base)
	return err == nil && s.hosts[u.Hostname()]
}

func (s subset) holds(targets []scheduler.Target) bool {
	for _, t := range targets {
		if !s.has(t.URL) {
			return false
		}
	}
	return true
}
