package billing

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// postgresTill draws from the wallets in Postgres, as the worker.
type postgresTill struct {
	pool    *pgxpool.Pool
	replica string
	ttl     time.Duration
}

func (t *postgresTill) draw(ctx context.Context, tenant string, nodes []string, least, want int64) ([]share, error) {
	rows, err := t.pool.Query(ctx, `
		SELECT node, chunk, amount
		  FROM weir_draw($1, $2, $3, $4, $5, $6)`, tenant, nodes, least, want, t.replica, t.ttl)
	if err != nil {
		return nil, fmt.Errorf("draw: %w", err)
	}
	defer rows.Close()
	var got []share
	var broke *Broke
	for rows.Next() {
		var node string
		var chunk *int64
		var amount int64
		if err := rows.Scan(&node, &chunk, &amount); err != nil {
			return nil, fmt.Errorf("draw: %w", err)
		}
		if chunk == nil {
			broke = &Broke{Node: node, AvailableNano: amount}
			continue
		}
		got = append(got, share{node: node, chunk: *chunk, nano: amount})
	}
	switch err := rows.Err(); {
	case err != nil:
		return nil, fmt.Errorf("draw: %w", err)
	case broke != nil:
		return nil, broke
	case len(got) != len(nodes):
		return nil, errDraw
	default:
		return got, nil
	}
}

var errDraw = errors.New("draw: an answer without all wallets")

func (t *postgresTill) reserved(ctx context.Context, tenant, node string) (nano int64, err error) {
	if err := t.pool.QueryRow(ctx, `SELECT weir_reserved($1, $2)`, tenant, node).Scan(&nano); err != nil {
		return 0, fmt.Errorf("reserved of a wallet: %w", err)
	}
	return nano, nil
}

func (t *postgresTill) renew(ctx context.Context, chunks []int64) (alive []int64, err error) {
	err = t.pool.QueryRow(ctx, `SELECT weir_renew_chunks($1, $2, $3)`, t.replica, chunks, t.ttl).Scan(&alive)
	if err != nil {
		return nil, fmt.Errorf("renew chunks: %w", err)
	}
	return alive, nil
}

func (t *postgresTill) giveBack(ctx context.Context, chunks, keep []int64) error {
	if _, err := t.pool.Exec(ctx, `SELECT weir_return_chunks($1, $2, $3)`, t.replica, chunks, keep); err != nil {
		return fmt.Errorf("return chunks: %w", err)
	}
	return nil
}

// recallChannel is where weir_draw names tenants and their wallets whose money is
// scarce while several replicas hold some of it.
const recallChannel = "weir_recall"

func (t *postgresTill) listen(ctx context.Context, heard func(tenant, node string)) error {
	pooled, err := t.pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	conn := pooled.Hijack() // it is busy for ever: the pool may open another
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(closing)
	}()
	if _, err := conn.Exec(ctx, "LISTEN "+recallChannel); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for {
		waiting, cancel := context.WithTimeout(ctx, quietTime)
		notice, err := conn.WaitForNotification(waiting)
		quiet := err != nil && waiting.Err() != nil && ctx.Err() == nil
		cancel()
		if quiet { // a peer that vanished without a word looks like this too
			pinging, cancel := context.WithTimeout(ctx, time.Second)
			err = conn.Ping(pinging)
			cancel()
		}
		switch {
		case err != nil:
			return fmt.Errorf("wait for recalls: %w", err)
		case quiet:
		default:
			tenant, node, _ := strings.Cut(notice.Payload, " ")
			heard(tenant, node)
		}
	}
}

// quietTime is after how much silence a connection is asked whether it lives.
const quietTime = 5 * time.Second
