package enginesim

import (
	"maps"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// MetricNames says whose names the metrics of a server have.
type MetricNames string

// The engines whose names a server can use. SGLang's are those of its load and
// cache; the other metrics keep vLLM's names behind the colon.
const (
	VLLM   MetricNames = "vllm"
	SGLang MetricNames = "sglang"
)

// metrics has the names of a real engine, so that whatever watches that can
// watch this one.
type metrics struct {
	registry *prometheus.Registry
	names    MetricNames
	label    prometheus.Labels // of most
	rank     prometheus.Labels // the part that says of which rank

	prompt, generated, queries, hits, preempted prometheus.Counter
	success                                     *prometheus.CounterVec
	ttft, gap, e2e                              prometheus.Histogram
}

// newMetrics makes those of one rank.
func newMetrics(cfg Config, registry *prometheus.Registry, rank int) *metrics {
	m := &metrics{
		registry: registry,
		names:    cfg.MetricNames,
		rank:     prometheus.Labels{"engine": strconv.Itoa(rank)},
	}
	if m.names == SGLang {
		m.rank = prometheus.Labels{"dp_rank": strconv.Itoa(rank)}
	}
	m.label = maps.Clone(m.rank)
	m.label["model_name"] = cfg.Models[0]
	m.prompt = m.counter("prompt_tokens_total", "Number of prefill tokens processed.")
	m.generated = m.counter("generation_tokens_total", "Number of generation tokens processed.")
	m.queries = m.counter("prefix_cache_queries_total", "Prefix cache queries, in tokens.")
	m.hits = m.counter("prefix_cache_hits_total", "Prefix cache hits, in tokens.")
	m.preempted = m.counter("num_preemptions_total", "Number of preemptions.")
	m.success = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: m.name("request_success_total"), Help: "Finished requests by reason.", ConstLabels: m.label,
	}, []string{"finished_reason"})
	for _, reason := range []string{"stop", "length", "abort"} {
		m.success.WithLabelValues(reason)
	}
	m.ttft = m.histogram("time_to_first_token_seconds", "Time to first token.", 0.001, 14)
	m.gap = m.histogram("inter_token_latency_seconds", "Time between two tokens.", 0.001, 12)
	m.e2e = m.histogram("e2e_request_latency_seconds", "Time from arrival to end.", 0.005, 16)
	m.registry.MustRegister(m.success)
	m.describeCache(cfg.KVBlocks)
	return m
}

func (m *metrics) name(suffix string) string { return string(m.names) + ":" + suffix }

// describeCache says how large the cache is, as vLLM does in labels and SGLang
// in gauges.
func (m *metrics) describeCache(blocks int) {
	if m.names == SGLang {
		m.gauge("page_size", "Tokens of a page of the KV cache.", func() float64 { return blockSize })
		m.gauge("num_pages", "Pages of the KV cache.", func() float64 { return float64(blocks) })
		return
	}
	labels := prometheus.Labels{
		"block_size": strconv.Itoa(blockSize), "num_gpu_blocks": strconv.Itoa(blocks), "enable_prefix_caching": "True",
	}
	maps.Copy(labels, m.rank)
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: m.name("cache_config_info"), Help: "The cache configuration.",
		ConstLabels: labels,
	}, func() float64 { return 1 }))
}

func (m *metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: m.name(name), Help: help, ConstLabels: m.label})
	m.registry.MustRegister(c)
	return c
}

func (m *metrics) histogram(name, help string, start float64, buckets int) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: m.name(name), Help: help, ConstLabels: m.label,
		Buckets: prometheus.ExponentialBuckets(start, 2, buckets),
	})
	m.registry.MustRegister(h)
	return h
}

func (m *metrics) gauge(name, help string, read func() float64) {
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: m.name(name), Help: help, ConstLabels: m.label,
	}, read))
}

// watch adds the gauges that are read from the machine when asked for.
func (m *metrics) watch(mc *machine) {
	running, waiting, usage := "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"
	if m.names == SGLang {
		running, waiting, usage = "num_running_reqs", "num_queue_reqs", "token_usage"
	}
	m.gauge(running, "Sequences that run.", func() float64 {
		n, _, _ := mc.load()
		return float64(n)
	})
	m.gauge(waiting, "Sequences that wait.", func() float64 {
		_, n, _ := mc.load()
		return float64(n)
	})
	m.gauge(usage, "Used part of the KV cache; 1 is all of it.", func() float64 {
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
