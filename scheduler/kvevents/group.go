package kvevents

import (
	"context"
	"log/slog"
	"sync"
)

// Group follows the sources of one pool. They may change while it runs.
type Group struct {
	log  *slog.Logger
	feed Feed

	mu      sync.Mutex
	wanted  map[string]Source
	running map[string]running
	changed chan struct{} // one token when wanted was replaced
}

type running struct {
	*Follower

	key  string
	stop context.CancelFunc
}

// NewGroup makes a Group without sources.
func NewGroup(log *slog.Logger, feed Feed) *Group {
	return &Group{log: log, feed: feed, running: map[string]running{}, changed: make(chan struct{}, 1)}
}

// Set replaces the sources. One that has the same ID and key stays as it is; one
// with another key is followed from its beginning.
func (g *Group) Set(sources []Source) {
	wanted := make(map[string]Source, len(sources))
	for _, s := range sources {
		wanted[s.ID] = s
	}
	g.mu.Lock()
	g.wanted = wanted
	g.mu.Unlock()
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// Run follows the sources until ctx ends and all followers have stopped. It
// returns nil.
func (g *Group) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		g.mu.Lock()
		for id, r := range g.running {
			if s, ok := g.wanted[id]; !ok || s.Key != r.key {
				r.stop()
				delete(g.running, id)
			}
		}
		for id, s := range g.wanted {
			if _, ok := g.running[id]; ok {
				continue
			}
			each, stop := context.WithCancel(ctx)
			f := New(g.log, s, g.feed)
			g.running[id] = running{f, s.Key, stop}
			all.Go(func() { _ = f.Run(each) }) // always nil
		}
		g.mu.Unlock()
		select {
		case <-ctx.Done():
			g.mu.Lock()
			for _, r := range g.running {
				r.stop()
			}
			g.mu.Unlock()
			return nil
		case <-g.changed:
		}
	}
}

// Stats is what each source's follower has seen, by its ID.
func (g *Group) Stats() map[string]Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make(map[string]Stats, len(g.running))
	for id, r := range g.running {
		all[id] = r.Stats()
	}
	return all
}
