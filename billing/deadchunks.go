package billing

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DeadChunks are parts of wallets whose replica doesn't renew them any more: it
// died, or lost its way to Postgres for longer than it may go on alone.
type DeadChunks struct {
	worker *pgxpool.Pool
	grace  time.Duration
}

// maxDead is how many chunks one question finds or closes.
const maxDead = 1000

// NewDeadChunks looks, on the worker's pool, for chunks that were not renewed for
// grace beyond their time. Time in which Postgres was down doesn't count.
func NewDeadChunks(worker *pgxpool.Pool, grace time.Duration) *DeadChunks {
	return &DeadChunks{worker: worker, grace: grace}
}

// Replicas names those that left chunks.
func (d *DeadChunks) Replicas(ctx context.Context) ([]string, error) {
	rows, err := d.worker.Query(ctx, `SELECT DISTINCT replica FROM weir_dead_chunks($1, $2)`, d.grace, maxDead)
	if err != nil {
		return nil, fmt.Errorf("find dead chunks: %w", err)
	}
	replicas, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find dead chunks: %w", err)
	}
	return replicas, nil
}

// Close gives what a replica left back to the wallets, and returns how many
// nano-USD tenants' wallets (not the caps of projects and keys) had set aside
// there. Requests of the replica are to be settled before: what is found here
// was held for nothing that is known of.
func (d *DeadChunks) Close(ctx context.Context, replica string) (leftNano int64, err error) {
	for {
		var closed int
		var left int64
		err := d.worker.QueryRow(ctx, `
			SELECT count(*), coalesce(sum(left_nano) FILTER (WHERE node = tenant), 0)
			FROM weir_close_dead_chunks($1, $2, $3)`, d.grace, maxDead, replica).Scan(&closed, &left)
		if err != nil {
			return leftNano, fmt.Errorf("close dead chunks of %s: %w", replica, err)
		}
		leftNano += left
		if closed < maxDead {
			return leftNano, nil
		}
	}
}
