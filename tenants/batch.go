package tenants

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// BatchInTenant runs the statements that work queues, with what it queues to
// read their results, as InTenant would, in one round trip to Postgres where a
// transaction takes four. They are one transaction, which a statement that fails
// undoes; it is over before any result is read, so an error of a callback undoes
// nothing: that is for statements of which none depends on what another returned.
func BatchInTenant(ctx context.Context, app *pgxpool.Pool, tenant ID, work func(*pgx.Batch)) error {
	if tenant == "" {
		return errors.New("in tenant: no tenant given")
	}
	var b pgx.Batch
	b.Queue(setTenant, string(tenant))
	work(&b)
	if err := app.SendBatch(ctx, &b).Close(); err != nil {
		return fmt.Errorf("in tenant %s: %w", tenant, err)
	}
	return nil
}
