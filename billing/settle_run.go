package billing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// replayBatch is how many spooled receipts go into one transaction.
const replayBatch = 200

// partitionsEvery is how often the partitions to come are looked after. They
// are made three months ahead: a few missed days don't matter.
const partitionsEvery = 24 * time.Hour

// Run replays what is spooled, now and whenever Postgres is back, and keeps the
// partitions of the coming months made. When ctx ends it waits until every
// Settle that has begun is stored, and returns nil.
func (s *Settler) Run(ctx context.Context) error {
	tick := time.NewTicker(s.cfg.Retry)
	defer tick.Stop()
	var partitionsDue time.Time
	for {
		s.recover(ctx)
		if !s.away.Load() && !s.now().Before(partitionsDue) {
			s.makePartitions(ctx)
			partitionsDue = s.now().Add(partitionsEvery)
		}
		select {
		case <-ctx.Done():
			s.group.drain()
			return nil
		case <-tick.C:
		}
	}
}

// recover brings Postgres back into use once it answers, and empties the spool.
func (s *Settler) recover(ctx context.Context) {
	if s.away.Load() {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		if !s.answers(ctx) {
			return
		}
		s.away.Store(false)
		s.log.InfoContext(ctx, "postgres is back")
	}
	if s.Spooled() == 0 {
		return
	}
	lost, err := s.spool.Replay(ctx, replayBatch, s.replay)
	if lost > 0 {
		s.metrics.unreadable.Add(float64(lost))
		s.log.ErrorContext(ctx, "spooled receipts are damaged, their file is kept", "receipts", lost)
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		s.log.WarnContext(ctx, "spool is not replayed yet", "error", err, "bytes", s.Spooled())
	}
}

// answers reports that Postgres would settle. A connection alone proves little:
// the function may be missing.
func (s *Settler) answers(ctx context.Context) bool { return s.tryCommit(ctx, nil) == nil }

// replay stores spooled receipts. One that Postgres refuses is written to the
// log, whole: it is the last place that has it.
func (s *Settler) replay(ctx context.Context, receipts []Receipt) error {
	batch := make([]*settlement, len(receipts))
	for i := range receipts {
		batch[i] = &settlement{receipt: receipts[i]}
	}
	return s.replayItems(ctx, batch)
}

func (s *Settler) replayItems(ctx context.Context, batch []*settlement) error {
	err := s.commit(ctx, batch)
	switch {
	case err == nil:
		s.metrics.replayed.Add(float64(len(batch)))
		return nil
	case !isFault(err):
		if ctx.Err() == nil {
			s.lost(ctx, err)
		}
		return err
	case len(batch) == 1:
		s.metrics.rejected.Inc()
		s.log.ErrorContext(ctx, "spooled receipt was refused", "error", err, "receipt", batch[0].receipt)
		return nil
	default:
		half := len(batch) / 2
		return errors.Join(s.replayItems(ctx, batch[:half]), s.replayItems(ctx, batch[half:]))
	}
}

func (s *Settler) makePartitions(ctx context.Context) {
	stray, err := MakePartitions(ctx, s.pool)
	switch {
	case err != nil && ctx.Err() == nil:
		s.log.ErrorContext(ctx, "partitions of receipts could not be made", "error", err)
	case stray > 0:
		s.log.ErrorContext(ctx, "receipts lie outside every month, check the database's clock", "receipts", stray)
	default:
	}
}

// MakePartitions makes the partitions of receipts for this month and the three
// to come, as the worker or the owner. stray counts receipts outside of them.
// It may be called at any time.
func MakePartitions(ctx context.Context, q Querier) (stray int64, err error) {
	rows, err := q.Query(ctx, `SELECT weir_make_receipt_partitions()`)
	if err != nil {
		return 0, fmt.Errorf("make partitions: %w", err)
	}
	stray, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
	if err != nil {
		return 0, fmt.Errorf("make partitions: %w", err)
	}
	return stray, nil
}
