package gateway

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/scheduler"
	"weir/scheduler/kvevents"
)

// Following is how the events of a pool's endpoints are followed, by endpoint,
// or by rank where one has several.
func (f *Fleet) Following(pool string) map[string]kvevents.Stats {
	f.mu.RLock()
	defer f.mu.RUnlock()
	w, ok := f.pools[pool]
	if !ok {
		return nil
	}
	return w.feed.caches.group.Stats()
}

// cacheCollector tells of the caches that are followed. Pools that follow none
// have no series.
type cacheCollector struct {
	fleet *Fleet

	connected, trusted, messages, faults, blocks, answers *prometheus.Desc
}

func newCacheCollector(f *Fleet) *cacheCollector {
	desc := func(name, help string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"pool", "endpoint"}, more...), nil)
	}
	return &cacheCollector{
		fleet:     f,
		connected: desc("weir_kv_events_connected", "Whether the endpoint's KV events are being received."),
		trusted:   desc("weir_kv_events_trusted", "Whether what the endpoint reports of its cache decides; 0: what was sent there does."),
		messages:  desc("weir_kv_events_messages_total", "Messages with KV events."),
		faults:    desc("weir_kv_events_faults_total", "What was wrong with KV events: gaps, messages out of order, malformed ones, blocks without their beginning, times that all was forgotten.", "fault"),
		blocks:    desc("weir_kv_events_blocks", "Blocks of the endpoint's prefix cache.", "tier"),
		answers:   desc("weir_kv_events_answers_total", "Answers by whether as much of the prompt was cached as the events said.", "verdict"),
	}
}

// Describe belongs to prometheus.Collector.
func (c *cacheCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.connected, c.trusted, c.messages, c.faults, c.blocks, c.answers} {
		to <- d
	}
}

// Collect belongs to prometheus.Collector.
func (c *cacheCollector) Collect(to chan<- prometheus.Metric) {
	for pool, snap := range c.fleet.Pools() {
		following := c.fleet.Following(pool)
		if len(following) == 0 {
			continue
		}
		known := cachesOf(snap.State.Endpoints)
		for id, seen := range following {
			c.collect(to, pool, id, &seen, known[id])
		}
	}
}

func (c *cacheCollector) collect(to chan<- prometheus.Metric, pool, id string, s *kvevents.Stats, known scheduler.CacheState) {
	set := func(d *prometheus.Desc, kind prometheus.ValueType, value float64, more ...string) {
		to <- prometheus.MustNewConstMetric(d, kind, value, append([]string{pool, id}, more...)...)
	}
	truth := map[bool]float64{true: 1}
	set(c.connected, prometheus.GaugeValue, truth[s.Connected])
	set(c.trusted, prometheus.GaugeValue, truth[known.Trust == scheduler.Trusted])
	set(c.messages, prometheus.CounterValue, float64(s.Messages))
	for fault, n := range map[string]uint64{
		"gap": s.Gaps, "reordered": s.Reordered, "malformed": s.Malformed, "orphan": s.Orphans + known.Orphans, "dropped": known.Dropped,
	} {
		set(c.faults, prometheus.CounterValue, float64(n), fault)
	}
	for tier, n := range map[scheduler.Tier]int{scheduler.TierHBM: known.HBM, scheduler.TierHost: known.Host, scheduler.TierStorage: known.Storage} {
		set(c.blocks, prometheus.GaugeValue, float64(n), tier.String())
	}
	set(c.answers, prometheus.CounterValue, float64(known.Agreed), "agreed")
	set(c.answers, prometheus.CounterValue, float64(known.Differed), "differed")
}

// cachesOf is what each endpoint, or each rank of one, reported.
func cachesOf(endpoints []scheduler.EndpointState) map[string]scheduler.CacheState {
	known := make(map[string]scheduler.CacheState, len(endpoints))
	for i := range endpoints {
		e := &endpoints[i]
		known[e.ID] = e.Cache
		for _, rank := range e.Ranks {
			known[scheduler.PlaceName(e.ID, rank.Rank)] = rank.Cache
		}
	}
	return known
}
