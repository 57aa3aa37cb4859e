package pool

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"weir/scheduler"
)

// Snapshot is what a Collector shows of one pool.
type Snapshot struct {
	State scheduler.State `json:"state"`
	Scale []Scale         `json:"scale,omitempty"` // by role; empty where nobody scales the pool
}

// Collector shows schedulers to Prometheus. It keeps nothing: each scrape asks
// for the pools' snapshots, so that a gauge is always the size of the set that
// it counts. Labels are the operator's pools, bands and endpoints; flows, which
// are tenants, are none.
type Collector struct {
	pools func() map[string]Snapshot

	queued, dispatched, waited, refused         *prometheus.Desc
	leases, capacity, health, circuit, draining *prometheus.Desc
	running, waiting, kvUsage                   *prometheus.Desc
	desired, ready, queuedTokens                *prometheus.Desc

	epp   eppDescs
	split splitDescs
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector builds a collector of the pools that the function returns, by
// name, at each scrape.
func NewCollector(pools func() map[string]Snapshot) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("weir_"+name, help, append([]string{"pool"}, labels...), nil)
	}
	return &Collector{
		pools:        pools,
		queued:       desc("scheduler_queued_requests", "Requests that wait.", "band"),
		dispatched:   desc("scheduler_dispatched_requests_total", "Requests that were given an endpoint.", "band"),
		waited:       desc("scheduler_queue_wait_seconds_total", "Time that dispatched requests had waited, in sum.", "band"),
		refused:      desc("scheduler_refused_requests_total", "Requests that were refused.", "band", "reason"),
		leases:       desc("scheduler_live_leases", "Requests that run.", "endpoint"),
		capacity:     desc("scheduler_endpoint_max_concurrency", "Requests that may run at once.", "endpoint"),
		health:       desc("scheduler_endpoint_healthy", "Verdict of the probes: 1 healthy, 0.5 not judged yet, 0 unhealthy.", "endpoint"),
		circuit:      desc("scheduler_endpoint_circuit_open", "Whether the endpoint's own failures keep it out: 0 no, 1 yes, 0.5 being tried.", "endpoint"),
		draining:     desc("scheduler_endpoint_draining", "Whether the endpoint takes nothing new.", "endpoint"),
		running:      desc("engine_running_requests", "Requests in the batch, as the engine last said.", "endpoint"),
		waiting:      desc("engine_waiting_requests", "Requests in the engine's own queue, as it last said.", "endpoint"),
		desired:      desc("pool_desired_replicas", "Endpoints that the pool should have.", "role"),
		ready:        desc("pool_ready_replicas", "Endpoints that are worth sending to.", "role"),
		queuedTokens: desc("pool_queued_tokens", "Prompt tokens of the requests that wait for the role.", "role"),
		epp:          newEPPDescs(),
		split:        newSplitDescs(),
		kvUsage:      desc("engine_kv_cache_usage_ratio", "Part of the KV cache in use, as the engine last said.", "endpoint"),
	}
}

// Describe sends no description: the collector is unchecked, since pools come
// and go.
func (c *Collector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the present values.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	totals := eppTotals{stale: map[scheduler.DetectorKind]int{}, enqueued: map[int]scheduler.Timing{}}
	defer func() { c.epp.totals(out, totals) }()
	for name, s := range c.pools() {
		totals.add(s.State)
		c.epp.pool(out, name, s.State)
		c.split.pool(out, name, s.State)
		for _, b := range s.State.Bands {
			c.band(out, name, b)
		}
		for _, role := range s.Scale {
			c.scale(out, name, role)
		}
		// A removed endpoint may still drain under the id of its successor,
		// which stands before it. They are one series.
		live := map[string]int{}
		for _, p := range s.State.Endpoints {
			live[p.ID] += p.Live
		}
		for _, p := range s.State.Endpoints {
			if n, first := live[p.ID]; first {
				delete(live, p.ID)
				p.Live = n
				c.endpoint(out, name, p)
			}
		}
	}
}

func (c *Collector) scale(out chan<- prometheus.Metric, pool string, s Scale) {
	out <- gauge(c.desired, float64(s.Desired), pool, s.Role)
	out <- gauge(c.ready, float64(s.Ready), pool, s.Role)
	out <- gauge(c.queuedTokens, float64(s.QueuedTokens), pool, s.Role)
}

func (c *Collector) band(out chan<- prometheus.Metric, pool string, b scheduler.BandState) {
	band := strconv.Itoa(b.Priority)
	out <- gauge(c.queued, float64(b.Queued), pool, band)
	out <- counter(c.dispatched, float64(b.Dispatched), pool, band)
	out <- counter(c.waited, b.Waited.Seconds(), pool, band)
	for reason, n := range b.Refused {
		out <- counter(c.refused, float64(n), pool, band, string(reason))
	}
}

func (c *Collector) endpoint(out chan<- prometheus.Metric, pool string, p scheduler.EndpointState) {
	out <- gauge(c.leases, float64(p.Live), pool, p.ID)
	out <- gauge(c.capacity, float64(p.MaxConcurrency), pool, p.ID)
	out <- gauge(c.health, healthValue(p.Health), pool, p.ID)
	out <- gauge(c.circuit, circuitValue(p.Circuit), pool, p.ID)
	out <- gauge(c.draining, boolValue(p.Draining), pool, p.ID)
	if !p.Load.At.IsZero() {
		out <- gauge(c.running, float64(p.Load.Running), pool, p.ID)
		out <- gauge(c.waiting, float64(p.Load.Waiting), pool, p.ID)
		out <- gauge(c.kvUsage, p.Load.KVUsage, pool, p.ID)
	}
}

func gauge(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func counter(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func healthValue(h scheduler.Health) float64 {
	switch h {
	case scheduler.Healthy:
		return 1
	case scheduler.Unhealthy:
		return 0
	default:
		return 0.5
	}
}

func circuitValue(c scheduler.Circuit) float64 {
	switch c {
	case scheduler.CircuitClosed:
		return 0
	case scheduler.CircuitOpen:
		return 1
	default:
		return 0.5
	}
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
