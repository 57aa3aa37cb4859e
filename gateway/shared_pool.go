package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"weir/gateway/catalogue"
	"weir/scheduler"
	"weir/scheduler/llmd"
)

var errPlaintext = errors.New("its scheduler is reached without TLS (insecure_plaintext), which only `weir dev` does")

// schedulerPatience is how long a request is sent again whose scheduler went
// away while it waited there: enough for a standby to be found, or for a restart.
const schedulerPatience = 10 * time.Second

// newShared makes the queue of a pool whose scheduler is another process. One
// that can't be made is one that doesn't answer, and says why.
func (f *Fleet) newShared(p *catalogue.Pool, settings catalogue.Scheduler, w *watched) *sharedQueue {
	q := &sharedQueue{idle: make(chan struct{}), objectives: newObjectives(p, settings.Objectives)}
	if p.StandsIn() {
		q.standIn = w.scheduler
	}
	if p.Scheduler.Kind == catalogue.KindLLMDHTTP {
		q.gateway = newEPPGateway(f.log.With("pool", p.Name), p, settings.Objectives)
		q.remote = q.gateway
		return q
	}
	if q.fault = f.connect(q, p, settings, w); q.fault != nil {
		f.log.Error("a pool's scheduler can't be used", "pool", p.Name, "error", q.fault)
	}
	return q
}

// fits reports whether the queue still suits a pool whose settings are the
// same: what it can do also depends on the pool's endpoints.
func (q *sharedQueue) fits(p *catalogue.Pool) bool {
	if q.gateway != nil {
		return q.gateway.leadsTo(p)
	}
	return (q.standIn != nil) == p.StandsIn()
}

// connect makes the list of the pool's schedulers and who asks them.
func (f *Fleet) connect(q *sharedQueue, p *catalogue.Pool, settings catalogue.Scheduler, w *watched) error {
	s := p.Scheduler
	if s.Plaintext() && !f.plaintext {
		return errPlaintext
	}
	log := f.log.With("pool", p.Name)
	list, err := standbyOf(log, s.Shared)
	if err != nil {
		return err
	}
	q.list = list
	q.remote = llmd.New(log, llmd.Config{
		Pool: p.Name, Picker: list.Pick, Objectives: settings.Objectives, Own: s.Kind == catalogue.KindWeir,
		Patience: schedulerPatience, Allowed: newDestinations(p, &w.feed).find,
	})
	return nil
}

// standbyOf is the list of a pool's schedulers.
func standbyOf(log *slog.Logger, s catalogue.Shared) (*llmd.Standby, error) {
	conf := llmd.StandbyConfig{}
	for _, address := range s.EPP {
		e, err := eppOf(address, s.TLS)
		if err != nil {
			return nil, err
		}
		conf.EPPs = append(conf.EPPs, e)
	}
	return llmd.NewStandby(log, conf)
}

// eppOf is a scheduler's address, and what its certificate must be.
func eppOf(address string, t *catalogue.SchedulerTLS) (llmd.EPP, error) {
	secure, host, ok := strings.Cut(address, "://")
	if !ok {
		return llmd.EPP{}, fmt.Errorf("scheduler %q is no URL", address)
	}
	if secure == "grpc" {
		return llmd.EPP{Address: host}, nil
	}
	conf, err := schedulerTLS(t)
	return llmd.EPP{Address: host, TLS: conf}, err
}

// schedulerTLS is what we trust and show. Our certificate is read for each
// connection, so that a renewed one is used.
func schedulerTLS(t *catalogue.SchedulerTLS) (*tls.Config, error) {
	if t == nil {
		t = &catalogue.SchedulerTLS{}
	}
	conf, err := trust{caFile: t.CAFile, serverName: t.ServerName}.config()
	if err != nil {
		return nil, err
	}
	if t.CA != "" {
		if conf.RootCAs, err = certificates([]byte(t.CA), "ca"); err != nil {
			return nil, err
		}
	}
	if t.CertFile != "" {
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
			return &pair, err
		}
		if _, err := load(); err != nil {
			return nil, fmt.Errorf("our certificate for the scheduler: %w", err)
		}
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return conf, nil
}

// feed is what a watcher tells of a pool's endpoints: to the embedded scheduler,
// and to who has to know where a shared one may send.
type feed struct {
	*scheduler.Embedded

	caches *caches
	known  atomic.Pointer[map[string]scheduler.Target] // by host:port
}

// SetEndpoints replaces the endpoints, listed and found ones.
func (f *feed) SetEndpoints(all []scheduler.Endpoint) {
	known := make(map[string]scheduler.Target, len(all))
	for _, e := range all {
		if place := hostPort(e.URL); place != "" {
			known[place] = scheduler.Target{Endpoint: e.ID, URL: e.URL}
		}
	}
	f.known.Store(&known)
	f.Embedded.SetEndpoints(all)
	f.caches.of(all)
}

// hostPort is where a base URL leads; "" where it is none.
func hostPort(base string) string {
	u, err := url.Parse(base)
	if err != nil || u.Hostname() == "" {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// destinations are where a shared scheduler may send: the pool's endpoints, and
// what its allowed_destinations name. Nowhere else, whatever it says: requests
// hold what tenants asked, and go out with the engines' key.
type destinations struct {
	feed     *feed
	scheme   string
	networks []netip.Prefix
	servers  map[string]bool // host:port
}

func newDestinations(p *catalogue.Pool, f *feed) *destinations {
	d := &destinations{feed: f, scheme: "http", servers: map[string]bool{}}
	if p.Scheduler.Scheme != "" {
		d.scheme = p.Scheduler.Scheme
	}
	for _, text := range p.Scheduler.AllowedDestinations {
		if network, err := netip.ParsePrefix(text); err == nil {
			d.networks = append(d.networks, network.Masked())
		} else {
			d.servers[text] = true
		}
	}
	return d
}

// find is the target that a destination names.
func (d *destinations) find(place string) (scheduler.Target, bool) {
	if known := d.feed.known.Load(); known != nil {
		if t, ok := (*known)[place]; ok {
			return t, true
		}
	}
	if !d.servers[place] && !d.inNetworks(place) {
		return scheduler.Target{}, false
	}
	return scheduler.Target{Endpoint: place, URL: d.scheme + "://" + place}, true
}

func (d *destinations) inNetworks(place string) bool {
	at, err := netip.ParseAddrPort(place)
	if err != nil || at.Port() == 0 || at.Addr().Zone() != "" {
		return false
	}
	ip := at.Addr().Unmap()
	for _, network := range d.networks {
		if network.Contains(ip) {
			return true
		}
	}
	return false
}
