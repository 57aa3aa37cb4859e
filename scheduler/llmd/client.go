// Package llmd is a scheduler.Scheduler behind a network: an llm-d Endpoint
// Picker, or a `weir scheduler`, asked over Envoy's external processing
// protocol. Each attempt holds one stream from its first header until its end,
// so that gateway replicas share one picker's queues, fairness and counts.
//
// What a picker can't express: it knows no weights, sessions' turns,
// reservations or excluded endpoints (a `weir scheduler` is told them), and no
// request that won't wait. A negative TTL gives it a tenth of a second to
// decide; then the request leaves the queue.
//
// The picker is another team's process. It gets an allow-list of headers and
// nothing of the caller's; of what it answers, only named headers and known
// destinations count, and its memory here is bounded.
package llmd

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"weir/scheduler"
)

const (
	noWait        = 100 * time.Millisecond // for the decision on a request that doesn't want to wait
	ownGrace      = time.Second            // for a `weir scheduler` to say itself that a time limit is over
	usualPatience = 10 * time.Second
	maxWait       = 10 * time.Minute // for any answer; no queue's limit is longer
	drainTime     = 5 * time.Second  // for a picker to close the stream of an ended exchange
	firstBackoff  = 50 * time.Millisecond
	maxBackoff    = time.Second
)

var (
	// ErrForeign is in the refusal when a picker names a destination or a
	// helper of one that the pool doesn't have.
	ErrForeign = errors.New("the picker's destination is not of the pool")

	errClosed  = errors.New("the client is closed")
	errExpired = errors.New("the time limit in the queue is over")
	errSilent  = errors.New("the picker gave no answer")
)

// Config says which pickers a pool has and what is known of it.
type Config struct {
	Pool       string
	Picker     func() (Peer, error)                           // which to use now; an error: none answers
	Objectives map[int]string                                 // a band's priority -> its InferenceObjective
	Allowed    func(hostport string) (scheduler.Target, bool) // the pool's endpoint at a destination
	Own        bool                                           // the picker is a `weir scheduler`
	Patience   time.Duration                                  // how long a request is sent again whose picker goes away; 0: ten seconds, negative: not again
	Now        func() time.Time
}

// Client asks a pool's pickers. It is safe for concurrent use.
type Client struct {
	log      *slog.Logger
	cfg      Config
	sessions *sessions
	pace     *pace
	epochs   epochs
	counts   counts

	closing context.Context //nolint:containedctx // ends with Close: the life of the client, not of a call
	close   context.CancelFunc

	mu     sync.Mutex
	closed bool
	work   sync.WaitGroup // requests that wait and streams that live
}

// New makes a client, which holds no connection of its own. Now may be nil.
func New(log *slog.Logger, cfg Config) *Client {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	cfg.Patience = cmp.Or(cfg.Patience, usualPatience)
	c := &Client{log: log.With("pool", cfg.Pool), cfg: cfg, sessions: newSessions(), pace: newPace()}
	c.closing, c.close = context.WithCancel(context.Background())
	return c
}

// Close refuses what waits and whatever comes later. Leases live on.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.close()
}

// Wait returns when nothing of a closed client runs any more: every lease has
// ended, and its picker was told or had its time to listen.
func (c *Client) Wait() { c.work.Wait() }

// enter counts a request in, unless the client is closed.
func (c *Client) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.work.Add(1)
	return true
}

// Counts is what came of a client's requests.
type Counts struct {
	Waiting  int64 // now
	Live     int64 // leases that have not ended, now
	Granted  int64
	Refused  int64
	Again    int64 // tries after a picker died with the request in its queue
	Evicted  int64
	Lost     int64 // streams that ended while their answer still ran; the answers went on
	Foreign  int64 // decisions for destinations that the pool doesn't have
	Garbage  int64 // answers that broke the protocol
	Dropped  int64 // events of answers that a slow picker was not told
	Sessions int   // tokens kept
}

type counts struct {
	waiting, live, granted, refused, again, evicted, lost, foreign, garbage, dropped atomic.Int64
}

// Counts is a snapshot.
func (c *Client) Counts() Counts {
	n := &c.counts
	return Counts{
		Waiting: n.waiting.Load(), Live: n.live.Load(), Granted: n.granted.Load(), Refused: n.refused.Load(),
		Again: n.again.Load(), Evicted: n.evicted.Load(), Lost: n.lost.Load(), Foreign: n.foreign.Load(),
		Garbage: n.garbage.Load(), Dropped: n.dropped.Load(), Sessions: c.sessions.size(),
	}
}

// Single is a pool's only picker.
func Single(conn grpc.ClientConnInterface, name string) func() (Peer, error) {
	p := single{conn, name}
	return func() (Peer, error) { return p, nil }
}

type single struct {
	conn grpc.ClientConnInterface
	name string
}

func (s single) Conn() grpc.ClientConnInterface { return s.conn }
func (s single) Name() string                   { return s.name }
func (s single) Report(error)                   {}
