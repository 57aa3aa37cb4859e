package gateway

import (
	"context"
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

	mu       sync.RWMutex
	pools    map[string]*watched
	clients  clients
	replicas int // that share the pools; 0 counts as 1
	closed   bool
}

// watched is one pool that runs.
type watched struct {
	scheduler *scheduler.Embedded
	watcher   *pool.Pool
	settings  catalogue.Scheduler
	stop      context.CancelFunc // nil until the watcher runs
}

// NewFleet makes the schedulers of the present snapshot, so that requests can
// be scheduled before Run. metrics may be nil.
func NewFleet(log *slog.Logger, source Source, metrics prometheus.Registerer) *Fleet {
	f := &Fleet{log: log, source: source, pools: make(map[string]*watched)}
	f.reconcile(source.Snapshot())
	if metrics != nil {
		metrics.MustRegister(pool.NewCollector(f.Pools))
	}
	return f
}

// Divide tells how many replicas share the pools, each with queues of its own.
// Each then takes its part of what may run and wait; order and fairness hold
// within a replica. What runs and waits already goes on.
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
	return p.scheduler, true
}

// Probe asks an endpoint now whether it lives.
func (f *Fleet) Probe(ctx context.Context, name, endpoint string) error {
	f.mu.RLock()
	p, ok := f.pools[name]
	f.mu.RUnlock()
	if !ok {
		return fmt.Errorf("no pool %s", name)
	}
	return p.watcher.Probe(ctx, endpoint)
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
				watchers.Go(func() { _ = p.watcher.Run(each) }) // always nil
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
		p.scheduler.Close()
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
			w = f.newPool(p.Name, settings)
			f.pools[p.Name] = w
		case !w.settings.Same(settings):
			w.settings = settings
			w.scheduler.SetConfig(settings.Config.Divided(f.replicas))
		}
		f.place(w.watcher, p, settings.Config.Detector.Staleness)
	}
	for name, w := range f.pools {
		if !wanted[name] {
			w.end()
			delete(f.pools, name)
		}
	}
}

func (w *watched) end() {
	w.scheduler.Close()
	if w.stop != nil {
		w.stop()
	}
}

func (f *Fleet) newPool(name string, settings catalogue.Scheduler) *watched {
	s := scheduler.New(settings.Config.Divided(f.replicas), time.Now)
	return &watched{
		scheduler: s, settings: settings,
		watcher: pool.New(f.log.With("pool", name), pool.Config{}, s),
	}
}
