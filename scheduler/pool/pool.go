// Package pool watches the model servers of one pool: it probes their health,
// reads their load, and tells a scheduler what it finds. The scheduler decides;
// this package does its I/O.
package pool

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"weir/scheduler"
)

// Feed is what the pool tells of its endpoints: a *scheduler.Embedded.
type Feed interface {
	SetEndpoints(endpoints []scheduler.Endpoint)
	SetHealth(id string, h scheduler.Health)
	SetLoad(id string, l scheduler.Load)
	Demand() scheduler.Demand
}

// Config says how endpoints are probed. Zero fields take the default that is
// named with them.
type Config struct {
	Interval  time.Duration // between two probes of an endpoint (2 s), give or take a fifth
	Timeout   time.Duration // of one probe, and of one reading of metrics (2 s)
	DownAfter int           // failed probes in a row that make an endpoint unhealthy (3)
	UpAfter   int           // good probes in a row that make it healthy again (2)
	Client    *http.Client  // for endpoints that bring none; nil: one of the pool's own
}

// Settings may change while the pool is watched.
type Settings struct {
	// Scrape is the time between two readings of an endpoint's metrics, give or
	// take a fifth. Zero takes 200 ms, and more in a pool of more than 100, so
	// that 500 pages a second are read at most.
	Scrape  time.Duration
	Scaling Scaling
}

// DefaultScrape is the time between two readings of an endpoint's metrics in a
// pool that isn't large.
const DefaultScrape = 200 * time.Millisecond

const (
	scrapeEach = 2 * time.Millisecond // of the interval, for each endpoint
)

// roleLabel is where llm-d looks for the part of the work that an endpoint does.
const roleLabel = "llm-d.ai/role"

// Endpoint is one model server to watch.
type Endpoint struct {
	scheduler.Endpoint

	Engine     string       // whose names its metrics have: vllm, sglang, llamacpp; any other: to be found out
	MetricsURL string       // where its metrics are; empty: its URL and /metrics
	Client     *http.Client // with the CA that the server needs; nil takes the pool's
}

// ErrUnknownEndpoint is the error of Probe for an id that the pool lacks.
var ErrUnknownEndpoint = errors.New("the pool has no such endpoint")

// Pool watches one pool. Its methods may be called at any time, also while Run
// is not running: then only Probe probes.
type Pool struct {
	log  *slog.Logger
	cfg  Config
	feed Feed

	feeding sync.Mutex // held while the feed is told, so that it hears things in order

	mu       sync.Mutex
	settings Settings
	static   []Endpoint
	found    discovered
	scaler   scaler
	watched  map[string]*watched // replaced as a whole, never changed
	changed  chan struct{}       // one token when something was replaced that Run follows
}

// watched is an endpoint and what its probes said. The id and the URL never
// change; the rest is held under the pool's mu.
type watched struct {
	id, url string

	client  *http.Client
	engine  string
	role    string
	ranks   int
	metrics string  // URL
	flight  *flight // the probe that runs
	verdict verdict
}

// New builds a pool without endpoints that reports to feed.
func New(log *slog.Logger, cfg Config, feed Feed) *Pool {
	cfg.Interval = cmp.Or(cfg.Interval, 2*time.Second)
	cfg.Timeout = cmp.Or(cfg.Timeout, 2*time.Second)
	cfg.DownAfter = cmp.Or(cfg.DownAfter, 3)
	cfg.UpAfter = cmp.Or(cfg.UpAfter, 2)
	if cfg.Client == nil {
		cfg.Client = NewClient(nil)
	}
	return &Pool{
		log: log, cfg: cfg, feed: feed,
		watched: map[string]*watched{}, changed: make(chan struct{}, 1),
	}
}

// NewClient makes a client for probes and scrapes. It trusts what conf says
// (nil: the system's roots), follows no redirects, and takes no compressed
// pages: packing them would cost the engine more than sending them.
func NewClient(conf *tls.Config) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: conf, DisableCompression: true, MaxIdleConnsPerHost: 1, IdleConnTimeout: 20 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Set replaces the settings.
func (p *Pool) Set(s Settings) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settings = s
}

// SetEndpoints replaces the endpoints that are known by name, here and in the
// scheduler; those that were discovered stay. One that stays at its URL keeps
// what is known of it.
func (p *Pool) SetEndpoints(endpoints []Endpoint) {
	p.update(func() { p.static = endpoints })
}

// update changes the members under the lock, then tells the feed.
func (p *Pool) update(change func()) {
	p.feeding.Lock()
	defer p.feeding.Unlock()
	p.mu.Lock()
	change()
	members := p.members()
	next := make(map[string]*watched, len(members))
	all := make([]scheduler.Endpoint, 0, len(members))
	for _, e := range members {
		all = append(all, e.Endpoint)
		next[e.ID] = p.watchedFor(e)
	}
	p.watched = next
	p.mu.Unlock()
	p.feed.SetEndpoints(all)
	p.nudge()
}

// members are the endpoints, each id once: the first one counts. One that was
// discovered at the URL of another is that other one.
func (p *Pool) members() []Endpoint {
	ids, urls := map[string]bool{}, map[string]bool{}
	var out []Endpoint
	add := func(e Endpoint) {
		if !ids[e.ID] {
			ids[e.ID], urls[e.URL] = true, true
			out = append(out, e)
		}
	}
	for _, e := range p.static {
		add(e)
	}
	for _, e := range p.found.endpoints() {
		if !urls[e.URL] {
			add(e)
		}
	}
	return out
}

// watchedFor is what is known of the endpoint, or a new record for one that was
// not there at its URL.
func (p *Pool) watchedFor(e Endpoint) *watched {
	w := p.watched[e.ID]
	if w == nil || w.url != e.URL {
		w = &watched{id: e.ID, url: e.URL}
	}
	w.client, w.engine, w.metrics = e.Client, e.Engine, cmp.Or(e.MetricsURL, e.URL+"/metrics")
	w.role, w.ranks = e.Labels[roleLabel], e.Ranks
	if w.client == nil {
		w.client = p.cfg.Client
	}
	return w
}

func (p *Pool) nudge() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

func (p *Pool) find(id string) (*watched, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.watched[id]
	if w == nil {
		return nil, fmt.Errorf("endpoint %q: %w", id, ErrUnknownEndpoint)
	}
	return w, nil
}
