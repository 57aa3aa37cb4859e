package billing

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// store gives every settlement of a batch its result. A batch that Postgres
// refuses is halved until the item at fault stands alone: it alone fails, and
// the others are stored. As nothing of a refused transaction remains, an item
// may be sent as often as that takes.
func (s *Settler) store(ctx context.Context, batch []*settlement) {
	if s.away.Load() {
		s.putAside(batch, nil)
		return
	}
	err := s.commit(ctx, batch)
	switch {
	case err == nil:
		finish(batch, nil)
	case !isFault(err):
		s.lost(ctx, err)
		s.putAside(batch, err)
	case len(batch) == 1:
		finish(batch, fmt.Errorf("%w: %s: %w", ErrRejected, batch[0].receipt.RequestID, err))
	default:
		half := len(batch) / 2
		s.store(ctx, batch[:half])
		s.store(ctx, batch[half:])
	}
}

func finish(batch []*settlement, err error) {
	for _, it := range batch {
		it.err = err
	}
}

// putAside spools what a batch holds without effects, and refuses the rest.
// cause is why Postgres couldn't take it, where this batch found out.
func (s *Settler) putAside(batch []*settlement, cause error) {
	refusal := ErrUnavailable
	if cause != nil {
		refusal = fmt.Errorf("%w: %w", ErrUnavailable, cause)
	}
	var plain []*settlement
	var receipts []Receipt
	for _, it := range batch {
		if len(it.effect) > 0 || s.spool == nil {
			it.err = refusal
			continue
		}
		plain = append(plain, it)
		receipts = append(receipts, it.receipt)
	}
	if len(plain) == 0 {
		return
	}
	err := s.spool.Append(receipts)
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	} else {
		s.metrics.spooled.Add(float64(len(receipts)))
	}
	finish(plain, err)
}

// lost notes that Postgres is away, and says so once.
func (s *Settler) lost(ctx context.Context, cause error) {
	if !s.away.Swap(true) {
		s.log.ErrorContext(ctx, "receipts can't reach postgres, spooling", "error", cause)
	}
}

// commit stores a batch in one transaction. A connection that broke, perhaps
// during the commit, and a deadlock are tried once more: request ids tell what
// was stored already.
func (s *Settler) commit(ctx context.Context, batch []*settlement) error {
	err := s.tryCommit(ctx, batch)
	if err != nil && worthRetrying(err) {
		err = s.tryCommit(ctx, batch)
	}
	return err
}

// tryCommit is one attempt. Without effects one statement is the transaction,
// in one round trip.
func (s *Settler) tryCommit(ctx context.Context, batch []*settlement) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	// A connection that is still in a transaction is closed by Release.
	defer conn.Release()
	if err := learnRows(ctx, conn.Conn()); err != nil {
		return err
	}

	rows, effects := rowsOf(batch)
	var done settled
	if effects > 0 {
		done, err = commitEffects(ctx, conn.Conn(), batch, rows)
	} else {
		err = done.scan(conn.QueryRow(ctx, settleSQL, rows))
	}
	if err != nil {
		return err
	}
	s.metrics.duplicates.Add(float64(len(batch) - len(done.stored)))
	if done.overspent > 0 {
		s.metrics.overspent.Add(float64(done.overspent))
		s.log.ErrorContext(ctx, "tenants spent more than they had", "overspent_nano", done.overspent)
	}
	return nil
}

// settled is what settleSQL answers.
type settled struct {
	stored    []string // request ids that were new
	overspent int64    // nano-USD
}

func (s *settled) scan(row pgx.Row) error { return row.Scan(&s.stored, &s.overspent) }

// commitEffects stores receipts and then the effects of those that were new, in
// one transaction of two round trips. An exchange that the sweeper settled in its
// replica's absence has its effect too, beside the receipt that it has.
func commitEffects(ctx context.Context, conn *pgx.Conn, batch []*settlement, rows receiptRows) (done settled, err error) {
	var open pgx.Batch
	open.Queue("BEGIN")
	open.Queue(settleSQL, rows).QueryRow(done.scan)
	if err := conn.SendBatch(ctx, &open).Close(); err != nil {
		return settled{}, errors.Join(err, rollback(ctx, conn))
	}

	fresh := make(map[string]bool, len(done.stored))
	for _, id := range done.stored {
		fresh[id] = true
	}
	if err := markSwept(ctx, conn, batch, fresh); err != nil {
		return settled{}, errors.Join(err, rollback(ctx, conn))
	}
	var rest pgx.Batch
	for _, it := range batch {
		if id := it.receipt.RequestID; fresh[id] {
			for _, q := range it.effect {
				// A copy: pgx leaves the connection's prepared statement in it.
				rest.Queue(q.SQL, q.Arguments...).Fn = q.Fn
			}
			delete(fresh, id) // the same request twice in one batch has one effect
		}
	}
	rest.Queue("COMMIT")
	if err := conn.SendBatch(ctx, &rest).Close(); err != nil {
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
			err = &effectError{pgErr}
		}
		return settled{}, errors.Join(err, rollback(ctx, conn))
	}
	return done, nil
}

// markSwept adds to fresh the requests that have effects, and a receipt of the
// sweeper's. It asks only where some receipt was not new, which is rare.
func markSwept(ctx context.Context, conn *pgx.Conn, batch []*settlement, fresh map[string]bool) error {
	var owners, requests []string
	for _, it := range batch {
		if len(it.effect) > 0 && !fresh[it.receipt.RequestID] {
			owners, requests = append(owners, it.receipt.Tenant), append(requests, it.receipt.RequestID)
		}
	}
	if len(requests) == 0 {
		return nil
	}
	var swept []string
	if err := conn.QueryRow(ctx, `SELECT weir_swept($1, $2)`, owners, requests).Scan(&swept); err != nil {
		return err
	}
	for _, id := range swept {
		fresh[id] = true
	}
	return nil
}

// rollback leaves a failed transaction, so that a second attempt need not wait
// for its locks. On a broken connection there is nothing to do.
func rollback(ctx context.Context, conn *pgx.Conn) error {
	if conn.IsClosed() {
		return nil
	}
	_, err := conn.Exec(ctx, "ROLLBACK")
	return err
}

// effectError is a statement of a caller that Postgres refused.
type effectError struct{ *pgconn.PgError }

func (e *effectError) Error() string { return "effect: " + e.PgError.Error() }

func (e *effectError) Unwrap() error { return e.PgError }

// isFault reports that an item of the batch is to blame, and not the database:
// its data (classes 22, 23), or an effect's statement. Everything else, a
// missing function or grant included, counts as Postgres being away, since it
// would refuse every receipt: those are spooled until it is mended.
func isFault(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return false
	}
	switch pgErr.Code[:2] {
	case "22", "23":
		return true
	case "08", "53", "57", "58":
		return false
	default:
		_, effect := errors.AsType[*effectError](err)
		return effect
	}
}

// worthRetrying reports that a second attempt may succeed at once. A time-out
// isn't: the callers have waited long enough.
func worthRetrying(err error) bool {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		// A row was on its way to the default partition when its own was made: that
		// check alone has no name.
		moved := pgErr.Code == "23514" && pgErr.ConstraintName == ""
		return moved || strings.HasPrefix(pgErr.Code, "40") || pgErr.Code == "57P01" // deadlock; backend was told to go
	}
	return !errors.Is(err, context.DeadlineExceeded)
}
