package gateway

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"sync"

	"weir/gateway/catalogue"
	"weir/scheduler"
	"weir/scheduler/kvevents"
)

// caches follows what the engines of a pool publish of their prefix caches,
// where the pool's document asks for it.
type caches struct {
	log   *slog.Logger
	group *kvevents.Group

	mu        sync.Mutex
	pool      *catalogue.Pool
	precise   scheduler.PreciseCache
	endpoints []scheduler.Endpoint
}

func newCaches(log *slog.Logger, feed kvevents.Feed) *caches {
	return &caches{log: log, group: kvevents.NewGroup(log, feed)}
}

// follow sets of which pool, and how.
func (c *caches) follow(p *catalogue.Pool, how scheduler.PreciseCache) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pool, c.precise = p, how
	c.settle()
}

// of sets the pool's endpoints, listed and found ones.
func (c *caches) of(all []scheduler.Endpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endpoints = all
	c.settle()
}

// settle is called with mu held.
func (c *caches) settle() {
	if c.pool == nil {
		return
	}
	var all []kvevents.Source
	for i := range c.endpoints {
		if !c.precise.Enabled {
			break
		}
		e := &c.endpoints[i]
		known := c.pool.Endpoint(e.ID)
		known.URL = e.URL // of one that was found
		for rank := range max(e.Ranks, 1) {
			s, err := c.source(&known, rank)
			switch {
			case err != nil:
				c.log.Error("kv events of an endpoint can't be followed", "endpoint", e.ID, "error", err)
			case s.Events != nil:
				all = append(all, s)
			}
		}
	}
	c.group.Set(all)
}

// source is where a rank of an endpoint publishes; without Events, nowhere.
func (c *caches) source(e *catalogue.Endpoint, rank int) (s kvevents.Source, err error) {
	events, replay, err := e.KVSources(rank)
	if err != nil || events.Address == "" {
		return s, err
	}
	s.ID = e.ID
	if e.Ranks > 1 {
		s.ID = scheduler.PlaceName(e.ID, rank)
	}
	s.Key = fmt.Sprint(e.URL, events, replay, trustOf(*e), c.precise.BlockTokens)
	if s.Events, err = dialer(events, trustOf(*e)); err == nil && replay.Address != "" {
		s.Replay, err = dialer(replay, trustOf(*e))
	}
	return s, err
}

func dialer(to catalogue.KVSource, t trust) (func(context.Context) (net.Conn, error), error) {
	if !to.TLS {
		return func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", to.Address)
		}, nil
	}
	conf, err := t.config()
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(to.Address) // which was joined by us
	conf.ServerName = cmp.Or(conf.ServerName, host)
	d := &tls.Dialer{Config: conf}
	return func(ctx context.Context) (net.Conn, error) { return d.DialContext(ctx, "tcp", to.Address) }, nil
}
