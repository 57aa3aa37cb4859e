package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/scheduler/llmd"
)

// sharedCollector shows shared schedulers to Prometheus. Labels are the
// catalogue's pools and the addresses of their schedulers, of which there are
// few.
type sharedCollector struct {
	fleet *Fleet

	up, inUse, failovers, refused, stoodIn, bypassed *prometheus.Desc
	requests, events                                 *prometheus.Desc
}

func newSharedCollector(f *Fleet) *sharedCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("weir_shared_scheduler_"+name, help, append([]string{"pool"}, labels...), nil)
	}
	return &sharedCollector{
		fleet:     f,
		up:        desc("up", "Whether this scheduler of the pool answers.", "scheduler"),
		inUse:     desc("in_use", "Whether this replica asks this scheduler.", "scheduler"),
		failovers: desc("failovers_total", "Changes of the scheduler that this replica asks."),
		refused:   desc("refused_requests_total", "Requests that were refused because no scheduler answered."),
		stoodIn:   desc("stood_in_requests_total", "Requests that this replica placed by itself because no scheduler answered."),
		bypassed:  desc("bypassed_requests_total", "Requests that a gateway of llm-d let pass without its scheduler."),
		requests:  desc("requests", "Requests of this replica at the scheduler.", "state"),
		events:    desc("events_total", "What came of this replica's requests at the scheduler.", "event"),
	}
}

// Describe sends no description: pools come and go.
func (c *sharedCollector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the present values.
func (c *sharedCollector) Collect(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	for name, s := range c.fleet.Shared() {
		send(c.refused, prometheus.CounterValue, float64(s.Refused), name)
		send(c.stoodIn, prometheus.CounterValue, float64(s.StoodIn), name)
		send(c.bypassed, prometheus.CounterValue, float64(s.Bypassed), name)
		if s.Standby != nil {
			send(c.failovers, prometheus.CounterValue, float64(s.Standby.Failovers), name)
			for _, e := range s.Standby.EPPs {
				send(c.up, prometheus.GaugeValue, one(e.Up), name, e.Address)
				send(c.inUse, prometheus.GaugeValue, one(e.InUse), name, e.Address)
			}
		}
		if n := s.Requests; n != nil {
			send(c.requests, prometheus.GaugeValue, float64(n.Waiting), name, "waiting")
			send(c.requests, prometheus.GaugeValue, float64(n.Live), name, "running")
			for event, count := range events(n) {
				send(c.events, prometheus.CounterValue, float64(count), name, event)
			}
		}
	}
}

func events(n *llmd.Counts) map[string]int64 {
	return map[string]int64{
		"granted": n.Granted, "refused": n.Refused, "asked_again": n.Again, "evicted": n.Evicted, "stream_lost": n.Lost,
		"foreign_destination": n.Foreign, "garbage": n.Garbage, "event_dropped": n.Dropped,
	}
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
