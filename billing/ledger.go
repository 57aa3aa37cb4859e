package billing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoTransaction means that a tenant's ledger has no such transaction.
var ErrNoTransaction = errors.New("billing: no such ledger transaction")

// Transaction is one booking of the ledger.
type Transaction struct {
	ID       int64     `json:"id"`
	Kind     string    `json:"kind"` // usage, topup, grant, adjust, refund, writeoff, expire, reverse
	BookedAt time.Time `json:"booked_at"`
	Ref      string    `json:"ref,omitempty"`
	Note     string    `json:"note,omitempty"`
	Reverses int64     `json:"reverses,omitempty"` // the transaction that it corrects
	Nano     int64     `json:"nano"`               // what it changed for the tenant
}

// Entry is one line of a transaction. The lines sum to zero.
type Entry struct {
	Account string `json:"account"`
	Lot     int64  `json:"lot,omitempty"` // the credit it is of
	Nano    int64  `json:"nano"`
}

const selectTransactions = `
	SELECT
		t.id, t.kind, t.booked_at, coalesce(t.ref, ''), t.note, coalesce(t.reverses, 0),
		(SELECT coalesce(sum(e.amount_nano), 0)::bigint FROM ledger_entries e
		 WHERE e.tenant_id = t.tenant_id AND e.txn = t.id AND e.account LIKE 'tenant:%')
	FROM ledger_transactions t
	WHERE t.tenant_id = $1`

// Transactions reads a tenant's ledger in its own transaction, newest first:
// those before the given one, or from the newest where that is 0.
func Transactions(ctx context.Context, q Querier, tenant string, before int64, limit int) ([]Transaction, error) {
	rows, err := q.Query(ctx, selectTransactions+` AND ($2 = 0 OR t.id < $2) ORDER BY t.id DESC LIMIT $3`, tenant, before, limit)
	if err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	txns, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Transaction])
	if err != nil {
		return nil, fmt.Errorf("read ledger: %w", err)
	}
	return txns, nil
}

// Booking is a transaction with its lines and, where it is of usage, the
// receipts that it sums up, at most a thousand of them, or, where it corrects
// ratings, those.
type Booking struct {
	Transaction

	Entries  []Entry   `json:"entries"`
	Receipts []Settled `json:"receipts,omitempty"`
	More     bool      `json:"more,omitempty"` // there are more receipts

	Corrections []Correction `json:"corrections,omitempty"`
}

// LoadBooking reads one transaction in a transaction of its tenant. The error is
// ErrNoTransaction where there is none.
func LoadBooking(ctx context.Context, q Querier, tenant string, id int64) (Booking, error) {
	rows, err := q.Query(ctx, selectTransactions+` AND t.id = $2`, tenant, id)
	if err != nil {
		return Booking{}, fmt.Errorf("read ledger: %w", err)
	}
	var b Booking
	b.Transaction, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Transaction])
	if errors.Is(err, pgx.ErrNoRows) {
		return Booking{}, fmt.Errorf("%w: %d of %s", ErrNoTransaction, id, tenant)
	}
	if err != nil {
		return Booking{}, fmt.Errorf("read ledger: %w", err)
	}
	rows, err = q.Query(ctx, `
		SELECT account, lot, amount_nano
		FROM ledger_entries
		WHERE tenant_id = $1 AND txn = $2
		ORDER BY account LIKE 'tenant:%' DESC, account, lot`, tenant, id)
	if err != nil {
		return Booking{}, fmt.Errorf("read ledger: %w", err)
	}
	if b.Entries, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Entry]); err != nil {
		return Booking{}, fmt.Errorf("read ledger: %w", err)
	}
	// The receipts were stored at the very moment of the booking.
	page, err := Receipts(ctx, q, tenant, Filter{LedgerTxn: id, From: b.BookedAt, To: b.BookedAt.Add(time.Microsecond), Limit: maxPage})
	if err != nil {
		return Booking{}, err
	}
	b.Receipts, b.More = page.Receipts, page.Next != (Cursor{})
	b.Corrections, err = corrections(ctx, q, tenant, id)
	return b, err
}
