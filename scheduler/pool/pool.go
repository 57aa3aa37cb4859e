// Package pool watches the model servers of one pool: it probes their health,
// reads their load, and tells a scheduler what it finds. The scheduler decides;
// this package does its I/O.
package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"weir/scheduler"
)

// Feed is what the pool tells of its endpoints: a *scheduler.Embedded.
type Feed interface {
	SetEndpoints(endpoints []scheduler.Endpoint)
	SetHealth(id string, h scheduler.Health)
}

// Config says how endpoints are probed. Zero fields take the default that is
// named with them.
type Config struct {
	Interval  time.Duration // between two probes of an endpoint (2 s), give or take a fifth
	Timeout   time.Duration // of one probe (2 s)
	DownAfter int           // failed probes in a row that make an endpoint unhealthy (3)
	UpAfter   int           // good probes in a row that make it healthy again (2)
	Client    *http.Client  // for endpoints that bring none; nil: one of the pool's own
}

// Endpoint is one model server to watch.
type Endpoint struct {
	scheduler.Endpoint

	Client *http.Client // with the CA that the server needs; nil takes the pool's
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

	mu      sync.Mutex
	watched map[string]*watched // replaced as a whole, never changed
	changed chan struct{}       // one token when watched was replaced
}

// watched is an endpoint and what its probes said. The id and the URL never
// change; the rest is held under the pool's mu.
type watched struct {
	id, url string

	client *http.Client
	flight *flight // the probe that runs
	health scheduler.Health
	streak int // probes in a row that contradict health
	load   Load
}

// New builds a pool without endpoints that reports to feed.
func New(log *slog.Logger, cfg Config, feed Feed) *Pool {
	cfg.Interval = cmp.Or(cfg.Interval, 2*time.Second)
	cfg.Timeout = cmp.Or(cfg.Timeout, 2*time.Second)
	cfg.DownAfter = cmp.Or(cfg.DownAfter, 3)
	cfg.UpAfter = cmp.Or(cfg.UpAfter, 2)
	if cfg.Client == nil {
		cfg.Client = &http.Client{
			Transport:     &http.Transport{MaxIdleConnsPerHost: 1, IdleConnTimeout: 10 * cfg.Interval},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return &Pool{
		log: log, cfg: cfg, feed: feed,
		watched: map[string]*watched{}, changed: make(chan struct{}, 1),
	}
}

// SetEndpoints replaces the endpoints, here and in the scheduler. One that
// stays at its URL keeps what is known of it.
func (p *Pool) SetEndpoints(endpoints []Endpoint) {
	p.feeding.Lock()
	defer p.feeding.Unlock()
	next := make(map[string]*watched, len(endpoints))
	all := make([]scheduler.Endpoint, 0, len(endpoints))
	p.mu.Lock()
	for _, e := range endpoints {
		all = append(all, e.Endpoint)
		if next[e.ID] != nil {
			continue // as in the scheduler, the first one counts
		}
		if e.Client == nil {
			e.Client = p.cfg.Client
		}
		w := p.watched[e.ID]
		if w == nil || w.url != e.URL {
			w = &watched{id: e.ID, url: e.URL}
		}
		w.client = e.Client
		next[e.ID] = w
	}
	p.watched = next
	p.mu.Unlock()
	p.feed.SetEndpoints(all)
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Run probes every endpoint, each on a goroutine of its own, until ctx ends
// and all of them have stopped. It returns nil.
func (p *Pool) Run(ctx context.Context) error {
	type watch struct {
		*watched
		stop context.CancelFunc
	}
	running := map[string]watch{}
	var watches sync.WaitGroup
	defer watches.Wait()
	for {
		now := p.snapshot()
		for id, r := range running {
			if now[id] != r.watched {
				r.stop()
				delete(running, id)
			}
		}
		for id, w := range now {
			if _, ok := running[id]; ok {
				continue
			}
			watchCtx, stop := context.WithCancel(ctx)
			running[id] = watch{w, stop}
			watches.Go(func() { p.watch(watchCtx, w) })
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
		}
	}
}

func (p *Pool) snapshot() map[string]*watched {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.watched
}

// watch probes one endpoint until ctx ends. The first probe is at once, so
// that a new pool serves soon; jitter keeps the later ones of many apart.
func (p *Pool) watch(ctx context.Context, w *watched) {
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		if p.Probe(ctx, w.id) == nil {
			p.readLoad(ctx, w)
		}
		next.Reset(jitter(p.cfg.Interval))
	}
}

// jitter spreads d by a fifth to either side.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.4*float64(d)) //nolint:gosec // nothing secret
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
