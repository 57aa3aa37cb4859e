package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/bench/section"
	"weir/billing"
)

const (
	sizeTenants  = 1000
	monthlyCalls = 100_000_000
)

// size stores receipts as the gateway does, and looks at how large the tables
// are and how long the usage page's questions take.
func size(ctx context.Context, h *house) (string, error) {
	b, err := h.database(ctx, "size")
	if err != nil {
		return "", err
	}
	defer b.close(ctx)
	h.say(fmt.Sprintf("storing %d receipts", h.rows))
	if err := b.store(ctx, h.rows); err != nil {
		return "", err
	}
	if _, err := b.admin.Exec(ctx, `VACUUM ANALYZE`); err != nil {
		return "", err
	}
	var out strings.Builder
	fmt.Fprintf(&out, "### Size\n\n%d receipts of %d tenants, all in one month; a month of %d is that times %d. The ledger has a transaction for each tenant of each batch that was settled: with requests spread as thinly over tenants as here, nearly one for each receipt, which is the most it can be. Hours of usage grow with tenants, keys and models in use, not with requests.\n\n",
		h.rows, sizeTenants, monthlyCalls, monthlyCalls/max(h.rows, 1))
	section.Head(&out, "table", "rows", "table", "indexes", "bytes a row", fmt.Sprintf("a month of %d million receipts", monthlyCalls/1_000_000))
	rows, err := b.admin.Query(ctx, `
		SELECT c.relname, greatest(c.reltuples, 0)::bigint, pg_table_size(c.oid), pg_indexes_size(c.oid)
		FROM pg_class c
		WHERE c.relkind = 'r' AND pg_table_size(c.oid) > 1000000
			AND (c.relname LIKE 'receipt%' OR c.relname IN ('ledger_transactions', 'ledger_entries', 'usage_hours', 'wallets', 'chunks', 'credit_lots'))
		ORDER BY pg_total_relation_size(c.oid) DESC`)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var n, table, indexes int64
		if err := rows.Scan(&name, &n, &table, &indexes); err != nil {
			return "", err
		}
		month := "by tenants and keys"
		if strings.HasPrefix(name, "receipt") || strings.HasPrefix(name, "ledger") {
			month = gigabytes((table + indexes) * monthlyCalls / int64(h.rows))
		}
		section.Row(&out, "`"+name+"`", fmt.Sprint(n), gigabytes(table), gigabytes(indexes), fmt.Sprint((table+indexes)/max(n, 1)), month)
	}
	if err := rows.Err(); err != nil {
		return "", err
	}
	rows.Close()
	plans, err := b.plans(ctx)
	return out.String() + "\n" + plans, err
}

func gigabytes(n int64) string {
	if n < 100_000_000 {
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(n)/1e9)
}

// store settles n receipts of many tenants.
func (b *books) store(ctx context.Context, n int) error {
	chunks, err := b.fund(ctx, sizeTenants)
	if err != nil {
		return err
	}
	s := billing.NewSettler(slog.New(slog.DiscardHandler), b.worker, nil, billing.SettleConfig{MaxBatch: 1000}, time.Now)
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var callers sync.WaitGroup
	for range settleCallers {
		callers.Go(func() {
			for i := int(next.Add(1)); i <= n && failed.Load() == nil; i = int(next.Add(1)) {
				r := receipt(i, tenantNamed(i%sizeTenants))
				r.Mode, r.Chunks = billing.ModeEnforce, chunks[i%sizeTenants]
				if err := s.Settle(ctx, r, nil); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	callers.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// question is one that the usage page asks.
type question struct {
	name string
	sql  string
	args []any
}

// plans runs what the usage page asks, and says how it is answered.
func (b *books) plans(ctx context.Context) (string, error) {
	tenant := tenantNamed(7)
	month := time.Now().UTC().AddDate(0, 0, -30)
	var out strings.Builder
	section.Head(&out, "question", "time", "rows read", "answered by")
	for _, q := range []question{
		{"one receipt, by its id", `SELECT * FROM receipts WHERE tenant_id = $1 AND request_id = $2 AND settled_at = (SELECT settled_at FROM receipt_ids WHERE tenant_id = $1 AND request_id = $2)`, []any{tenant, fmt.Sprintf("req_%026d", 7)}},
		{"a page of the newest receipts", `SELECT * FROM receipts WHERE tenant_id = $1 AND settled_at >= $2 ORDER BY settled_at DESC, request_id DESC LIMIT 100`, []any{tenant, month}},
		{"a month of usage by hour", `SELECT hour, sum(requests), sum(cost_nano) FROM usage_hours WHERE tenant_id = $1 AND hour >= $2 GROUP BY hour`, []any{tenant, month}},
		{"a month of usage by model and key", `SELECT model, key_id, sum(input_uncached), sum(input_cached), sum(output), sum(cost_nano), sum(saved_nano) FROM usage_hours WHERE tenant_id = $1 AND hour >= $2 GROUP BY model, key_id`, []any{tenant, month}},
		{"the same from the receipts", `SELECT model, key_id, sum(input_uncached), sum(input_cached), sum(output), sum(cost_nano), sum(saved_nano) FROM receipts WHERE tenant_id = $1 AND settled_at >= $2 GROUP BY model, key_id`, []any{tenant, month}},
		{"what a ledger line is made of", `SELECT request_id, cost_nano FROM receipts r JOIN ledger_transactions t ON t.tenant_id = r.tenant_id AND t.id = r.ledger_txn AND t.booked_at = r.settled_at WHERE r.tenant_id = $1 AND t.id = (SELECT max(id) FROM ledger_transactions WHERE tenant_id = $1 AND kind = 'usage')`, []any{tenant}},
	} {
		row, err := b.explain(ctx, q)
		if err != nil {
			return "", fmt.Errorf("%s: %w", q.name, err)
		}
		section.Row(&out, row...)
	}
	return out.String(), nil
}
