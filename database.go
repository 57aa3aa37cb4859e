package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// openPool connects to Postgres as one of our roles. It returns when the
// server has answered, and its errors name the setting but never the URL.
func openPool(ctx context.Context, setting string, url Secret, conns int32) (*pgxpool.Pool, error) {
	if url == "" {
		return nil, fmt.Errorf("%s is not set", setting)
	}
	cfg, err := pgxpool.ParseConfig(url.Reveal())
	if err != nil {
		return nil, fmt.Errorf("%s is not a Postgres URL", setting) // err may quote it
	}
	if conns > 0 {
		cfg.MaxConns = conns
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = "weir"
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect as %s says: %w", setting, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("connect as %s says: %w", setting, err)
	}
	return pool, nil
}

// openPools opens the pools of the application's and the worker's role.
func openPools(ctx context.Context, c *Config) (app, worker *pgxpool.Pool, err error) {
	app, appErr := openPool(ctx, "WEIR_DATABASE_URL", c.DatabaseURL, 0)
	worker, workerErr := openPool(ctx, "WEIR_WORKER_DATABASE_URL", c.WorkerURL, 0)
	if err := errors.Join(appErr, workerErr); err != nil {
		for _, p := range []*pgxpool.Pool{app, worker} {
			if p != nil {
				p.Close()
			}
		}
		return nil, nil, err
	}
	return app, worker, nil
}

// newLogger logs as the configuration says.
func newLogger(c *Config, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // one of four words, checked
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "text" {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}
