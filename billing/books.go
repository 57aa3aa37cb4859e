package billing

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// Books keeps the ledger in order, as the worker: it lets credit take effect and
// expire, and looks whether all rules hold.
type Books struct {
	log    *slog.Logger
	worker *pgxpool.Pool

	imbalance prometheus.Gauge
	faults    *prometheus.GaugeVec
	checked   prometheus.Gauge
}

// NewBooks makes Books. Metrics that reg (nil: none) gets tell of the last Check
// of this process.
func NewBooks(log *slog.Logger, worker *pgxpool.Pool, reg prometheus.Registerer) *Books {
	b := &Books{
		log: log, worker: worker,
		imbalance: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_ledger_imbalance_nano",
			Help: "Nano-USD by which the ledger broke its rules when it was last checked here; must be 0.",
		}),
		faults: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "weir_ledger_faults",
			Help: "Faults that the last check of the ledger here found, by rule; must be 0.",
		}, []string{"rule"}),
		checked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_ledger_checked_timestamp_seconds",
			Help: "When the ledger was last checked here.",
		}),
	}
	if reg != nil {
		reg.MustRegister(b.imbalance, b.faults, b.checked)
	}
	return b
}

// turnAtOnce is how many lots one transaction opens or expires.
const turnAtOnce = 200

// Turn lets credit take effect or expire whose time has come. What requests hold
// expires once they are over.
func (b *Books) Turn(ctx context.Context) error {
	for {
		var opened, expired int
		err := b.worker.QueryRow(ctx, `SELECT opened, expired FROM weir_turn_lots($1)`, turnAtOnce).Scan(&opened, &expired)
		if err != nil {
			return fmt.Errorf("turn credit: %w", err)
		}
		if opened+expired == 0 {
			return nil
		}
		b.log.InfoContext(ctx, "credit took effect or expired", "opened", opened, "expired", expired)
	}
}

// Fault is where the ledger breaks one of its rules.
type Fault struct {
	Rule         string // entries, balance, credit, receivable, held, usage, receipts or hours
	Tenant       string
	Subject      string
	ExpectedNano int64
	FoundNano    int64
}

// maxFaults bounds what a check reports of each rule.
const maxFaults = 100

// Check looks for faults: balances and credit over all time, receipts, their
// bookings and hourly sums in the period. Settling may go on meanwhile.
func (b *Books) Check(ctx context.Context, from, to time.Time) ([]Fault, error) {
	faults, err := b.find(ctx, from, to)
	if err != nil {
		return nil, fmt.Errorf("check ledger: %w", err)
	}
	var off float64
	b.faults.Reset()
	for _, f := range faults {
		off += float64(magnitude(f.FoundNano - f.ExpectedNano))
		b.faults.WithLabelValues(f.Rule).Inc()
	}
	b.imbalance.Set(off)
	b.checked.SetToCurrentTime()
	return faults, nil
}

func (b *Books) find(ctx context.Context, from, to time.Time) ([]Fault, error) {
	rows, err := b.worker.Query(ctx, `
		SELECT rule, tenant, subject, expected_nano, found_nano
		FROM weir_check_ledger($1, $2, $3)`, from, to, maxFaults)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[Fault])
}

// Watch is Check for a job: it logs what it finds.
func (b *Books) Watch(ctx context.Context, from, to time.Time) error {
	faults, err := b.Check(ctx, from, to)
	for _, f := range faults {
		b.log.ErrorContext(ctx, "the ledger breaks a rule", "rule", f.Rule, "tenant", f.Tenant, "subject", f.Subject,
			"expected_nano", f.ExpectedNano, "found_nano", f.FoundNano)
	}
	return err
}

// RebuildHours makes the hourly sums of usage of a period again from receipts,
// as the worker, and returns how many were wrong. It goes hour by hour: settling
// waits for one at a time.
func RebuildHours(ctx context.Context, worker Querier, from, to time.Time) (wrong int64, err error) {
	for hour := from.Truncate(time.Hour); hour.Before(to); hour = hour.Add(time.Hour) {
		n, err := bookOne(ctx, worker, `SELECT weir_rebuild_hours($1, $2)`, hour, hour.Add(time.Hour))
		if err != nil {
			return wrong, fmt.Errorf("rebuild hours: %w", err)
		}
		wrong += n
	}
	return wrong, nil
}
