package billing

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxOutcomes bounds the label of outcomes: the gateway has some thirty.
const maxOutcomes = 64

type settleMetrics struct {
	duration   prometheus.Histogram
	batch      prometheus.Histogram
	receipts   *prometheus.CounterVec
	failures   *prometheus.CounterVec
	duplicates prometheus.Counter
	spooled    prometheus.Counter
	replayed   prometheus.Counter
	rejected   prometheus.Counter
	unreadable prometheus.Counter
	overspent  prometheus.Counter

	mu       sync.Mutex
	outcomes map[string]bool
}

func newSettleMetrics(reg prometheus.Registerer, s *Settler) *settleMetrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &settleMetrics{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "weir_settle_duration_seconds",
			Help:    "Time until a receipt was durable.",
			Buckets: prometheus.ExponentialBuckets(0.00025, 2, 15),
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "weir_settle_batch_receipts",
			Help:    "Receipts that shared one transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10),
		}),
		receipts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_receipts_total",
			Help: "Receipts made durable, by how the exchange ended and where its usage comes from.",
		}, []string{"outcome", "usage_source"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_settle_failures_total",
			Help: "Receipts that were not stored, by reason.",
		}, []string{"reason"}),
		duplicates: counter("weir_settle_duplicates_total", "Receipts that were stored already."),
		spooled:    counter("weir_spool_appended_total", "Receipts put on disk while Postgres was away."),
		replayed:   counter("weir_spool_replayed_total", "Spooled receipts that reached Postgres."),
		rejected:   counter("weir_spool_rejected_total", "Spooled receipts that Postgres refused."),
		unreadable: counter("weir_spool_unreadable_total", "Spooled receipts that could not be read back."),
		overspent:  counter("weir_billing_overspent_nano_total", "Nano-USD by which tenants spent more than they had; holds keep it at 0."),
		outcomes:   make(map[string]bool),
	}
	if reg != nil {
		reg.MustRegister(m.duration, m.batch, m.receipts, m.failures, m.duplicates,
			m.spooled, m.replayed, m.rejected, m.unreadable, m.overspent,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "weir_spool_bytes",
				Help: "Receipts on disk that wait for Postgres.",
			}, func() float64 { return float64(s.Spooled()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "weir_settle_postgres_away",
				Help: "1 while receipts can't reach Postgres.",
			}, func() float64 {
				if s.Away() {
					return 1
				}
				return 0
			}))
	}
	return m
}

// settled counts one call of Settle.
func (m *settleMetrics) settled(r *Receipt, took time.Duration, err error) {
	m.duration.Observe(took.Seconds())
	switch {
	case err == nil:
		m.receipts.WithLabelValues(m.outcome(r.Outcome), string(r.UsageSource)).Inc()
	case errors.Is(err, ErrReceipt):
		m.failures.WithLabelValues("invalid").Inc()
	case errors.Is(err, ErrRejected):
		m.failures.WithLabelValues("rejected").Inc()
	default:
		m.failures.WithLabelValues("unavailable").Inc()
	}
}

// outcome is the label for an outcome: itself for the first maxOutcomes.
func (m *settleMetrics) outcome(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.outcomes[name] {
		return name
	}
	if len(m.outcomes) >= maxOutcomes {
		return "other"
	}
	m.outcomes[name] = true
	return name
}
