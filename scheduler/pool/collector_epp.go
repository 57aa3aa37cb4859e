package pool

import (
	"math"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"weir/scheduler"
)

// eppDescs are what llm-d's router shows of its pools, under its names and
// labels, so that dashboards made for it work. What belongs to single requests
// is the gateway's to show.
type eppDescs struct {
	saturation, stale, cycle, enqueue              *prometheus.Desc
	bandRequests, bandBytes, allRequests, allBytes *prometheus.Desc
	revoked                                        *prometheus.Desc

	revocations, confirmation, reclaimTarget, reclaimPending *prometheus.Desc

	ready, endpointQueue                                    *prometheus.Desc
	queueMean, runningMean, kvMean, queueDev, runDev, kvDev *prometheus.Desc
}

func newEPPDescs() eppDescs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("llm_d_epp_"+name, help, labels, nil)
	}
	return eppDescs{
		saturation:     desc("flow_control_pool_saturation", "How full the pool is, by stage of a request; 1 is full, and it may be more.", "inference_pool", "stage"),
		stale:          desc("flow_control_stale_endpoints", "Endpoints that said nothing of themselves lately.", "detector"),
		cycle:          desc("flow_control_dispatch_cycle_duration_seconds", "What a look for an endpoint took."),
		enqueue:        desc("flow_control_request_enqueue_duration_seconds", "What it took to queue a request that could not be dispatched at once. It is counted for all tenants together.", "fairness_id", "priority", "outcome"),
		bandRequests:   desc("flow_control_capacity_utilization_requests", "Part of the band's queue that is taken, in requests.", "priority", "inference_pool"),
		bandBytes:      desc("flow_control_capacity_utilization_bytes", "Part of the band's queue that is taken, in bytes of bodies.", "priority", "inference_pool"),
		allRequests:    desc("flow_control_global_capacity_utilization_requests", "Part of the pool's queue that is taken, in requests.", "inference_pool"),
		allBytes:       desc("flow_control_global_capacity_utilization_bytes", "Part of the pool's queue that is taken, in bytes of bodies.", "inference_pool"),
		revoked:        desc("flow_control_revocations_issued_total", "Running requests that were told to end, by the priority for which.", "priority", "inference_pool"),
		revocations:    desc("flow_control_revocations_total", "Running requests that were told to end for others, by whether they did in time.", "outcome", "inference_pool"),
		confirmation:   desc("flow_control_revocation_confirmation_seconds", "From telling a request to end until it had.", "inference_pool"),
		reclaimTarget:  desc("flow_control_reclaim_target", "Requests that the last round of evictions told to end.", "inference_pool"),
		reclaimPending: desc("flow_control_pending_reclaim", "Of them those that have not ended.", "inference_pool"),
		ready:          desc("ready_endpoints", "Endpoints that are worth sending to.", "name"),
		endpointQueue:  desc("per_endpoint_queue_size", "Requests in the engine's own queue, as it last said.", "name", "model_server_endpoint"),
		queueMean:      desc("average_queue_size", "Requests in an engine's own queue, mean.", "name"),
		runningMean:    desc("average_running_requests", "Requests in an engine's batch, mean.", "name"),
		kvMean:         desc("average_kv_cache_utilization", "Part of an engine's KV cache in use, mean.", "name"),
		queueDev:       desc("std_dev_queue_size", "Requests in an engine's own queue, standard deviation.", "name"),
		runDev:         desc("std_dev_running_requests", "Requests in an engine's batch, standard deviation.", "name"),
		kvDev:          desc("std_dev_kv_cache_utilization", "Part of an engine's KV cache in use, standard deviation.", "name"),
	}
}

// eppTotals are the sums over all pools, for what llm-d doesn't label by pool.
type eppTotals struct {
	cycles   scheduler.Timing
	stale    map[scheduler.DetectorKind]int
	enqueued map[int]scheduler.Timing // by priority
}

func (t *eppTotals) add(s scheduler.State) {
	t.cycles = plus(t.cycles, s.Cycles)
	t.stale[s.Detector] += s.Stale
	for _, b := range s.Bands {
		t.enqueued[b.Priority] = plus(t.enqueued[b.Priority], b.Enqueued)
	}
}

func total(t scheduler.Timing) (n uint64) {
	for _, c := range t.Counts {
		n += c
	}
	return n
}

func plus(a, b scheduler.Timing) scheduler.Timing {
	for i, n := range b.Counts {
		a.Counts[i] += n
	}
	a.Sum += b.Sum
	return a
}

func (d *eppDescs) totals(out chan<- prometheus.Metric, t eppTotals) {
	out <- histogram(d.cycle, t.cycles)
	for kind, n := range t.stale {
		out <- gauge(d.stale, float64(n), string(kind))
	}
	for priority, timing := range t.enqueued {
		out <- histogram(d.enqueue, timing, "other", strconv.Itoa(priority), "Queued")
	}
}

func (d *eppDescs) pool(out chan<- prometheus.Metric, name string, s scheduler.State) {
	out <- gauge(d.saturation, s.Saturation, name, "effective")
	for _, stage := range s.Stages {
		out <- gauge(d.saturation, stage.Saturation, name, stage.Stage)
	}
	for _, b := range s.Bands {
		band := strconv.Itoa(b.Priority)
		out <- gauge(d.bandRequests, part(int64(b.Queued), int64(b.MaxQueued)), band, name)
		out <- gauge(d.bandBytes, part(b.Bytes, b.MaxBytes), band, name)
		out <- counter(d.revoked, float64(b.Evictions), band, name)
	}
	out <- counter(d.revocations, float64(total(s.Reclaimed)), "confirmed", name)
	out <- counter(d.revocations, float64(s.ReclaimTimedOut), "timed_out", name)
	out <- histogram(d.confirmation, s.Reclaimed, name)
	out <- gauge(d.reclaimTarget, float64(s.ReclaimTarget), name)
	out <- gauge(d.reclaimPending, float64(s.ReclaimPending), name)
	out <- gauge(d.allRequests, part(int64(s.Queued), int64(s.MaxQueued)), name)
	if s.MaxBytes > 0 {
		out <- gauge(d.allBytes, part(s.QueuedBytes, s.MaxBytes), name)
	}
	ready := 0
	for _, p := range s.Endpoints {
		if p.Health != scheduler.Unhealthy && p.Circuit != scheduler.CircuitOpen && !p.Draining {
			ready++
		}
	}
	out <- gauge(d.ready, float64(ready), name)
	d.engines(out, name, s.Endpoints)
}

// engines shows what the engines said of themselves: nothing where none did.
func (d *eppDescs) engines(out chan<- prometheus.Metric, name string, endpoints []scheduler.EndpointState) {
	var queued, running, kv []float64
	seen := map[string]bool{} // a removed endpoint may stand behind its successor of the same id
	for _, e := range endpoints {
		l := e.Load
		if l.At.IsZero() || seen[e.ID] {
			continue
		}
		seen[e.ID] = true
		out <- gauge(d.endpointQueue, float64(l.Waiting), name, e.ID)
		queued, running, kv = append(queued, float64(l.Waiting)), append(running, float64(l.Running)), append(kv, l.KVUsage)
	}
	for _, of := range []struct {
		values    []float64
		mean, dev *prometheus.Desc
	}{{queued, d.queueMean, d.queueDev}, {running, d.runningMean, d.runDev}, {kv, d.kvMean, d.kvDev}} {
		if len(of.values) > 0 {
			mean, dev := spread(of.values)
			out <- gauge(of.mean, mean, name)
			out <- gauge(of.dev, dev, name)
		}
	}
}

// spread is the mean and the standard deviation. Values are summed in order of
// size, so that the same ones give the same sums.
func spread(values []float64) (mean, dev float64) {
	slices.Sort(values)
	n := float64(len(values))
	for _, v := range values {
		mean += v / n
	}
	for _, v := range values {
		dev += (v - mean) * (v - mean) / n
	}
	return mean, math.Sqrt(dev)
}

// part is how much of a bound is taken; what may hold nothing is full.
func part(n, most int64) float64 {
	if most <= 0 {
		return 1
	}
	return float64(n) / float64(most)
}

func histogram(d *prometheus.Desc, t scheduler.Timing, labels ...string) prometheus.Metric {
	buckets := make(map[float64]uint64, len(t.Counts))
	total := uint64(0)
	for i, bound := range scheduler.TimingBounds() {
		total += t.Counts[i]
		buckets[bound.Seconds()] = total
	}
	total += t.Counts[len(t.Counts)-1]
	return prometheus.MustNewConstHistogram(d, total, t.Sum.Seconds(), buckets, labels...)
}
