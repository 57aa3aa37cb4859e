package responses

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

// live is the condition under which a response may be read by whoever owns it.
const live = `deleted_at IS NULL AND (expires_at IS NULL OR expires_at > now())`

// within runs work as the owner's tenant, with its data keys. What names a row
// that isn't there is ErrNotFound; what it was about is in any other error.
func (p *Postgres) within(ctx context.Context, o Owner, what string, work func(tx pgx.Tx, keys *tenants.DataKeys) error) error {
	keys, err := p.vault.Keys(ctx, o.Tenant)
	if err != nil {
		return err
	}
	return about(what, tenants.InTenant(ctx, p.app, o.Tenant, func(tx pgx.Tx) error { return work(tx, keys) }))
}

// ask is within for one question, in one round trip.
func (p *Postgres) ask(ctx context.Context, o Owner, what, query string, args []any, read func(row pgx.Row, keys *tenants.DataKeys) error) error {
	keys, err := p.vault.Keys(ctx, o.Tenant)
	if err != nil {
		return err
	}
	return about(what, tenants.BatchInTenant(ctx, p.app, o.Tenant, func(b *pgx.Batch) {
		b.Queue(query, args...).QueryRow(func(row pgx.Row) error { return read(row, keys) })
	}))
}

// askAll is ask for a question whose answer is many rows.
func (p *Postgres) askAll(ctx context.Context, o Owner, what, query string, args []any, read func(rows pgx.Rows, keys *tenants.DataKeys) error) error {
	keys, err := p.vault.Keys(ctx, o.Tenant)
	if err != nil {
		return err
	}
	return about(what, tenants.BatchInTenant(ctx, p.app, o.Tenant, func(b *pgx.Batch) {
		b.Queue(query, args...).Query(func(rows pgx.Rows) error { return read(rows, keys) })
	}))
}

func about(what string, err error) error {
	switch {
	case errors.Is(err, pgx.ErrNoRows), errors.Is(err, ErrNotFound):
		return ErrNotFound
	case err != nil:
		return fmt.Errorf("%s: %w", what, err)
	default:
		return nil
	}
}
