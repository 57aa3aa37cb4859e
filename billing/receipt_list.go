package billing

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Settled is a receipt as it was stored.
type Settled struct {
	Receipt

	SettledAt time.Time `json:"settled_at"`
	LedgerTxn int64     `json:"ledger_txn,omitempty"` // that booked it; 0 where nothing was booked
}

// Filter chooses receipts. Zero members don't restrict.
type Filter struct {
	RequestID string
	From, To  time.Time // of SettledAt, half open
	LedgerTxn int64     // that booked them; give its moment too
	After     Cursor    // of an earlier page
	Limit     int       // at most 1000; 0 means 100
}

// Cursor is where a page of receipts ended. The zero Cursor is the newest end.
type Cursor struct {
	SettledAt time.Time
	RequestID string
}

// Page is some receipts, newest first.
type Page struct {
	Receipts []Settled
	Next     Cursor // for the page that follows; zero when there is none
}

const (
	defaultPage = 100
	maxPage     = 1000
)

// Receipts reads a tenant's receipts, newest first. q is a transaction of that
// tenant (tenants.InTenant): in any other it finds nothing.
func Receipts(ctx context.Context, q Querier, tenant string, f Filter) (Page, error) {
	limit := min(positive(f.Limit, defaultPage), maxPage)
	rows, err := q.Query(ctx, `
		SELECT
			request_id, client_request_id, tenant_id, project_id, key_id,
			operation, model, pool, endpoint, attempts, stream,
			band, priority, tier,
			input_uncached, input_cached, output, reasoning,
			usage_source, price_version, cost_nano,
			started_at, queue_us, ttft_us, duration_us, outcome, settled_at,
			saved_nano, mode, settled_by, coalesce(ledger_txn, 0),
			cached_host, cached_storage
		FROM receipts
		WHERE tenant_id = $1
			AND ($2 = '' OR request_id = $2 AND settled_at = (
				SELECT settled_at FROM receipt_ids WHERE tenant_id = $1 AND request_id = $2))
			AND ($3::timestamptz IS NULL OR settled_at >= $3)
			AND ($4::timestamptz IS NULL OR settled_at < $4)
			AND ($8 = 0 OR ledger_txn = $8)
			AND ($5::timestamptz IS NULL OR (settled_at, request_id) < ($5, $6))
		ORDER BY settled_at DESC, request_id DESC
		LIMIT $7`,
		tenant, f.RequestID, orNull(f.From), orNull(f.To), orNull(f.After.SettledAt), f.After.RequestID, limit+1, f.LedgerTxn)
	if err != nil {
		return Page{}, fmt.Errorf("read receipts: %w", err)
	}
	found, err := pgx.CollectRows(rows, scanSettled)
	if err != nil {
		return Page{}, fmt.Errorf("read receipts: %w", err)
	}
	page := Page{Receipts: found}
	if len(found) > limit { // the one too many says that there is more
		page.Receipts = found[:limit]
		last := found[limit-1]
		page.Next = Cursor{SettledAt: last.SettledAt, RequestID: last.RequestID}
	}
	return page, nil
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func scanSettled(row pgx.CollectableRow) (s Settled, err error) {
	var queue, ttft, duration int64
	var host, storage *int64
	err = row.Scan(
		&s.RequestID, &s.ClientRequestID, &s.Tenant, &s.Project, &s.Key,
		&s.Operation, &s.Model, &s.Pool, &s.Endpoint, &s.Attempts, &s.Stream,
		&s.Band, &s.Priority, &s.Tier,
		&s.Usage.InputUncached, &s.Usage.InputCached, &s.Usage.Output, &s.Usage.Reasoning,
		&s.UsageSource, &s.PriceVersion, &s.CostNano,
		&s.StartedAt, &queue, &ttft, &duration, &s.Outcome, &s.SettledAt,
		&s.SavedNano, &s.Mode, &s.SettledBy, &s.LedgerTxn,
		&host, &storage)
	s.CachedTiers = tiersOf(host, storage)
	s.QueueTime = time.Duration(queue) * time.Microsecond
	s.TTFT = time.Duration(ttft) * time.Microsecond
	s.Duration = time.Duration(duration) * time.Microsecond
	s.StartedAt, s.SettledAt = s.StartedAt.UTC(), s.SettledAt.UTC()
	return s, err
}
