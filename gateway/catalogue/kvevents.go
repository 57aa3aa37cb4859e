package catalogue

import (
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strconv"
)

// KVSource is where an engine publishes what its prefix cache has.
type KVSource struct {
	Address string // host:port
	TLS     bool
}

var (
	errKVPlace     = errors.New("write tcp://host:port or tls://host:port; * as host is that of the endpoint's url")
	errKVPlaintext = errors.New("it would be readable on the way, and holds what tenants ask: write tls://, or kv_network_encrypted: true where the network itself is encrypted")
)

// KVSources are where a rank of the endpoint, from 0, publishes its KV events
// and sends them again; each rank has the port after the one before. Empty
// addresses: nowhere. The error says why what is written can't be followed.
func (e Endpoint) KVSources(rank int) (events, replay KVSource, err error) {
	if events, err = e.kvSource(e.KVEvents, rank); err == nil {
		replay, err = e.kvSource(e.KVReplay, rank)
	}
	return events, replay, err
}

func (e Endpoint) kvSource(place string, rank int) (KVSource, error) {
	if place == "" {
		return KVSource{}, nil
	}
	u, err := url.Parse(place)
	if err != nil || u.Scheme != "tcp" && u.Scheme != "tls" || u.Path != "" || u.User != nil || u.RawQuery != "" {
		return KVSource{}, errKVPlace
	}
	host := u.Hostname()
	port, err := strconv.Atoi(u.Port())
	if err != nil || port < 1 || port+rank > 65535 || host == "" {
		return KVSource{}, errKVPlace
	}
	if host == "*" {
		own, err := url.Parse(e.URL)
		if err != nil {
			return KVSource{}, errKVPlace
		}
		host = own.Hostname()
	}
	s := KVSource{Address: net.JoinHostPort(host, strconv.Itoa(port+rank)), TLS: u.Scheme == "tls"}
	if !s.TLS && !e.KVNetworkEncrypted && !loopback(host) {
		return KVSource{}, errKVPlaintext
	}
	return s, nil
}

func loopback(host string) bool {
	at, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && at.IsLoopback()
}

// validateKV checks where the endpoint publishes. Of one that is yet to be found
// the host isn't known: then what is found is checked.
func (e Endpoint) validateKV(c *complaints, who string) {
	if e.KVEvents == "" && e.KVReplay != "" {
		c.add("%s: kv_replay is for what was missed of kv_events: write that too", who)
	}
	if e.URL == "" {
		e.URL = "http://127.0.0.1"
	}
	if _, _, err := e.KVSources(max(e.Ranks-1, 0)); err != nil {
		c.add("%s: kv_events or kv_replay: %w", who, err)
	}
}
