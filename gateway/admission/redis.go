package admission

import (
	"context"
	_ "embed"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed admit.lua
var admitScript string

//go:embed release.lua
var releaseScript string

//go:embed renew.lua
var renewScript string

// tolerated is how many calls in a row may fail before Redis counts as lost:
// one slow answer must not divide everybody's limits.
const tolerated = 3

// RedisConfig sets a Redis store up. The zero value is the default.
type RedisConfig struct {
	Timeout  time.Duration // of one call on a request's way; 50 ms
	SlotTTL  time.Duration // life of a slot whose replica died; 30 s
	Renew    time.Duration // between two renewals of the live slots; a third of SlotTTL
	Probe    time.Duration // between two tries to reach a Redis that failed; 1 s
	Replicas func() int    // live replicas as last known; they divide the limits while Redis is lost. nil: 1
	Now      func() time.Time
}

func (c RedisConfig) withDefaults() RedisConfig {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&c.Timeout, 50*time.Millisecond)
	set(&c.SlotTTL, 30*time.Second)
	set(&c.Renew, c.SlotTTL/3)
	set(&c.Probe, time.Second)
	if c.Replicas == nil {
		c.Replicas = func() int { return 1 }
	}
	return c
}

// Redis is the Store that replicas share. An admission is one script, one
// round trip. While Redis is away each replica admits its share in process,
// counting what it holds already, and Healthy is false; when Redis is back the
// live slots are added again before it decides again.
//
// A request whose answer from Redis comes too late may be charged in both
// places: the fault is on the side of the limit.
type Redis struct {
	log    *slog.Logger
	client redis.UniversalClient
	cfg    RedisConfig
	admit  *redis.Script
	settle *redis.Script
	local  *Memory // has all live requests of this replica, whoever admitted them

	failures atomic.Int32 // in a row
	loaded   atomic.Bool  // Redis knows the script of a release
	lost     atomic.Bool
	fell     chan struct{} // wakes Run when Redis is lost

	mu       sync.Mutex
	held     map[string]group // live requests, renewed until they are released
	released map[string]group // told to Redis with the next admission, or soon
	owed     map[string]group // released, but Redis could not be told; bounded by maxOwed
	due      chan struct{}    // tells Run that something was released
}

// maxOwed bounds the releases that are remembered for a Redis that is away.
// Those above it end when their slots expire.
const maxOwed = 1 << 16

// NewRedis returns a store on client, which should come from Client: it needs
// deadlines on its connections. Run keeps the slots alive.
func NewRedis(log *slog.Logger, client redis.UniversalClient, cfg RedisConfig) *Redis {
	return &Redis{
		log:    log,
		client: client,
		cfg:    cfg.withDefaults(),
		admit:  redis.NewScript(admitScript),
		settle: redis.NewScript(releaseScript),
		local:  NewMemory(MemoryConfig{Now: cfg.Now}),
		fell:   make(chan struct{}, 1),
		held:   map[string]group{},

		released: map[string]group{},
		owed:     map[string]group{},
		due:      make(chan struct{}, 1),
	}
}

// Healthy reports whether limits are shared through Redis at present.
func (r *Redis) Healthy() bool { return !r.lost.Load() }

// Admit implements Store. Its errors are the context's, ErrFull and ErrNodes:
// a Redis that fails is no error.
func (r *Redis) Admit(ctx context.Context, requestID string, nodes []Node, estimate Counts) (Verdict, error) {
	g, err := groupOf(nodes)
	if err != nil || len(g.nodes) == 0 {
		return Verdict{Admitted: err == nil}, err
	}
	v, err := r.decide(ctx, requestID, &g, estimate)
	if err != nil || !v.Admitted {
		return v, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held[requestID] = g
	delete(r.owed, requestID)
	return v, nil
}

// decide asks Redis or, while that is lost, the store in process.
func (r *Redis) decide(ctx context.Context, requestID string, g *group, estimate Counts) (Verdict, error) {
	if !r.lost.Load() {
		v, err := r.ask(ctx, requestID, *g, estimate)
		if err == nil {
			if g.charged = v.Admitted; v.Admitted {
				r.local.adopt(requestID, g.nodes)
			}
			return v, nil
		}
		// The script may have run all the same: its slots and tokens are given
		// back.
		g.charged = true
		r.owe(requestID, g.corrected(estimate, Counts{}))
		g.charged = false
		if ctx.Err() != nil {
			return Verdict{}, context.Cause(ctx)
		}
	}
	return r.local.Admit(ctx, requestID, r.shares(g.nodes), estimate)
}

// ask runs the script and notes how Redis does.
func (r *Redis) ask(ctx context.Context, requestID string, g group, estimate Counts) (Verdict, error) {
	call, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	args := make([]any, 0, 2+len(g.nodes)*(1+2*meters))
	args = append(args, requestID, r.cfg.SlotTTL.Microseconds())
	costs := estimate.all()
	for i := range g.nodes {
		n := &g.nodes[i]
		args = append(args, n.Concurrency)
		for m, limit := range n.PerMinute.all() {
			if limit == 0 {
				args = append(args, 0, 0)
				continue
			}
			allowed := rateOf(Meter(m), limit)
			args = append(args, allowed.cost(costs[m]), allowed.burst)
		}
	}
	answer, err := r.admitAfterReleases(call, g.keys(), args)
	if err != nil {
		if ctx.Err() == nil {
			r.failed(err)
		}
		return Verdict{}, err
	}
	r.failures.Store(0)
	return verdict(g.nodes, answer), nil
}

// verdict reads the script's answer.
func verdict(nodes []Node, answer []int64) Verdict {
	v := Verdict{Admitted: answer[0] == 0}
	if !v.Admitted {
		v.Node, v.Retry = nodes[answer[0]-1].ID, micros(answer[2])
		if v.Slots = answer[1] == meters; !v.Slots {
			v.Meter = Meter(answer[1])
		}
	}
	for i := range nodes {
		v.describe(&nodes[i], [meters]int64(answer[3+meters*i:]))
	}
	return v
}

// Release implements Store. Its error is ErrNodes. This replica knows of it at
// once, Redis within some milliseconds; what it can't be told then it is told
// later, or the slot expires.
func (r *Redis) Release(ctx context.Context, requestID string, nodes []Node, estimate, used Counts) error {
	g, err := groupOf(nodes)
	if err != nil || len(g.nodes) == 0 {
		return err
	}
	r.mu.Lock()
	g.charged = r.held[requestID].charged
	delete(r.held, requestID)
	r.mu.Unlock()
	_ = r.local.Release(ctx, requestID, g.nodes, estimate, used) // never fails
	g = g.corrected(estimate, used)
	if r.lost.Load() {
		r.owe(requestID, g)
		return nil
	}
	r.put(map[string]group{requestID: g})
	return nil
}

func (r *Redis) owe(requestID string, g group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.owed) < maxOwed {
		r.owed[requestID] = g
	}
}

// failed counts a failure of Redis and gives it up after a few in a row.
func (r *Redis) failed(err error) {
	if r.failures.Add(1) >= tolerated {
		r.lose(err)
	}
}

func (r *Redis) lose(err error) {
	if r.lost.Swap(true) {
		return
	}
	r.log.Warn("redis is lost: each replica admits its share", slog.Any("error", err))
	select {
	case r.fell <- struct{}{}:
	default:
	}
}

// shares divides the limits by the live replicas; each keeps at least one.
func (r *Redis) shares(nodes []Node) []Node {
	replicas := max(1, r.cfg.Replicas())
	if replicas == 1 {
		return nodes
	}
	out := make([]Node, len(nodes))
	for i, n := range nodes {
		per := n.PerMinute
		out[i] = Node{ID: n.ID, Concurrency: share(n.Concurrency, replicas), PerMinute: Counts{
			Requests: share(per.Requests, replicas), Tokens: share(per.Tokens, replicas),
			Uncached: share(per.Uncached, replicas), Generated: share(per.Generated, replicas),
		}}
	}
	return out
}

func share(limit, replicas int) int {
	if limit == 0 {
		return 0
	}
	return max(1, limit/replicas)
}
