package billing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrBooking means that the ledger doesn't take a booking: another one has its
// reference, or the amount isn't there.
var ErrBooking = errors.New("billing: booking refused")

// Kinds of credit, in the order in which they are used up.
const (
	CreditFree  = "free"  // comes with a plan
	CreditPromo = "promo" // a gift
	CreditPaid  = "paid"
)

// Credit is money that a tenant is given, or paid.
type Credit struct {
	Tenant string
	Kind   string
	Nano   int64
	// Ref makes it happen once: the same credit again under the same Ref changes
	// nothing, and another one is ErrBooking. It is the tenant's own.
	Ref         string
	Note        string
	EffectiveAt time.Time // zero: now
	ExpiresAt   time.Time // zero: never
}

// Given is what became of a credit.
type Given struct {
	Lot     int64
	Txn     int64 // that booked it; 0 until it takes effect
	Created bool  // now, and not before
}

// GiveCredit books a credit, as the worker. Of a paid one, what the tenant owes
// is paid first.
func GiveCredit(ctx context.Context, worker Querier, c Credit) (Given, error) {
	rows, err := worker.Query(ctx, `
		SELECT lot, coalesce(txn, 0), created
		FROM weir_credit($1, $2, $3, $4, $5, $6, $7)`,
		c.Tenant, c.Kind, c.Nano, c.Ref, c.Note, orNull(c.EffectiveAt), orNull(c.ExpiresAt))
	if err == nil {
		var g Given
		if g, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Given]); err == nil {
			return g, nil
		}
	}
	return Given{}, fmt.Errorf("credit: %w", refusedBooking(err))
}

// Kinds of corrections.
const (
	Adjustment = "adjust"   // what usage should have cost, either way
	Refund     = "refund"   // paid credit that was paid back; a negative amount
	WriteOff   = "writeoff" // what is owed and forgiven; a positive amount
)

// Adjust books a correction, as the worker, and returns its transaction. A
// positive amount is in the tenant's favour. It happens once for each ref.
func Adjust(ctx context.Context, worker Querier, tenant, kind string, nano int64, ref, note string) (txn int64, err error) {
	return bookOne(ctx, worker, `SELECT weir_adjust($1, $2, $3, $4, $5)`, tenant, nano, kind, ref, note)
}

// Reverse books the opposite of a transaction, as the worker, and returns the
// transaction that does. It happens once.
func Reverse(ctx context.Context, worker Querier, tenant string, txn int64, note string) (reversal int64, err error) {
	return bookOne(ctx, worker, `SELECT weir_reverse($1, $2, $3)`, tenant, txn, note)
}

func bookOne(ctx context.Context, q Querier, sql string, args ...any) (int64, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err == nil {
		var txn int64
		if txn, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64]); err == nil {
			return txn, nil
		}
	}
	return 0, fmt.Errorf("book: %w", refusedBooking(err))
}

// refusedBooking tells what the database refuses from what goes wrong.
func refusedBooking(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if ok && (pgErr.Code[:2] == "22" || pgErr.Code[:2] == "23") {
		return fmt.Errorf("%w: %s", ErrBooking, pgErr.Message)
	}
	return err
}

// Lot is a credit and what is left of it.
type Lot struct {
	ID            int64
	Kind          string
	Nano          int64
	RemainingNano int64
	EffectiveAt   time.Time
	ExpiresAt     *time.Time
	Ref, Note     string
	Txn           int64 // that booked it; 0 until it takes effect
}

// Lots reads a tenant's credit, in its own transaction: what is used up first
// comes first, and what is used up already last.
func Lots(ctx context.Context, q Querier, tenant string, limit int) ([]Lot, error) {
	rows, err := q.Query(ctx, `
		SELECT id, kind, amount_nano, remaining_nano, effective_at, expires_at, ref, note, coalesce(ledger_txn, 0)
		FROM credit_lots
		WHERE tenant_id = $1
		ORDER BY open DESC, ledger_txn IS NULL DESC, priority, expires_at NULLS LAST, id
		LIMIT $2`, tenant, limit)
	if err != nil {
		return nil, fmt.Errorf("read credit: %w", err)
	}
	lots, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Lot])
	if err != nil {
		return nil, fmt.Errorf("read credit: %w", err)
	}
	return lots, nil
}
