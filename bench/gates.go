package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
)

const settleLimit = 20 * time.Second

// mockStats asks the mock what it has done.
func (b *bench) mockStats(ctx context.Context) (Stats, error) {
	var s Stats
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+b.mockAddr+"/_stats", nil)
	if err != nil {
		return s, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(resp.Body).Decode(&s)
}

// quiet waits until the mock works on nothing, and returns its counts.
func (b *bench) quiet(ctx context.Context) (Stats, error) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for {
		s, err := b.mockStats(ctx)
		if err != nil || s.Active == 0 {
			return s, err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return s, fmt.Errorf("%d answers still run at the upstream although their callers have left: %w", s.Active, err)
		}
	}
}

// booked is what the receipts say.
type booked struct {
	completed, left                   int // exchanges, by how they ended
	uncached, cached, output, thought int64
}

func (in *installation) receipts(ctx context.Context) (booked, error) {
	var r booked
	conn, err := pgx.Connect(ctx, in.adminURL)
	if err != nil {
		return r, err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it has answered
	err = conn.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE outcome = 'completed'),
		       count(*) FILTER (WHERE outcome = 'client_gone'),
		       coalesce(sum(input_uncached) FILTER (WHERE outcome = 'completed'), 0)::bigint,
		       coalesce(sum(input_cached) FILTER (WHERE outcome = 'completed'), 0)::bigint,
		       coalesce(sum(output) FILTER (WHERE outcome = 'completed'), 0)::bigint,
		       coalesce(sum(reasoning) FILTER (WHERE outcome = 'completed'), 0)::bigint
		FROM receipts`).Scan(&r.completed, &r.left, &r.uncached, &r.cached, &r.output, &r.thought)
	return r, err
}

// compare returns how the receipts differ from what the mock made for metered
// targets, nil when not at all.
func (r booked) compare(made Stats) error {
	n := int64(made.Done)
	var errs []error
	for _, c := range []struct {
		what      string
		got, want int64
	}{
		{"receipts of finished exchanges", int64(r.completed), n},
		{"uncached input tokens", r.uncached, n * (promptTokens - cachedTokens)},
		{"cached input tokens", r.cached, n * cachedTokens},
		{"output tokens", r.output, n * (outputTokens - reasoningTokens)},
		{"reasoning tokens", r.thought, n * reasoningTokens},
		{"receipts of callers who left", int64(r.left), int64(made.Cancelled)},
	} {
		if c.got != c.want {
			errs = append(errs, fmt.Errorf("%s: %d, the upstream made %d", c.what, c.got, c.want))
		}
	}
	return errors.Join(errs...)
}

// settled holds the receipts against the mock's counts. Those of callers who
// left may come a moment after the upstream saw them leave.
func (b *bench) settled(ctx context.Context) (booked, error) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for {
		r, err := b.installation.receipts(ctx)
		if err != nil {
			return r, err
		}
		differs := r.compare(b.made)
		if differs == nil {
			return r, nil
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return r, differs
		}
	}
}
