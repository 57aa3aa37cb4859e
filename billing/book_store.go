package billing

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

// Querier reads rows: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// LoadBook reads the list prices and, in a transaction of a tenant
// (tenants.InTenant), that tenant's own.
func LoadBook(ctx context.Context, q Querier) (*Book, error) {
	prices, err := loadPrices(ctx, q, `
		SELECT
			version, '', model, effective_from, false, input_pico, cached_input_pico, output_pico, reasoning_pico,
			flex_bp, priority_bp, batch_bp, background_bp, long_context, created_at
		FROM prices
		UNION ALL
		SELECT
			version, tenant_id, model, effective_from, lapsed, input_pico, cached_input_pico, output_pico, reasoning_pico,
			flex_bp, priority_bp, batch_bp, background_bp, long_context, created_at
		FROM tenant_prices`)
	if err != nil {
		return nil, fmt.Errorf("load price book: %w", err)
	}
	return NewBook(prices), nil
}

func loadPrices(ctx context.Context, q Querier, sql string, args ...any) ([]Price, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p Price, err error) {
		err = row.Scan(
			&p.Version, &p.Tenant, &p.Model, &p.EffectiveFrom, &p.Lapsed, &p.Input, &p.CachedInput, &p.Output, &p.Reasoning,
			&p.Tiers.Flex, &p.Tiers.Priority, &p.Tiers.Batch, &p.Tiers.Background, &p.Long, &p.PublishedAt)
		if len(p.Long) == 0 {
			p.Long = nil
		}
		return p, err
	})
}

// LoadTenantPrices reads the prices of all tenants of versions above the given
// one, as weir_worker. Versions rise in the order in which they are published,
// so that who has read up to one may go on from there.
func LoadTenantPrices(ctx context.Context, worker Querier, after int64) ([]Price, error) {
	prices, err := loadPrices(ctx, worker, `
		SELECT
			version, tenant_id, model, effective_from, lapsed, input_pico, cached_input_pico, output_pico, reasoning_pico,
			flex_bp, priority_bp, batch_bp, background_bp, long_context, created_at
		FROM weir_tenant_prices($1)
		ORDER BY version`, after)
	if err != nil {
		return nil, fmt.Errorf("load tenants' prices: %w", err)
	}
	return prices, nil
}

// PutPrices publishes what the specs change, in the caller's transaction: the
// list's prices, or a tenant's own in a transaction of that tenant. A spec that
// names no time and equals the price in effect, or that repeats a published
// version, changes nothing. Every other one becomes a new version. Published
// versions are never edited, and the past of what has a price isn't rewritten;
// the error is then ErrPrice. Calls wait for one another.
func PutPrices(ctx context.Context, tx pgx.Tx, tenant tenants.ID, specs []PriceSpec) ([]PriceChange, error) {
	changes, err := PlanPrices(ctx, tx, tenant, specs)
	if err != nil {
		return nil, err
	}
	batch := &pgx.Batch{}
	for i := range changes {
		p := &changes[i].Price
		p.insert(batch).QueryRow(func(row pgx.Row) error { return row.Scan(&p.Version) })
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, fmt.Errorf("put prices: %w", err)
	}
	return changes, nil
}

// PlanPrices lists what PutPrices would publish.
func PlanPrices(ctx context.Context, tx pgx.Tx, tenant tenants.ID, specs []PriceSpec) ([]PriceChange, error) {
	var now time.Time
	err := tx.QueryRow(ctx, `SELECT now() FROM pg_advisory_xact_lock(hashtext('weir.prices'))`).Scan(&now)
	if err != nil {
		return nil, fmt.Errorf("put prices: %w", err)
	}
	book, err := LoadBook(ctx, tx)
	if err != nil {
		return nil, fmt.Errorf("put prices: %w", err)
	}
	changes, err := book.Changes(tenant, specs, now)
	if err != nil {
		return nil, fmt.Errorf("put prices: %w", err)
	}
	return changes, nil
}

func (p *Price) insert(b *pgx.Batch) *pgx.QueuedQuery {
	long := p.Long
	if long == nil {
		long = []Step{} // null is no list
	}
	if p.Tenant == "" {
		return b.Queue(`
			INSERT INTO prices (model, effective_from, input_pico, cached_input_pico, output_pico, reasoning_pico,
				flex_bp, priority_bp, batch_bp, background_bp, long_context)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
			RETURNING version`,
			p.Model, p.EffectiveFrom, p.Input, p.CachedInput, p.Output, p.Reasoning,
			p.Tiers.Flex, p.Tiers.Priority, p.Tiers.Batch, p.Tiers.Background, long)
	}
	return b.Queue(`
		INSERT INTO tenant_prices (tenant_id, lapsed, model, effective_from, input_pico, cached_input_pico, output_pico, reasoning_pico,
			flex_bp, priority_bp, batch_bp, background_bp, long_context)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
		RETURNING version`,
		p.Tenant, p.Lapsed, p.Model, p.EffectiveFrom, p.Input, p.CachedInput, p.Output, p.Reasoning,
		p.Tiers.Flex, p.Tiers.Priority, p.Tiers.Batch, p.Tiers.Background, long)
}
