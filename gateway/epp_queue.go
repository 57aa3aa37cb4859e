package gateway

import (
	"github.com/prometheus/client_golang/prometheus"
)

// queueGauges shows how much waits, under llm-d's names. It keeps nothing: each
// scrape counts the set of those that wait.
type queueGauges struct {
	waiters *waiters
	epp     *epp

	size, bytes *prometheus.Desc
}

func newQueueGauges(w *waiters, m *epp) *queueGauges {
	labels := []string{"fairness_id", "priority", "inference_pool", "model_name", "target_model_name"}
	return &queueGauges{
		waiters: w, epp: m,
		size:  prometheus.NewDesc("llm_d_epp_flow_control_queue_size", "Requests that wait.", labels, nil),
		bytes: prometheus.NewDesc("llm_d_epp_flow_control_queue_bytes", "Bytes of the bodies that wait.", labels, nil),
	}
}

// Describe names the two gauges.
func (g *queueGauges) Describe(out chan<- *prometheus.Desc) {
	out <- g.size
	out <- g.bytes
}

// Collect counts what waits, for every series that there ever was: one in which
// nothing waits is 0, not absent.
func (g *queueGauges) Collect(out chan<- prometheus.Metric) {
	type sum struct{ n, bytes int }
	sums := make(map[*series]sum)
	g.epp.each(func(s *series) { sums[s] = sum{} })
	g.waiters.each(func(w *waiter) {
		s := sums[w.series]
		sums[w.series] = sum{s.n + 1, s.bytes + w.bytes}
	})
	for s, has := range sums {
		labels := []string{s.fairness, s.band, s.pool, s.model, s.target}
		out <- prometheus.MustNewConstMetric(g.size, prometheus.GaugeValue, float64(has.n), labels...)
		out <- prometheus.MustNewConstMetric(g.bytes, prometheus.GaugeValue, float64(has.bytes), labels...)
	}
}

// each calls f for all series.
func (m *epp) each(f func(*series)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, s := range m.known {
		f(s)
	}
}
