package billing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
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
	MaxBatch    int           // receipts a transaction; 200
	MaxInFlight int           // transactions at once; 2
	MaxPending  int           // receipts that wait for a transaction; 10000
	Timeout     time.Duration // of one transaction, until Postgres counts as away; 3s
	Retry       time.Duration // between attempts to get Postgres back; 1s

	Metrics prometheus.Registerer // nil: not registered
}

func (c SettleConfig) withDefaults() SettleConfig {
	c.MaxBatch = positive(c.MaxBatch, 200)
	c.MaxInFlight = positive(c.MaxInFlight, 2)
	c.MaxPending = positive(c.MaxPending, 10_000)
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
// worker role. Callers that arrive together share a transaction (group commit):
// one that finds nobody at work commits at once in its own goroutine, those
// that come meanwhile gather, and the first of them commits for all. A second
// transaction runs beside the first only when a whole batch has gathered,
// because few large transactions cost less than many small ones.
type Settler struct {
	log     *slog.Logger
	pool    *pgxpool.Pool
	spool   *Spool
	cfg     SettleConfig
	now     func() time.Time
	metrics *settleMetrics

	away atomic.Bool // Postgres; Run brings it back

	mu      sync.Mutex
	idle    sync.Cond     // signalled when nobody commits or waits
	pending []*settlement // in order of arrival
	running int           // transactions in flight
}

// settlement is one call of Settle on its way.
type settlement struct {
	receipt Receipt
	effect  []*pgx.QueuedQuery
	turn    chan []*settlement // a batch to commit, and closed when err is final
	err     error
}

// NewSettler makes a settle writer on the worker's pool. spool may be nil where
// there is no disk: then every receipt is refused while Postgres is away.
func NewSettler(log *slog.Logger, worker *pgxpool.Pool, spool *Spool, cfg SettleConfig, now func() time.Time) *Settler {
	s := &Settler{log: log, pool: worker, spool: spool, cfg: cfg.withDefaults(), now: now}
	s.idle.L = &s.mu
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
	it := &settlement{receipt: r, turn: make(chan []*settlement, 1)}
	err := it.prepare(effect)
	if err == nil {
		err = s.enter(it)
	}
	if err == nil {
		for batch := range it.turn {
			s.lead(context.WithoutCancel(ctx), batch)
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

// enter joins the line.
func (s *Settler) enter(it *settlement) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) >= s.cfg.MaxPending {
		return fmt.Errorf("%w: %d receipts wait already", ErrUnavailable, len(s.pending))
	}
	s.pending = append(s.pending, it)
	s.advance()
	return nil
}

// lead commits a batch in the goroutine of one of its callers.
func (s *Settler) lead(ctx context.Context, batch []*settlement) {
	defer s.leave(batch)
	s.metrics.batch.Observe(float64(len(batch)))
	s.store(ctx, batch)
}

// leave lets the next batch begin and the callers of this one go.
func (s *Settler) leave(batch []*settlement) {
	s.mu.Lock()
	s.running--
	s.advance()
	if s.running == 0 {
		s.idle.Broadcast()
	}
	s.mu.Unlock()
	for _, it := range batch {
		close(it.turn)
	}
}

// advance begins as many batches as may run, each led by its first caller.
// Callers hold mu. Afterwards nobody waits while nobody commits.
func (s *Settler) advance() {
	for len(s.pending) > 0 && s.running < s.cfg.MaxInFlight {
		if s.running > 0 && len(s.pending) < s.cfg.MaxBatch {
			return
		}
		n := min(len(s.pending), s.cfg.MaxBatch)
		batch := s.pending[:n:n]
		s.pending = s.pending[n:]
		s.running++
		batch[0].turn <- batch
	}
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
