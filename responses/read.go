package responses

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

// Object returns a kept response as its caller last saw it.
func (p *Postgres) Object(ctx context.Context, o Owner, id string) ([]byte, error) {
	keys, err := p.vault.Keys(ctx, o.Tenant)
	if err != nil {
		return nil, err
	}
	var box []byte
	err = tenants.InTenant(ctx, p.app, o.Tenant, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT object
			  FROM responses
			 WHERE tenant_id = $1 AND id = $2 AND project_id = $3
			   AND deleted_at IS NULL AND (expires_at IS NULL OR expires_at > now())`,
			o.Tenant, id, o.Project).Scan(&box)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, ErrNotFound
	case err != nil:
		return nil, fmt.Errorf("load response %s: %w", id, err)
	}
	object, err := keys.Open(box, aboutObject+id)
	if err != nil {
		return nil, fmt.Errorf("response %s: %w", id, err)
	}
	return object, nil
}

// Delete makes a response unreadable at once. Its items live until no other
// response goes on from it. One that still runs is cancelled first by whoever
// runs it.
func (p *Postgres) Delete(ctx context.Context, o Owner, id string) error {
	return tenants.InTenant(ctx, p.app, o.Tenant, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE responses
			   SET deleted_at = now()
			 WHERE tenant_id = $1 AND id = $2 AND project_id = $3
			   AND deleted_at IS NULL AND (expires_at IS NULL OR expires_at > now())`,
			o.Tenant, id, o.Project)
		switch {
		case err != nil:
			return fmt.Errorf("delete response %s: %w", id, err)
		case tag.RowsAffected() == 0:
			return ErrNotFound
		default:
			return nil
		}
	})
}

// Input is what a response was given: the items that it goes on from, then its
// own, oldest first.
func (p *Postgres) Input(ctx context.Context, o Owner, id string) ([]Item, error) {
	h, err := p.History(ctx, o, id)
	if err != nil {
		return nil, err
	}
	var made int
	err = tenants.InTenant(ctx, p.app, o.Tenant, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT count(*)
			  FROM response_items
			 WHERE tenant_id = $1 AND response_id = $2 AND output`, o.Tenant, id).Scan(&made)
	})
	if err != nil {
		return nil, fmt.Errorf("load input of %s: %w", id, err)
	}
	return h.Items[:len(h.Items)-min(made, len(h.Items))], nil
}
