package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"weir/billing"
	"weir/migrations"
	"weir/migrations/pgserver"
)

// house is a private Postgres, as durable as in production.
type house struct {
	options

	dir    string
	server *pgserver.Server
	say    func(string)
}

func open(ctx context.Context, o options, say func(string)) (*house, error) {
	dir, err := os.MkdirTemp("", "weir-money-")
	if err != nil {
		return nil, err
	}
	h := &house{options: o, dir: dir, say: say}
	say("starting Postgres, fsync on")
	h.server, err = pgserver.Start(ctx, pgserver.Config{Dir: dir, Durable: true, Log: slog.New(slog.DiscardHandler), Progress: say})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return h, nil
}

func (h *house) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return errors.Join(h.server.Stop(ctx), os.RemoveAll(h.dir))
}

// books is a database of its own, with Weir's schema.
type books struct {
	worker *pgxpool.Pool // as Weir's data plane
	admin  *pgx.Conn     // beyond row-level security, to look
}

// database makes a database for one study.
func (h *house) database(ctx context.Context, name string) (*books, error) {
	logins, err := migrations.Prepare(ctx, h.server.URL("postgres"), name, h.server.Secret())
	if err != nil {
		return nil, err
	}
	if _, err := migrations.Up(ctx, slog.New(slog.DiscardHandler), logins.Owner); err != nil {
		return nil, err
	}
	worker, err := pgxpool.New(ctx, logins.Worker)
	if err != nil {
		return nil, err
	}
	admin, err := pgx.Connect(ctx, h.server.URL(name))
	if err != nil {
		worker.Close()
		return nil, err
	}
	return &books{worker: worker, admin: admin}, nil
}

func (b *books) close(ctx context.Context) {
	b.worker.Close()
	_ = b.admin.Close(ctx)
}

// receipt is an ordinary one: an agent's turn with a long cached prompt.
func receipt(n int, tenant string) billing.Receipt {
	return billing.Receipt{
		RequestID: fmt.Sprintf("req_%026d", n), Tenant: tenant, Project: "prj_" + tenant[4:], Key: fmt.Sprintf("key_%d_%s", n%3, tenant[4:]),
		Operation: "chat", Model: fmt.Sprintf("org/model-%d", n%8), Pool: "main", Endpoint: fmt.Sprintf("gpu-%d", n%16), Attempts: 1, Stream: n%4 != 0,
		Band: "standard", Tier: "default",
		Usage:       billing.Usage{InputUncached: 812, InputCached: 24_576, Output: 340, Reasoning: 60},
		UsageSource: billing.UpstreamFinal, PriceVersion: 1, CostNano: 731_920,
		StartedAt: time.Now().Add(-time.Second), QueueTime: 12 * time.Millisecond, TTFT: 240 * time.Millisecond, Duration: 4 * time.Second,
		Outcome: "completed",
	}
}

// tenantNamed is a tenant's id as long as real ones are.
func tenantNamed(n int) string { return fmt.Sprintf("ten_%026d", n) }
