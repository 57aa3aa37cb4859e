package responses

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

// Waiting is a background response that no model server makes yet.
type Waiting struct {
	ID        string
	ClientID  string // what the caller calls it
	Model     string // as the caller named it
	CreatedAt time.Time
	// Place is how many of the tenant's responses are to begin before and with it:
	// 1 is the next. Those that a replica has taken up come first.
	Place int
}

// Waiting lists the background responses of the owner's project that wait, the
// oldest first and at most so many; with an id those alone that have it, as ours or
// as the caller's own. It looks at no more than a tenant may have (maxRuns).
func (r *Runs) Waiting(ctx context.Context, o Owner, id string, most int) (list []Waiting, err error) {
	err = tenants.BatchInTenant(ctx, r.store.app, o.Tenant, func(b *pgx.Batch) {
		b.Queue(`
			WITH line AS (
			    SELECT r.response_id, r.project_id, r.client_id, s.model, s.created_at,
			           row_number() OVER (ORDER BY r.runner IS NULL, greatest(r.due_at, now()), r.created_at, r.response_id) AS place
			      FROM response_runs r
			      JOIN responses s ON s.tenant_id = r.tenant_id AND s.id = r.response_id
			     WHERE r.tenant_id = $1 AND (r.runner IS NULL OR s.status = 'queued')
			)
			SELECT response_id, client_id, model, created_at, place
			  FROM line
			 WHERE project_id = $2 AND ($3 = '' OR $3 IN (response_id, client_id))
			 ORDER BY created_at, response_id
			 LIMIT $4`, o.Tenant, o.Project, id, most).
			Query(func(rows pgx.Rows) (err error) {
				list, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Waiting])
				return err
			})
	})
	if err != nil {
		return nil, fmt.Errorf("waiting runs: %w", err)
	}
	return list, nil
}
