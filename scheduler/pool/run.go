package pool

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Run probes every endpoint, each on a goroutine of its own, follows the source
// of discovered ones and decides each second how many the pool should have,
// until ctx ends and all of that has stopped. It returns nil.
func (p *Pool) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	watches := watches{pool: p, group: &all, running: map[string]watch{}}
	scale := time.NewTicker(scaleEvery)
	defer scale.Stop()
	for {
		watches.follow(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
		case <-scale.C:
			p.rescale()
		}
	}
}

// watches is what Run has started. It is Run's own.
type watches struct {
	pool    *Pool
	group   *sync.WaitGroup
	running map[string]watch
	source  Source
	stop    context.CancelFunc // of the source; nil without one
}

type watch struct {
	*watched

	stop context.CancelFunc
}

// follow starts and stops watches so that they are those that the pool wants.
func (s *watches) follow(ctx context.Context) {
	s.pool.mu.Lock()
	now, source := s.pool.watched, s.pool.found.source
	s.pool.mu.Unlock()
	for id, r := range s.running {
		if now[id] != r.watched {
			r.stop()
			delete(s.running, id)
		}
	}
	for id, w := range now {
		if _, ok := s.running[id]; ok {
			continue
		}
		watchCtx, stop := context.WithCancel(ctx)
		s.running[id] = watch{w, stop}
		s.group.Go(func() { s.pool.watch(watchCtx, w) })
	}
	if source == s.source {
		return
	}
	if s.stop != nil {
		s.stop()
	}
	s.source, s.stop = source, nil
	if source != nil {
		sourceCtx, stop := context.WithCancel(ctx)
		s.stop = stop
		s.group.Go(func() { source.Watch(sourceCtx, s.pool.log, func(f []Found) { s.pool.discover(source, f) }) })
	}
}

// watch probes one endpoint until ctx ends, and reads its metrics more often
// than that while its probes are good. The first probe is at once, so that a
// new pool serves soon; jitter keeps the later ones of many apart. One that
// tells no load is asked for it as seldom as for its health.
func (p *Pool) watch(ctx context.Context, w *watched) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var probeAt, readAt time.Time
	var metrics reader
	alive := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if !time.Now().Before(probeAt) {
			alive = p.Probe(ctx, w.id) == nil
			probeAt = time.Now().Add(jitter(p.cfg.Interval))
		}
		next := probeAt
		if alive {
			if !time.Now().Before(readAt) {
				pause := p.scrapeInterval()
				if p.readLoad(ctx, w, &metrics) != nil {
					pause = max(pause, p.cfg.Interval)
				}
				readAt = time.Now().Add(jitter(pause))
			}
			if readAt.Before(next) {
				next = readAt
			}
		}
		timer.Reset(time.Until(next))
	}
}

func (p *Pool) scrapeInterval() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settings.Scrape > 0 {
		return p.settings.Scrape
	}
	return max(DefaultScrape, time.Duration(len(p.watched))*scrapeEach)
}

// jitter spreads d by a fifth to either side.
func jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.4*float64(d)) //nolint:gosec // nothing secret
}
