package admission

import (
	"cmp"
	"context"
	"crypto/rand"
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

//go:embed look.lua
var lookScript string

//go:embed mark.lua
var markScript string

// tolerated is how many calls in a row may fail before Redis counts as lost:
// one slow answer must not divide everybody's limits.
const tolerated = 3

// RedisConfig sets a Redis store up. The zero value is the default.
type RedisConfig struct {
	Timeout  time.Duration // of one call on a request's way; 250 ms
	SlotTTL  time.Duration // life of a slot whose replica died; 30 s
	Renew    time.Duration // between two renewals of the live slots; a third of SlotTTL
	Probe    time.Duration // between two tries to reach a Redis that failed; 1 s
	Replicas func() int    // live replicas as last known; they divide the limits while Redis is lost. nil: 1
	Journal  *Journal      // of intents while Redis is lost, nil: they are not kept then
	Now      func() time.Time
}

func (c RedisConfig) withDefaults() RedisConfig {
	set := func(d *time.Duration, to time.Duration) {
		if *d == 0 {
			*d = to
		}
	}
	set(&c.Timeout, 250*time.Millisecond)
	set(&c.SlotTTL, 30*time.Second)
	set(&c.Renew, c.SlotTTL/3)
	set(&c.Probe, time.Second)
	if c.Replicas == nil {
		c.Replicas = func() int { return 1 }
	}
	return c
}

// Redis is the Store that replicas share. An admission is one script, one
// round trip, which admissions that come at the same time share. While Redis is
// away each replica admits its share in process, counting what it holds already,
// and Healthy is false; when Redis is back, what was admitted meanwhile and the
// live slots are added before it decides again; if it comes back empty, what this
// replica had told it before as well.
//
// A request whose answer from Redis comes too late may be charged in both
// places: the fault is on the side of the limit.
type Redis struct {
	log    *slog.Logger
	client redis.UniversalClient
	cfg    RedisConfig
	admit  *redis.Script
	settle *redis.Script
	look   *redis.Script
	mark   *redis.Script
	local  *Memory // has all live requests of this replica, whoever admitted them

	asks     together[*asking]
	failures atomic.Int32 // in a row
	loaded   atomic.Bool  // Redis knows the scripts of admissions and releases
	lost     atomic.Bool
	index    *index
	fell     chan struct{} // wakes Run when Redis is lost

	mu       sync.Mutex
	name     string   // of this store, for Redis to count what it carries
	life     string   // names the data that Redis had at the last renewal
	recalls  int      // of what a Redis that lost its data had been told; only Run counts them
	number   int      // of the arrears that are open
	arrears  arrears  // admitted here, and not told to Redis
	carrying *carried // on its way to Redis

	held     map[string]group // live requests, renewed until they are released
	released map[string]group // told to Redis with the next admission, or soon
	telling  map[string]bool  // releases on their way; true: a renewal may have put the request back
	owed     map[string]group // released, but Redis could not be told; bounded by maxOwed
	due      chan struct{}    // tells Run that something was released
}

// maxOwed bounds the releases that are remembered for a Redis that is away.
// Those above it end when their slots expire.
const maxOwed = 1 << 16

// NewRedis returns a store on client, which should come from Client: it needs
// deadlines on its connections. Run keeps the slots alive.
func NewRedis(log *slog.Logger, client redis.UniversalClient, cfg RedisConfig) *Redis {
	r := &Redis{
		log:    log,
		client: client,
		cfg:    cfg.withDefaults(),
		admit:  redis.NewScript(admitScript),
		settle: redis.NewScript(releaseScript),
		look:   redis.NewScript(lookScript),
		mark:   redis.NewScript(markScript),
		index:  newIndex(),
		local:  NewMemory(MemoryConfig{Now: cfg.Now}),
		fell:   make(chan struct{}, 1),
		held:   map[string]group{},

		name:    rand.Text(),
		number:  1,
		arrears: arrears{},

		released: map[string]group{},
		telling:  map[string]bool{},
		owed:     map[string]group{},
		due:      make(chan struct{}, 1),
	}
	r.asks = together[*asking]{most: askBatch, run: r.askTogether}
	return r
}

// Healthy reports whether limits are shared through Redis at present.
func (r *Redis) Healthy() bool { return !r.lost.Load() }

// Admit implements Store. Its errors are the context's, ErrFull and ErrNodes,
// and those of a journal that can't be written: a Redis that fails is no error.
func (r *Redis) Admit(ctx context.Context, req *Request) (Verdict, error) {
	g, err := groupOf(req)
	if err != nil || g.empty() {
		return Verdict{Admitted: err == nil}, err
	}
	r.mu.Lock()
	_, again := r.held[req.ID]
	r.mu.Unlock()
	v, err := r.decide(ctx, req, &g, again)
	if err != nil || !v.Admitted {
		return v, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, again := r.held[req.ID]; !again { // where it was charged first, it stays so
		r.held[req.ID] = g
	}
	delete(r.owed, req.ID)
	return v, nil
}

// decide asks Redis or, while that is lost, the store in process.
func (r *Redis) decide(ctx context.Context, req *Request, g *group, again bool) (Verdict, error) {
	if !r.lost.Load() {
		answer, err := r.ask(ctx, req, g)
		if err != nil && ctx.Err() == nil && !r.lost.Load() {
			answer, err = r.ask(ctx, req, g) // one slow answer must not admit more than there is: it is charged once
		}
		if err == nil {
			v := verdict(g.nodes, answer)
			if v.Admitted {
				r.local.adopt(req, g.nodes, answer[3:])
			}
			return v, nil
		}
		if !again {
			// The script may have run all the same: its slots and tokens are
			// given back.
			r.owe(req.ID, g.corrected(req.Estimate, Counts{}))
		}
		if ctx.Err() != nil {
			return Verdict{}, context.Cause(ctx)
		}
	}
	g.local = r.shares(g.nodes)
	v, err := r.local.charge(req, g.local)
	if err != nil || !v.Admitted || again {
		return v, err
	}
	if g.intent != nil && r.cfg.Journal != nil {
		if err := r.cfg.Journal.put(g.intent); err != nil {
			r.local.settle(req.ID, g.local, req.Estimate, Counts{})
			return Verdict{}, err
		}
		g.journaled = true
	}
	r.lend(g, req.Estimate)
	return v, nil
}

// ask runs the script and notes how Redis does.
func (r *Redis) ask(ctx context.Context, req *Request, g *group) ([]int64, error) {
	call, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	args := make([]any, 0, 3+len(g.nodes)*(1+2*meters))
	args = append(args, req.ID, r.cfg.SlotTTL.Microseconds())
	costs := req.Estimate.all()
	for i := range g.nodes {
		n := &g.nodes[i]
		args = append(args, n.slots())
		for m, limit := range n.rates() {
			if limit == 0 {
				args = append(args, 0, 0)
				continue
			}
			allowed := rateOf(Meter(m), limit)
			args = append(args, allowed.cost(costs[m]), allowed.burst)
		}
	}
	err := error(nil)
	if g.intent != nil {
		args = append(args, g.intent.encode())
		err = r.index.add(call, r.client, g.tenant, g.intent.Replica)
	}
	a := &asking{keys: g.keys(), args: args, err: errUnasked}
	if err == nil {
		err = r.asks.do(call, a)
	}
	if err == nil {
		// Whoever led saw the batch to its end, also if its caller left.
		err = cmp.Or(context.Cause(ctx), a.err)
	}
	if err != nil {
		if ctx.Err() == nil {
			r.failed(err)
		}
		return nil, err
	}
	r.failures.Store(0)
	return a.answer, nil
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

// Release implements Store. Its errors are ErrNodes and those of the journal.
// This replica knows of it at once, Redis within some milliseconds; what it
// can't be told then it is told later, or the slot expires.
func (r *Redis) Release(_ context.Context, req *Request, used Counts) error {
	g, err := groupOf(req)
	if err != nil {
		return err
	}
	r.mu.Lock()
	if held, ok := r.held[req.ID]; ok {
		g = held
	}
	delete(r.held, req.ID)
	r.mu.Unlock()
	if req.Intent == nil {
		g.intent, g.journaled = nil, false
	}
	if g.empty() {
		return nil
	}
	at := g.local
	if at == nil {
		at = g.nodes
	}
	r.local.settle(req.ID, at, req.Estimate, used)
	if g.journaled {
		err = r.cfg.Journal.drop(g.intent.Request)
	}
	if g = g.corrected(req.Estimate, used); r.correctLent(&g) {
		g.by = make([][meters]int64, len(g.nodes)) // Redis is told of what it used, not of its estimate
	}
	if r.lost.Load() {
		r.owe(req.ID, g)
		return err
	}
	r.put(map[string]group{req.ID: g})
	return err
}

func (r *Redis) owe(requestID string, g group) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.telling, requestID)
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
		out[i] = Node{ID: n.ID, Rise: n.Rise, Concurrency: share(n.Concurrency, replicas), PerMinute: Counts{
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
