package billing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

var (
	// ErrUnavailable means that a receipt could not be stored anywhere now:
	// Postgres is away, and the spool is full, missing or can't take the effect.
	ErrUnavailable = errors.New("billing: receipts can't be stored now")
	// ErrRejected means that Postgres refused this receipt or its effect and
	// would refuse it again.
	ErrRejected = errors.New("billing: receipt refused")
)

// SettleConfig bounds the settle writer. Zero values take the defaults.
type SettleConfig struct {
	MaxBatch    int           // receipts a transaction; 500
	MaxInFlight int           // transactions at once; 2
	MaxPending  int           // receipts that wait for a transaction; 10000
	Linger      time.Duration // how long one waits for others, where there were others just now; 500us, negative: never
	Timeout     time.Duration // of one transaction, until Postgres counts as away; 3s
	Retry       time.Duration // between attempts to get Postgres back; 1s

	Metrics prometheus.Registerer // nil: not registered
}

func (c SettleConfig) withDefaults() SettleConfig {
	c.MaxBatch = positive(c.MaxBatch, 500)
	c.MaxInFlight = positive(c.MaxInFlight, 2)
	c.MaxPending = positive(c.MaxPending, 10_000)
	if c.Linger == 0 {
		c.Linger = 500 * time.Microsecond
	}
	c.Timeout = positive(c.Timeout, 3*time.Second)
	c.Retry = positive(c.Retry, time.Second)
	return c
}

func positive[N int | time.Duration](n, otherwise N) N {
	if n > 0 {
		return n
	}
	return otherwise
}

// Settler is the settle writer: it stores receipts of all tenants, as the
// worker role. Callers that arrive together share a transaction: see group.
type Settler struct {
	log     *slog.Logger
	pool    *pgxpool.Pool
	spool   *Spool
	cfg     SettleConfig
	now     func() time.Time
	metrics *settleMetrics

	away  atomic.Bool // Postgres; Run brings it back
	group group
}

// settlement is one call of Settle on its way.
type settlement struct {
	receipt Receipt
	effect  []*pgx.QueuedQuery
	turn    chan struct{} // a value: lead a batch; closed: err is final
	err     error
}

// NewSettler makes a settle writer on the worker's pool. spool may be nil where
// there is no disk: then every receipt is refused while Postgres is away.
func NewSettler(log *slog.Logger, worker *pgxpool.Pool, spool *Spool, cfg SettleConfig, now func() time.Time) *Settler {
	s := &Settler{log: log, pool: worker, spool: spool, cfg: cfg.withDefaults(), now: now}
	s.group.init(s.cfg)
	s.metrics = newSettleMetrics(cfg.Metrics, s)
	return s
}

// Settle stores the receipt and returns nil when it is durable: committed, or
// synced to the spool while Postgres is away. It is idempotent by request id:
// the first receipt stays, and neither a second one nor its effect is applied.
//
// effect may be nil. Otherwise it adds statements to the receipt's transaction;
// they run as weir_worker, only where the receipt is new, and callbacks on their
// results may run more than once. An effect can't be spooled: the error is
// ErrUnavailable while Postgres is away.
//
// An error is ErrReceipt (it was never valid), ErrRejected or ErrUnavailable.
// With ErrUnavailable the receipt may yet be stored, and Settle may be called
// again. A caller that leaves doesn't stop a transaction that is shared: Settle
// ignores the end of ctx, and returns within some multiples of Config.Timeout.
// It needs no Run, and goes on working after Run has ended.
func (s *Settler) Settle(ctx context.Context, r Receipt, effect func(*pgx.Batch)) error {
	began := s.now()
	it := &settlement{receipt: r, turn: make(chan struct{}, 1)}
	err := it.prepare(effect)
	if err == nil {
		err = s.group.enter(it)
	}
	if err == nil {
		for range it.turn {
			s.lead(context.WithoutCancel(ctx))
		}
		err = it.err
	}
	s.metrics.settled(&it.receipt, s.now().Sub(began), err)
	return err
}

// errAbandoned is what a settlement holds until it has a result.
var errAbandoned = fmt.Errorf("%w: the transaction broke off", ErrUnavailable)

// prepare does whatever may go wrong in this call alone.
func (it *settlement) prepare(effect func(*pgx.Batch)) error {
	it.err = errAbandoned
	it.receipt.tidy()
	if err := it.receipt.Validate(); err != nil {
		return err
	}
	if effect != nil {
		var b pgx.Batch
		effect(&b)
		it.effect = b.QueuedQueries
	}
	return nil
}

// lead commits a batch in the goroutine of one of its callers.
func (s *Settler) lead(ctx context.Context) {
	batch := s.group.gather()
	defer s.group.leave(batch)
	s.metrics.batch.Observe(float64(len(batch)))
	s.store(ctx, batch)
}

// Away reports that Postgres can't be reached: receipts go to the spool, and
// effects are refused. Only Run finds out that it is back.
func (s *Settler) Away() bool { return s.away.Load() }

// Spooled is how many bytes of receipts wait for Postgres.
func (s *Settler) Spooled() int64 {
	if s.spool == nil {
		return 0
	}
	return s.spool.Bytes()
}
