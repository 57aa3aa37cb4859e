package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Resolver asks DNS: a *net.Resolver.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// DNS is a name whose addresses, or SRV records, are the endpoints. It is asked
// again and again; a failed answer leaves the last good set.
//
// That a name has no records is an answer too, and the one that Kubernetes
// gives for a service without ready pods. Since name servers also say so by
// mistake, while they start, it counts when it comes three times in a row.
type DNS struct {
	Name     string
	SRV      bool          // ask for SRV records: each names a host and a port
	Port     int           // of the endpoints, where SRV doesn't say
	Scheme   string        // of their URLs (http)
	Interval time.Duration // between two questions (5 s), give or take a fifth
	Resolver Resolver      // nil: the system's
}

var _ Source = DNS{}

const (
	defaultDNSInterval = 5 * time.Second
	dnsTimeout         = 5 * time.Second
	emptyAfter         = 3 // answers in a row that there is nothing
)

// Watch asks until ctx ends.
func (d DNS) Watch(ctx context.Context, log *slog.Logger, report func([]Found)) {
	log = log.With("name", d.Name)
	next := time.NewTimer(0)
	defer next.Stop()
	var last []Found
	absent, complaint := 0, ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		found, err := d.ask(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			absent = 0
		case notFound(err):
			absent++
		}
		if text := message(err); text != complaint {
			complaint = text
			if err != nil {
				log.Warn("endpoints can't be looked up: the last good set stays", "error", err)
			}
		}
		if known := err == nil || absent == emptyAfter; known && !reflect.DeepEqual(found, last) {
			last = found
			report(found)
		}
		next.Reset(jitter(cmp.Or(d.Interval, defaultDNSInterval)))
	}
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func notFound(err error) bool {
	e, ok := errors.AsType[*net.DNSError](err)
	return ok && e.IsNotFound && !e.IsTimeout && !e.IsTemporary
}

// ask returns what the name stands for now, in a fixed order.
func (d DNS) ask(ctx context.Context) ([]Found, error) {
	ctx, cancel := context.WithTimeout(ctx, dnsTimeout)
	defer cancel()
	hosts, err := d.hosts(ctx)
	if err != nil {
		return nil, err
	}
	slices.Sort(hosts)
	hosts = slices.Compact(hosts)
	found := make([]Found, 0, min(len(hosts), maxFound))
	for _, host := range hosts[:cap(found)] {
		found = append(found, Found{ID: host, URL: cmp.Or(d.Scheme, "http") + "://" + host})
	}
	return found, nil
}

// hosts are the endpoints as host:port.
func (d DNS) hosts(ctx context.Context) ([]string, error) {
	resolver := d.Resolver
	if resolver == nil {
		resolver = net.DefaultResolver
	}
	if d.SRV {
		_, records, err := resolver.LookupSRV(ctx, "", "", d.Name)
		if err != nil {
			return nil, fmt.Errorf("look up SRV: %w", err)
		}
		return preferred(records), nil
	}
	addresses, err := resolver.LookupNetIP(ctx, "ip", d.Name)
	if err != nil {
		return nil, fmt.Errorf("look up addresses: %w", err)
	}
	hosts := make([]string, 0, len(addresses))
	for _, a := range addresses {
		hosts = append(hosts, net.JoinHostPort(a.Unmap().WithZone("").String(), strconv.Itoa(d.Port)))
	}
	return hosts, nil
}

// preferred are the hosts of the lowest priority number, which RFC 2782 puts
// before all others. Weights are left to the scheduler, which knows the loads.
func preferred(records []*net.SRV) []string {
	if len(records) == 0 {
		return nil
	}
	first := slices.MinFunc(records, func(a, b *net.SRV) int { return cmp.Compare(a.Priority, b.Priority) })
	var hosts []string
	for _, r := range records {
		host := strings.TrimSuffix(r.Target, ".")
		if r.Priority == first.Priority && hostName(host) && r.Port > 0 {
			hosts = append(hosts, net.JoinHostPort(host, strconv.Itoa(int(r.Port))))
		}
	}
	return hosts
}
