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
	done <-chan struct{}
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
	for {
		for _, r := range g.leaving(false) {
			g.end(r)
		}
		g.join(ctx)
		select {
		case <-ctx.Done():
			for _, r := range g.leaving(true) {
				<-r.done
			}
			return nil
		case <-g.changed:
		}
	}
}

// leaving takes out and stops those that are not wanted any more, or all.
func (g *Group) leaving(all bool) (out []running) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, r := range g.running {
		if s, ok := g.wanted[id]; all || !ok || s.Key != r.key {
			r.stop()
			delete(g.running, id)
			out = append(out, r)
		}
	}
	return out
}

// end waits for one that was stopped, so that it tells nothing any more: what it
// told last would be taken for the truth from then on.
func (g *Group) end(r running) {
	<-r.done
	g.feed.CacheMissed(r.source.ID)
}

// join starts those that are wanted and don't run.
func (g *Group) join(ctx context.Context) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, s := range g.wanted {
		if _, ok := g.running[id]; ok {
			continue
		}
		each, stop := context.WithCancel(ctx)
		f, done := New(g.log, s, g.feed), make(chan struct{})
		g.running[id] = running{f, s.Key, stop, done}
		go func() {
			defer close(done)
			_ = f.Run(each) // always nil
		}()
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
