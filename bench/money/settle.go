package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/bench/proc"
	"weir/bench/section"
	"weir/billing"
)

const (
	settleCallers = 2000
	settleTime    = 8 * time.Second
)

// settles measures how many receipts a second become durable, by how many
// tenants they are of, and what money adds to that.
func settles(ctx context.Context, h *house) (string, error) {
	var out strings.Builder
	out.WriteString("### Settling\n\n")
	fmt.Fprintf(&out, "%d callers at once, each with one receipt after the other, for %s; two transactions at once.\n\n", settleCallers, settleTime)
	section.Head(&out, "tenants", "mode", "receipts a second", "receipts a transaction", "CPU-us a receipt: Weir", "Postgres", "deadlocks")
	for _, tenants := range []int{1, 100, 10_000} {
		for _, mode := range []billing.Mode{billing.ModeOff, billing.ModeEnforce} {
			h.say(fmt.Sprintf("settling for %d tenants, billing %s", tenants, mode))
			row, err := h.settleFor(ctx, fmt.Sprintf("settle_%d_%s", tenants, mode), tenants, mode)
			if err != nil {
				return "", err
			}
			section.Row(&out, row...)
		}
	}
	return out.String(), nil
}

func (h *house) settleFor(ctx context.Context, database string, tenants int, mode billing.Mode) ([]string, error) {
	b, err := h.database(ctx, database)
	if err != nil {
		return nil, err
	}
	defer b.close(ctx)
	chunks := make([][]int64, tenants)
	if mode == billing.ModeEnforce {
		if chunks, err = b.fund(ctx, tenants); err != nil {
			return nil, err
		}
	}
	reg := prometheus.NewRegistry()
	s := billing.NewSettler(slog.New(slog.DiscardHandler), b.worker, nil, billing.SettleConfig{Metrics: reg, MaxBatch: 1000}, time.Now)

	ctx, cancel := context.WithTimeout(ctx, settleTime+time.Minute)
	defer cancel()
	ours, theirs, began := proc.Own(), h.postgresCPU(), time.Now()
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range settleCallers {
		wg.Go(func() {
			for time.Since(began) < settleTime && failed.Load() == nil {
				n := int(next.Add(1))
				r := receipt(n, tenantNamed(n%tenants))
				r.Mode, r.Chunks = mode, chunks[n%tenants]
				if err := s.Settle(ctx, r, nil); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	ours, theirs = proc.Own()-ours, h.postgresCPU()-theirs
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	n := float64(next.Load())
	var deadlocks int64
	if err := b.admin.QueryRow(ctx, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&deadlocks); err != nil {
		return nil, err
	}
	per := func(d time.Duration) string { return fmt.Sprintf("%.0f", float64(d.Microseconds())/n) }
	return []string{
		fmt.Sprint(tenants), string(mode), fmt.Sprintf("%.0f", n/took.Seconds()), fmt.Sprintf("%.0f", n/transactions(reg)),
		per(ours), per(theirs), fmt.Sprint(deadlocks),
	}, nil
}

// fund gives each tenant a million dollars, and this process a chunk of it.
func (b *books) fund(ctx context.Context, tenants int) ([][]int64, error) {
	chunks := make([][]int64, tenants)
	for i := range tenants {
		t := tenantNamed(i)
		if _, err := b.worker.Exec(ctx, `SELECT weir_credit($1, 'paid', 1000000000000000, 'opening')`, t); err != nil {
			return nil, err
		}
		var chunk int64
		err := b.worker.QueryRow(ctx, `SELECT chunk FROM weir_draw($1, ARRAY[$1], 1000000000000, 1000000000000, 'bench', '1 hour')`, t).Scan(&chunk)
		if err != nil {
			return nil, err
		}
		chunks[i] = []int64{chunk}
	}
	return chunks, nil
}

// transactions is how many the settle writer made.
func transactions(reg *prometheus.Registry) float64 {
	families, err := reg.Gather()
	if err != nil {
		return 0
	}
	for _, f := range families {
		if f.GetName() == "weir_settle_batch_receipts" {
			return float64(f.GetMetric()[0].GetHistogram().GetSampleCount())
		}
	}
	return 0
}
