package upstream

import (
	"sync"
	"time"
)

// idle is the connections that wait, by server, the one that waits longest
// first. All wait equally long at most.
type idle struct {
	keep time.Duration
	most int

	mu     sync.Mutex
	hosts  map[string][]*conn // no empty ones
	sweeps *time.Timer        // runs while some wait
	closed bool
}

// put lets a connection wait.
func (i *idle) put(c *conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	waiting := i.hosts[c.key]
	if i.closed || len(waiting) >= i.most {
		_ = c.Close()
		return
	}
	c.since = time.Now()
	i.hosts[c.key] = append(waiting, c)
	if i.sweeps == nil {
		i.sweeps = time.AfterFunc(i.keep, i.sweep)
	}
}

// take returns a connection to the server that still stands, the one that was
// used last; nil: there is none.
func (i *idle) take(key string) *conn {
	for {
		c := i.last(key)
		if c == nil || time.Since(c.since) < i.keep && alive(c.Conn) {
			return c
		}
		_ = c.Close()
	}
}

func (i *idle) last(key string) *conn {
	i.mu.Lock()
	defer i.mu.Unlock()
	waiting := i.hosts[key]
	last := len(waiting) - 1
	if last < 0 {
		return nil
	}
	c := waiting[last]
	waiting[last] = nil
	if last == 0 {
		delete(i.hosts, key)
	} else {
		i.hosts[key] = waiting[:last]
	}
	return c
}

// sweep closes what has waited long enough, and comes again while some wait.
func (i *idle) sweep() {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	next := i.keep
	for key, waiting := range i.hosts {
		old := 0
		for old < len(waiting) && now.Sub(waiting[old].since) >= i.keep {
			_ = waiting[old].Close()
			waiting[old] = nil
			old++
		}
		if old == len(waiting) {
			delete(i.hosts, key)
			continue
		}
		i.hosts[key] = waiting[old:]
		next = min(next, i.keep-now.Sub(waiting[old].since))
	}
	if len(i.hosts) == 0 {
		i.sweeps = nil
		return
	}
	i.sweeps.Reset(next)
}

func (i *idle) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	if i.sweeps != nil {
		i.sweeps.Stop()
	}
	for key, waiting := range i.hosts {
		for _, c := range waiting {
			_ = c.Close()
		}
		delete(i.hosts, key)
	}
}
