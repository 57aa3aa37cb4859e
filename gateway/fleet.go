package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/gateway/catalogue"
	"weir/scheduler"
	"weir/scheduler/pool"
)

// Source is a catalogue that says when it changes.
type Source interface {
	Catalogue
	// Changed is closed when the present snapshot is replaced.
	Changed() <-chan struct{}
}

// Fleet is a scheduler and a watcher for each pool of the catalogue. It
// follows the catalogue: a pool's queue lives on when its endpoints change.
type Fleet struct {
	log    *slog.Logger
	source Source

	mu        sync.RWMutex
	pools     map[string]*watched
	clients   clients
	replicas  int  // that share the pools; 0 counts as 1
	plaintext bool // schedulers on other machines may be reached without TLS
	closed    bool
}

// watched is one pool that runs. Its scheduler is this replica's own; where the
// pool has a shared one, it stands in for that.
type watched struct {
	scheduler *scheduler.Embedded
	shared    *sharedQueue // nil: the replica schedules
	watcher   *pool.Pool
	feed      feed
	pool      *catalogue.Pool
	settings  catalogue.Scheduler
	stop      context.CancelFunc // nil until the watcher runs
}

// queue is where the pool's requests wait.
func (w *watched) queue() scheduler.Scheduler {
	if w.shared != nil {
		return w.shared
	}
	return w.scheduler
}

// NewFleet makes the schedulers of the present snapshot, so that requests can
// be scheduled before Run. metrics may be nil.
func NewFleet(log *slog.Logger, source Source, metrics prometheus.Registerer) *Fleet {
	f := &Fleet{log: log, source: source, pools: make(map[string]*watched)}
	f.reconcile(source.Snapshot())
	if metrics != nil {
		metrics.MustRegister(pool.NewCollector(f.ownPools), newSharedCollector(f), newCacheCollector(f))
	}
	return f
}

// Divide tells how many replicas share the pools, each with queues of its own.
// Each then takes its part of what may run and wait; order and fairness hold
// within a replica. What runs and waits already goes on. A pool with a shared
// scheduler has one queue for all of them: only what stands in for it is divided.
func (f *Fleet) Divide(replicas int) {
	f.mu.Lock()
	f.replicas = replicas
	for _, w := range f.pools {
		w.scheduler.SetConfig(w.settings.Config.Divided(replicas))
	}
	f.mu.Unlock()
	f.reconcile(f.source.Snapshot())
}

// Scheduler finds the scheduler of a pool.
func (f *Fleet) Scheduler(name string) (scheduler.Scheduler, bool) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	p, ok := f.pools[name]
	if !ok {
		return nil, false
	}
	return p.queue(), true
}

// Probe asks an endpoint now whether it lives.
func (f *Fleet) Probe(ctx context.Context, name, endpoint string) error {
	f.mu.RLock()
	p, ok := f.pools[name]
	var w watched
	if ok {
		w = watched{shared: p.shared, watcher: p.watcher, pool: p.pool}
	}
	f.mu.RUnlock()
	if !ok {
		return fmt.Errorf("no pool %s", name)
	}
	err := w.watcher.Probe(ctx, endpoint)
	if w.shared != nil && errors.Is(err, pool.ErrUnknownEndpoint) {
		return f.probeElsewhere(ctx, w.pool, endpoint)
	}
	return err
}

// Pools is a snapshot of all pools by name.
func (f *Fleet) Pools() map[string]pool.Snapshot {
	f.mu.RLock()
	defer f.mu.RUnlock()
	states := make(map[string]pool.Snapshot, len(f.pools))
	for name, p := range f.pools {
		states[name] = pool.Snapshot{State: p.scheduler.State(), Scale: p.watcher.Scales()}
	}
	return states
}

// Run watches the endpoints and follows the catalogue until ctx ends. It
// returns nil when every watcher has stopped.
func (f *Fleet) Run(ctx context.Context) error {
	var watchers sync.WaitGroup
	defer watchers.Wait()
	for {
		changed := f.source.Changed()
		f.reconcile(f.source.Snapshot())
		f.mu.Lock()
		for _, p := range f.pools {
			if p.stop == nil {
				var each context.Context
				each, p.stop = context.WithCancel(ctx)
				watchers.Go(func() { _ = p.watcher.Run(each) })           // always nil
				watchers.Go(func() { _ = p.feed.caches.group.Run(each) }) // likewise
			}
			if q := p.shared; q != nil && q.start() {
				watchers.Go(func() { q.run(ctx) }) // longer than the pool, if it has to
			}
		}
		f.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// Close refuses what waits in every queue, and whatever comes later.
func (f *Fleet) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, p := range f.pools {
		p.close()
	}
}

// reconcile makes the fleet what the snapshot says. What waits in a pool whose
// settings changed waits on, by the new ones.
func (f *Fleet) reconcile(snap *catalogue.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	wanted := make(map[string]bool)
	for _, p := range snap.Pools() {
		wanted[p.Name] = true
		settings := snap.Scheduler(p.Name)
		w, ok := f.pools[p.Name]
		switch {
		case !ok:
			w = f.newPool(p, settings)
			f.pools[p.Name] = w
		case !w.settings.Same(settings):
			w.settings = settings
			w.scheduler.SetConfig(settings.Config.Divided(f.replicas))
			f.share(w, p)
		case w.shared != nil && !w.shared.fits(p):
			f.share(w, p)
		}
		w.pool = p
		w.feed.caches.follow(p, settings.Config.Profile.Precise)
		f.place(w.watcher, p, settings.Config.Detector.Staleness)
	}
	for name, w := range f.pools {
		if !wanted[name] {
			w.end()
			delete(f.pools, name)
		}
	}
}

// share gives the pool the queue that its settings name. What waits in the one
// that it had waits on there.
func (f *Fleet) share(w *watched, p *catalogue.Pool) {
	had := w.shared
	w.shared = nil
	if p.Scheduler.IsShared() {
		w.shared = f.newShared(p, w.settings, w)
	}
	if had != nil {
		had.retire(w.queue())
	}
}

// end lets go of a pool that the catalogue names no more.
func (w *watched) end() {
	w.close()
	if w.stop != nil {
		w.stop()
	}
}

// close refuses what waits, and whatever comes later.
func (w *watched) close() {
	w.scheduler.Close()
	if w.shared != nil {
		w.shared.close()
	}
}

func (f *Fleet) newPool(p *catalogue.Pool, settings catalogue.Scheduler) *watched {
	w := &watched{scheduler: scheduler.New(settings.Config.Divided(f.replicas), time.Now), settings: settings, pool: p}
	w.feed.Embedded = w.scheduler
	w.feed.caches = newCaches(f.log.With("pool", p.Name), w.scheduler)
	w.watcher = pool.New(f.log.With("pool", p.Name), pool.Config{}, &w.feed)
	f.share(w, p)
	return w
}
