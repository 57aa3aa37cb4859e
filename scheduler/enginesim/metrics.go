package enginesim

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics has vLLM's names, so that whatever watches a real server can watch
// this one.
type metrics struct {
	registry *prometheus.Registry
	label    prometheus.Labels

	prompt, generated, queries, hits, preempted prometheus.Counter
	success                                     *prometheus.CounterVec
	ttft, gap, e2e                              prometheus.Histogram
}

func newMetrics(cfg Config) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		label:    prometheus.Labels{"model_name": cfg.Models[0], "engine": "0"},
	}
	m.prompt = m.counter("prompt_tokens_total", "Number of prefill tokens processed.")
	m.generated = m.counter("generation_tokens_total", "Number of generation tokens processed.")
	m.queries = m.counter("prefix_cache_queries_total", "Prefix cache queries, in tokens.")
	m.hits = m.counter("prefix_cache_hits_total", "Prefix cache hits, in tokens.")
	m.preempted = m.counter("num_preemptions_total", "Number of preemptions.")
	m.success = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vllm:request_success_total", Help: "Finished requests by reason.", ConstLabels: m.label,
	}, []string{"finished_reason"})
	for _, reason := range []string{"stop", "length", "abort"} {
		m.success.WithLabelValues(reason)
	}
	m.ttft = m.histogram("time_to_first_token_seconds", "Time to first token.", 0.001, 14)
	m.gap = m.histogram("inter_token_latency_seconds", "Time between two tokens.", 0.001, 12)
	m.e2e = m.histogram("e2e_request_latency_seconds", "Time from arrival to end.", 0.005, 16)
	m.registry.MustRegister(m.success)
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "vllm:cache_config_info", Help: "The cache configuration.",
		ConstLabels: prometheus.Labels{
			"engine": "0", "block_size": strconv.Itoa(blockSize), "num_gpu_blocks": strconv.Itoa(cfg.KVBlocks),
			"enable_prefix_caching": "True",
		},
	}, func() float64 { return 1 }))
	return m
}

func (m *metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "vllm:" + name, Help: help, ConstLabels: m.label})
	m.registry.MustRegister(c)
	return c
}

func (m *metrics) histogram(name, help string, start float64, buckets int) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "vllm:" + name, Help: help, ConstLabels: m.label,
		Buckets: prometheus.ExponentialBuckets(start, 2, buckets),
	})
	m.registry.MustRegister(h)
	return h
}

// watch adds the gauges that are read from the machine when asked for.
func (m *metrics) watch(mc *machine) {
	gauge := func(name, help string, read func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "vllm:" + name, Help: help, ConstLabels: m.label,
		}, read))
	}
	gauge("num_requests_running", "Sequences that run.", func() float64 {
		n, _, _ := mc.load()
		return float64(n)
	})
	gauge("num_requests_waiting", "Sequences that wait.", func() float64 {
		_, n, _ := mc.load()
		return float64(n)
	})
	gauge("kv_cache_usage_perc", "Used part of the KV cache; 1 is all of it.", func() float64 {
		_, _, used := mc.load()
		return used
	})
}

func (m *metrics) prefix(queried, hit int) {
	m.queries.Add(float64(queried))
	m.hits.Add(float64(hit))
}

func (m *metrics) firstToken(prompt int, took time.Duration) {
	m.prompt.Add(float64(prompt))
	m.ttft.Observe(took.Seconds())
}

func (m *metrics) ended(reason string, took time.Duration) {
	m.success.WithLabelValues(reason).Inc()
	m.e2e.Observe(took.Seconds())
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}
