package billing

import (
	"github.com/prometheus/client_golang/prometheus"
)

type fundsMetrics struct {
	refusals  *prometheus.CounterVec
	draws     *prometheus.CounterVec
	overspent prometheus.Counter
	lost      prometheus.Counter
}

func newFundsMetrics(reg prometheus.Registerer, f *Funds) *fundsMetrics {
	m := &fundsMetrics{
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_billing_refusals_total",
			Help: "Holds refused, by whose wallet lacked the money (tenant, project, key), or unavailable: Postgres could not be asked.",
		}, []string{"scope"}),
		draws: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_billing_draws_total",
			Help: "Parts of wallets fetched from Postgres, by result.",
		}, []string{"result"}),
		overspent: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_billing_beyond_hold_usd_total",
			Help: "Cost of exchanges beyond what was held for them: 0 unless Postgres was away or an engine made more than it was asked for.",
		}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_billing_chunks_lost_total",
			Help: "Chunks that Postgres closed before they were renewed.",
		}),
	}
	if reg == nil {
		return m
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	reg.MustRegister(
		m.refusals, m.draws, m.overspent, m.lost,
		gauge("weir_billing_holds", "Exchanges for which money is set aside.", func() float64 { return float64(f.Open()) }),
		gauge("weir_billing_chunks", "Parts of wallets that this replica holds.", func() float64 {
			n, _ := f.stock()
			return float64(n)
		}),
		gauge("weir_billing_chunks_usd", "What is left of them, all wallets together.", func() float64 {
			_, nano := f.stock()
			return float64(nano) / nanoPerUSD
		}),
	)
	return m
}

// drew counts a draw.
func (m *fundsMetrics) drew(err error) {
	result := "given"
	switch {
	case isBroke(err):
		result = "refused"
	case err != nil:
		result = "failed"
	}
	m.draws.WithLabelValues(result).Inc()
}

// stock sums up what is here.
func (f *Funds) stock() (chunks int, nano int64) {
	for _, a := range f.all() {
		a.mu.Lock()
		for _, p := range a.pots {
			if p.chunk != 0 {
				chunks++
				nano += p.left
			}
		}
		a.mu.Unlock()
	}
	return chunks, nano
}
