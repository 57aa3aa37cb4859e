package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/billing"
)

// metrics are the gateway's own. Labels are bounded: causes, operations, and
// names of the catalogue; never anything that a caller wrote.
type metrics struct {
	exchanges *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	ttft      *prometheus.HistogramVec
	queue     *prometheus.HistogramVec
	tokens    *prometheus.CounterVec
	usage     *prometheus.CounterVec
	retries   *prometheus.CounterVec
	suspects  *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	seconds := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	long := []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900}
	short := []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	m := &metrics{
		exchanges: counter("weir_exchange_total", "Exchanges by how they ended.", "outcome", "operation"),
		duration:  seconds("weir_exchange_duration_seconds", "From arrival to settlement.", long, "operation"),
		ttft:      seconds("weir_exchange_ttft_seconds", "From arrival to the first output.", short, "model"),
		queue:     seconds("weir_exchange_queue_seconds", "Waited for an endpoint, all attempts.", short, "pool", "band"),
		tokens:    counter("weir_exchange_tokens_total", "Tokens by class.", "model", "class"),
		usage:     counter("weir_exchange_usage_total", "Exchanges by where their usage comes from.", "source"),
		retries:   counter("weir_exchange_retries_total", "Second attempts by why the first one failed.", "pool", "cause"),
		suspects:  counter("weir_exchange_suspects_total", "Requests with which an endpoint went down.", "pool"),
	}
	if reg != nil {
		reg.MustRegister(m.exchanges, m.duration, m.ttft, m.queue, m.tokens, m.usage, m.retries, m.suspects)
	}
	return m
}

// observe counts one finished exchange.
func (m *metrics) observe(x *exchange, r billing.Receipt) {
	m.exchanges.WithLabelValues(r.Outcome, r.Operation).Inc()
	m.duration.WithLabelValues(r.Operation).Observe(r.Duration.Seconds())
	if x.attempts == 0 {
		return
	}
	m.usage.WithLabelValues(string(r.UsageSource)).Inc()
	m.queue.WithLabelValues(r.Pool, r.Band).Observe(r.QueueTime.Seconds())
	if r.TTFT > 0 {
		m.ttft.WithLabelValues(r.Model).Observe(r.TTFT.Seconds())
	}
	for _, c := range [...]struct {
		class string
		n     int64
	}{
		{"input_uncached", r.Usage.InputUncached},
		{"input_cached", r.Usage.InputCached},
		{"output", r.Usage.Output},
		{"reasoning", r.Usage.Reasoning},
	} {
		if c.n > 0 {
			m.tokens.WithLabelValues(r.Model, c.class).Add(float64(c.n))
		}
	}
}
