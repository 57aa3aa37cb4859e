// Package kvevents follows what engines publish of their prefix caches: vLLM's
// KV events over ZeroMQ, which SGLang publishes too. It tells a scheduler which
// blocks came and went.
//
// The events hold the token ids of prompts, and the cache salts of tenants. They
// are hashed at once and dropped. On the wire they are readable, since engines
// publish without encryption: a source that isn't on this machine has to be
// reached through TLS, or its operator has to say that the network is encrypted.
package kvevents

import (
	"context"
	"encoding/binary"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"weir/scheduler"
	"weir/scheduler/kvevents/zmtp"
)

// Feed is who is told: a *scheduler.Embedded.
type Feed interface {
	CacheChanged(id string, r scheduler.CacheReport)
	CacheMissed(id string)
}

// Source is where one endpoint, or one rank of it, publishes.
type Source struct {
	ID     string                                      // the endpoint's, as the feed knows it
	Key    string                                      // says what the source is: with another one, it is another source
	Events func(ctx context.Context) (net.Conn, error) // connects to what it publishes
	Replay func(ctx context.Context) (net.Conn, error) // and to where it sends again what was missed; nil: nowhere
	Model  string                                      // whose blocks these are where the topic doesn't say
}

const (
	maxMessage  = 16 << 20 // bytes
	connectTime = 5 * time.Second
	firstPause  = 100 * time.Millisecond
	lastPause   = 5 * time.Second
	// staleAfter is how long what a source said last stands while there is no
	// connection to it.
	staleAfter = 30 * time.Second
)

// Stats is what a Follower has seen.
type Stats struct {
	Connected bool
	Messages  uint64
	Replayed  uint64 // of Messages
	Gaps      uint64 // times that messages were missing
	Reordered uint64 // messages that came after later ones
	Malformed uint64 // messages and events that can't be understood
	Orphans   uint64 // blocks left out, since what comes before them is not known
}

// Follower follows one source.
type Follower struct {
	log    *slog.Logger
	source Source
	feed   Feed

	ledger *ledger
	order  order
	model  string // of the latest topic that names one

	connected                                              atomic.Bool
	messages, replays, gaps, reordered, malformed, orphans atomic.Uint64
}

// New makes a Follower of a source.
func New(log *slog.Logger, s Source, feed Feed) *Follower {
	return &Follower{log: log.With("endpoint", s.ID), source: s, feed: feed, ledger: newLedger()}
}

// Stats may be called at any time.
func (f *Follower) Stats() Stats {
	return Stats{
		Connected: f.connected.Load(), Messages: f.messages.Load(), Replayed: f.replays.Load(), Gaps: f.gaps.Load(),
		Reordered: f.reordered.Load(), Malformed: f.malformed.Load(), Orphans: f.orphans.Load(),
	}
}

// Run follows the source until ctx ends, and connects again whenever the
// connection breaks. It returns nil.
func (f *Follower) Run(ctx context.Context) error {
	pause, seen := firstPause, time.Now()
	for {
		before := f.messages.Load()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the end that was asked for
		}
		if f.connected.Swap(false) || f.messages.Load() > before {
			f.log.Warn("kv events: the connection broke", "error", err)
			pause, seen = firstPause, time.Now()
		} else {
			f.log.Debug("kv events: no connection", "error", err)
		}
		if f.order.began && time.Since(seen) >= staleAfter {
			f.log.Warn("kv events: no connection for long; what is sent there decides", "error", err)
			f.forget()
			f.order = order{}
		}
		wait := time.NewTimer(pause/2 + rand.N(pause)) //nolint:gosec // nothing secret
		select {
		case <-ctx.Done():
			wait.Stop()
			return nil
		case <-wait.C:
		}
		pause = min(2*pause, lastPause)
	}
}

// open connects as a socket of a type. The connection ends with ctx.
func open(ctx context.Context, dial func(context.Context) (net.Conn, error), socket string) (z *zmtp.Conn, end func(), err error) {
	within, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	conn, err := dial(within)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	end = func() { stop(); _ = conn.Close() }
	if z, err = zmtp.Open(conn, socket, maxMessage); err != nil {
		end()
		return nil, nil, err
	}
	return z, end, nil
}

func (f *Follower) follow(ctx context.Context) error {
	z, end, err := open(ctx, f.source.Events, "SUB")
	if err != nil {
		return err
	}
	defer end()
	if err := z.Subscribe(""); err != nil {
		return err
	}
	if err := z.Sync(); err != nil { // from here on nothing is missed without a gap
		return err
	}
	f.connected.Store(true)
	if f.source.Replay != nil { // what was published meanwhile, or ever
		f.replay(ctx)
	}
	for fresh := true; ; {
		m, err := z.Receive()
		if err != nil {
			return err
		}
		if len(m) != 3 || len(m[1]) != 8 {
			f.malformed.Add(1)
			continue
		}
		f.arrive(ctx, message{seq: binary.BigEndian.Uint64(m[1]), model: modelOf(m[0]), payload: m[2]}, fresh)
		fresh = false
	}
}

// modelOf is the model in a topic: kv@<pod>@<model>.
func modelOf(topic []byte) string {
	_, rest, _ := strings.Cut(string(topic), "@")
	_, model, _ := strings.Cut(rest, "@")
	return model
}
