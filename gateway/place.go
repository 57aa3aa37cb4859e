package gateway

import (
	"cmp"
	"crypto/x509"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"weir/gateway/catalogue"
	"weir/scheduler"
	"weir/scheduler/pool"
)

// place tells a watcher which endpoints its pool has and where it finds more.
// Metrics are read as often as the pool says, else as it is usual, but four
// times before they are stale by the scheduler's document.
func (f *Fleet) place(w *pool.Pool, p *catalogue.Pool, stale time.Duration) {
	needed := stale / 4
	if needed >= pool.DefaultScrape {
		needed = 0
	}
	w.Set(pool.Settings{Scrape: cmp.Or(p.ScrapeInterval, needed), Scaling: scalingOf(p)})
	w.SetDiscovery(sourceOf(p), func(found pool.Found) pool.Endpoint {
		e := p.Endpoint(found.ID)
		e.URL = found.URL
		e.Labels = mergeLabels(e.Labels, found.Labels)
		built := f.endpoint(e)
		built.MetricsURL = found.MetricsURL
		return built
	})
	var listed []pool.Endpoint
	if p.Scheduler.Kind != catalogue.KindLLMDHTTP { // else they are gateways: what their /health and /metrics say is some engine's
		for _, e := range p.Endpoints {
			listed = append(listed, f.endpoint(p.Endpoint(e.ID)))
		}
	}
	w.SetEndpoints(listed)
}

// endpoint is the catalogue's endpoint as the scheduler's room knows it.
func (f *Fleet) endpoint(e catalogue.Endpoint) pool.Endpoint {
	labels := e.AllLabels()
	return pool.Endpoint{
		ID: e.ID, URL: e.URL,
		MaxConcurrency: scheduler.Part(e.MaxConcurrency, f.replicas), MaxTokens: scheduler.Part(e.MaxTokens, f.replicas),
		Speed: e.Speed, CacheBlocks: e.CacheBlocks, Ranks: e.Ranks, Labels: labels, Draining: e.Draining(),

		Engine: labels[catalogue.LabelEngine],
		Client: f.clients.get(f.log, trustOf(e)),
	}
}

func mergeLabels(all, found map[string]string) map[string]string {
	merged := maps.Clone(all)
	if merged == nil {
		return found
	}
	maps.Copy(merged, found)
	return merged
}

// Scales is how many endpoints a pool should have, by role; false: there is no
// such pool.
func (f *Fleet) Scales(name string) ([]pool.Scale, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	p, ok := f.pools[name]
	if !ok {
		return nil, false
	}
	return p.watcher.Scales(), true
}

func scalingOf(p *catalogue.Pool) pool.Scaling {
	s := p.Scaling
	if s == nil {
		return pool.Scaling{}
	}
	return pool.Scaling{
		Min: s.Min, Max: s.Max, QueuedTokens: s.TargetQueuedTokens, KVUsage: s.TargetKVUsage,
		TTFT: s.TTFTSLO, DownAfter: s.ScaleDownAfter, Roles: s.Roles,
	}
}

// sourceOf is where the pool finds endpoints; nil where it lists all of them.
func sourceOf(p *catalogue.Pool) pool.Source {
	switch d := p.Discovery; {
	case d == nil:
		return nil
	case d.File != nil:
		return pool.File{Path: d.File.Path, Scheme: d.File.Scheme}
	case d.DNS != nil:
		return pool.DNS{Name: d.DNS.Name, SRV: d.DNS.SRV, Port: d.DNS.Port, Scheme: d.DNS.Scheme, Interval: d.DNS.Interval}
	default:
		return nil
	}
}

// clients are the probes' clients: one that is asked for again keeps the
// connections that it has.
type clients struct {
	mu     sync.Mutex
	all    map[trust]*http.Client
	system *http.Client // trusts what the system does
}

// get returns the one that trusts so; nil, the pool's own, where that is what
// the system trusts.
func (c *clients) get(log *slog.Logger, t trust) *http.Client {
	if t == (trust{}) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := c.all[t]; known != nil {
		return known
	}
	conf, err := t.config()
	if err != nil { // trust nobody: no probe succeeds, so the endpoint counts as unhealthy
		log.Error("an endpoint's CA can't be read", "ca_file", t.caFile, "error", err)
		conf.RootCAs = x509.NewCertPool()
	}
	if c.all == nil {
		c.all = map[trust]*http.Client{}
	}
	fresh := pool.NewClient(conf)
	c.all[t] = fresh
	return fresh
}
