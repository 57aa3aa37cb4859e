package gateway

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"weir/billing"
	"weir/gateway/admission"
	"weir/gateway/catalogue"
	"weir/scheduler"
)

// Catalogue gives the present snapshot of what is sold and run.
type Catalogue interface {
	Snapshot() *catalogue.Snapshot
}

// Pools finds a pool's scheduler and asks after its endpoints.
type Pools interface {
	Scheduler(pool string) (scheduler.Scheduler, bool)
	// Probe asks an endpoint now whether it lives. Nil means that it does.
	Probe(ctx context.Context, pool, endpoint string) error
}

// Settler stores receipts. Settle returns once the receipt, and the effect if
// there is one, are durable.
type Settler interface {
	Settle(ctx context.Context, r billing.Receipt, effect func(*pgx.Batch)) error
}

// Deps is what a Gateway works with.
type Deps struct {
	Catalogue Catalogue
	Limits    admission.Store
	Intents   admission.Intents // of exchanges that are billed; nil: none are kept
	Pools     Pools
	Receipts  Settler
	Funds     Funds                 // nil: requests of tenants whose money is enforced are refused
	Metrics   prometheus.Registerer // nil: none are kept
}

// Config sets a Gateway. Zero fields but SaltSecret take the default that is
// named with them.
type Config struct {
	SaltSecret []byte                  // key of the tenants' cache salts
	Secrets    func(env string) string // the engines' keys by name of their variable; nil when none has one

	Replica     string       // this replica's id, for intents
	BillingMode billing.Mode // of tenants without a mode of their own (off)

	KeepAlive     time.Duration // a stream's silence after which a comment is sent (15 s)
	MaxEvent      int           // bytes of one event of a stream (4 MiB)
	MaxDocument   int64         // bytes of one JSON answer (64 MiB)
	SettleTimeout time.Duration // for storing a receipt (10 s)
	ProbeTimeout  time.Duration // for asking after an endpoint that reset (2 s)
	SuspectFor    time.Duration // how long a request is refused that took an endpoint down (60 s)

	// BurstBelow is how full a pool may be while a plan's burst raises limits,
	// 1 being full (0.5).
	BurstBelow float64

	// HoldSlice is for how many output tokens of a choice a stream sets money
	// aside at a time (2,048).
	HoldSlice int64

	// FairnessIDs is how many of them metrics may show (1,000); a negative
	// number shows none.
	FairnessIDs int

	// Dial connects to engines (a plain net.Dialer).
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (c Config) withDefaults() Config {
	c.KeepAlive = cmp.Or(c.KeepAlive, 15*time.Second)
	c.MaxEvent = cmp.Or(c.MaxEvent, 4<<20)
	c.MaxDocument = cmp.Or(c.MaxDocument, 64<<20)
	c.SettleTimeout = cmp.Or(c.SettleTimeout, 10*time.Second)
	c.ProbeTimeout = cmp.Or(c.ProbeTimeout, 2*time.Second)
	c.SuspectFor = cmp.Or(c.SuspectFor, time.Minute)
	c.BurstBelow = cmp.Or(c.BurstBelow, 0.5)
	c.HoldSlice = cmp.Or(c.HoldSlice, 2048)
	c.FairnessIDs = cmp.Or(c.FairnessIDs, 1000)
	return c
}

// Gateway runs exchanges. It is safe for concurrent use.
type Gateway struct {
	log        *slog.Logger
	deps       Deps
	cfg        Config
	engines    *engines
	retries    *retryBudget
	suspects   *suspects
	isolation  *isolation
	router     *router
	metrics    *metrics
	waiters    *waiters
	traces     *traces
	running    *running
	epp        *epp
	tokenizers *tokenizers
	buffers    sync.Pool // *[]byte, for what is sent to callers
}

// New makes a Gateway.
func New(log *slog.Logger, deps Deps, cfg Config) *Gateway {
	cfg = cfg.withDefaults()
	g := &Gateway{
		log: log, deps: deps, cfg: cfg,
		engines:   newEngines(cfg),
		retries:   newRetryBudget(),
		suspects:  newSuspects(cfg.SuspectFor),
		isolation: newIsolation(),
		router:    &router{},
		metrics:   newMetrics(deps.Metrics),
		waiters:   newWaiters(),
		traces:    newTraces(),
		running:   newRunning(),
		epp:       newEPP(deps.Metrics, max(cfg.FairnessIDs, 0)),
		buffers:   sync.Pool{New: func() any { return new([]byte) }},
	}
	g.tokenizers = newTokenizers(g.engines, deps.Metrics)
	if deps.Metrics != nil {
		deps.Metrics.MustRegister(newQueueGauges(g.waiters, g.epp), newRunningGauges(g.running, g.epp))
	}
	return g
}

// Close gives back idle connections to engines. Exchanges that still run end
// as they would have.
func (g *Gateway) Close() { g.engines.close() }

// Run runs one exchange: admit, schedule, forward, settle. It returns nil once
// the whole answer was passed to sink, and else an *Error. If sink.Begin was
// called before the failure, sink.Fail has been too, unless the caller left.
//
// However the exchange ends, its receipt is stored before the last bytes go
// out, its lease is ended and its slots are free when Run returns. A receipt
// is written for every exchange that was given a lease, at cost 0 where the
// cause is not billable; one that was refused before writes none. A ctx that
// ends with a cause of tenants.ErrRevoked ends the exchange as KeyRevoked, and
// any other ended ctx as ClientGone.
func (g *Gateway) Run(ctx context.Context, c Call, sink Sink) (err error) {
	x := newExchange(g, &c, sink)
	var failure *Error
	defer func() {
		if p := recover(); p != nil {
			failure = &Error{Cause: Internal, Err: fmt.Errorf("panic: %v\n%s", p, debug.Stack())}
		}
		if failure == nil {
			return
		}
		if !x.queuedAt.IsZero() {
			failure.Band, failure.QueueTime = x.band, x.queued
		}
		_ = x.finish(ctx, failure) // only a success can turn into a failure here
		x.out.fail(ctx, failure)
		err = failure
	}()
	failure = x.run(ctx)
	return nil
}
