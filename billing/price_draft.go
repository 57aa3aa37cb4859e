package billing

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

// Draft is a price that waits to be published: the list's, or a tenant's own. A
// model has at most one of each.
type Draft struct {
	Spec      PriceSpec
	Author    string
	CreatedAt time.Time
}

// Drafts lists the drafts of a tenant in a transaction of that tenant, or those
// of the list ("") in one of no tenant's.
func Drafts(ctx context.Context, tx pgx.Tx, tenant tenants.ID) ([]Draft, error) {
	rows, err := tx.Query(ctx, `
		SELECT body, author, created_at
		FROM price_drafts
		WHERE tenant_id = $1
		ORDER BY model`, tenant)
	if err != nil {
		return nil, fmt.Errorf("read drafts: %w", err)
	}
	drafts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Draft])
	if err != nil {
		return nil, fmt.Errorf("read drafts: %w", err)
	}
	return drafts, nil
}

// PutDrafts keeps the specs as drafts, each in place of its model's last one.
// The error is ErrPrice where one couldn't be published at present.
func PutDrafts(ctx context.Context, tx pgx.Tx, tenant tenants.ID, author string, specs []PriceSpec) error {
	if _, err := PlanPrices(ctx, tx, tenant, specs); err != nil {
		return err
	}
	batch := &pgx.Batch{}
	drafted := make(map[string]bool, len(specs))
	for _, s := range specs {
		if drafted[s.Model] {
			return fmt.Errorf("%w: two drafts for %s: publish one after the other", ErrPrice, s.Model)
		}
		drafted[s.Model] = true
		batch.Queue(`
			INSERT INTO price_drafts (tenant_id, model, body, author)
			VALUES ($1, $2, $3, $4)
			ON CONFLICT (tenant_id, model) DO UPDATE
			SET body = excluded.body, author = excluded.author, created_at = now()`,
			tenant, s.Model, s, author)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("store drafts: %w", err)
	}
	return nil
}

// DropDrafts removes the drafts of the models and returns how many there were.
func DropDrafts(ctx context.Context, tx pgx.Tx, tenant tenants.ID, models []string) (int64, error) {
	tag, err := tx.Exec(ctx, `DELETE FROM price_drafts WHERE tenant_id = $1 AND model = ANY ($2)`, tenant, models)
	if err != nil {
		return 0, fmt.Errorf("drop drafts: %w", err)
	}
	return tag.RowsAffected(), nil
}
