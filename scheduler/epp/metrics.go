package epp

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"weir/scheduler"
)

// Metrics are those of streams and single requests, under llm-d's names and
// labels; scheduler/pool has those of pools. The label that would name tenants
// is always "other": gateways count by tenant.
type Metrics struct {
	inflight prometheus.Gauge
	streams  *prometheus.CounterVec   // by code
	lasted   *prometheus.HistogramVec // by code
	outcomes *prometheus.CounterVec   // by outcome, priority and pool
	queued   *prometheus.HistogramVec
}

// NewMetrics registers the metrics; a nil registerer keeps them unseen.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	name := func(n string) string { return "llm_d_epp_" + n }
	m := &Metrics{
		inflight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: name("extproc_streams_inflight"), Help: "Streams that are open: requests that are being read, wait or run.",
		}),
		streams: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("extproc_streams_total"), Help: "Streams that have ended, by gRPC code.",
		}, []string{"code"}),
		lasted: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name("extproc_stream_duration_seconds"), Help: "How long streams were open.",
			Buckets: prometheus.ExponentialBuckets(0.01, 4, 9),
		}, []string{"code"}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("flow_control_requests_total"), Help: "Requests by what came of their wait.",
		}, []string{"outcome", "priority", "inference_pool"}),
		queued: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name("flow_control_request_queue_duration_seconds"), Help: "How long requests waited.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 11),
		}, []string{"fairness_id", "priority", "outcome", "inference_pool", "model_name", "target_model_name"}),
	}
	if reg != nil {
		reg.MustRegister(m.inflight, m.streams, m.lasted, m.outcomes, m.queued)
	}
	return m
}

// stream counts one until the returned function is called.
func (m *Metrics) stream() (ended func(codes.Code)) {
	began := time.Now()
	m.inflight.Inc()
	return func(c codes.Code) {
		m.inflight.Dec()
		m.streams.WithLabelValues(c.String()).Inc()
		m.lasted.WithLabelValues(c.String()).Observe(time.Since(began).Seconds())
	}
}

// waits counts what comes of a wait.
func (m *Metrics) waits(pool string, r *scheduler.Request) func(ctx context.Context, err error, waited time.Duration) {
	priority := strconv.Itoa(r.Flow.Band)
	return func(ctx context.Context, err error, waited time.Duration) {
		outcome := outcomeOf(ctx, err)
		m.outcomes.WithLabelValues(outcome, priority, pool).Inc()
		m.queued.WithLabelValues("other", priority, outcome, pool, "other", "other").Observe(waited.Seconds())
	}
}

// outcomeOf is llm-d's word for how a wait ended.
func outcomeOf(ctx context.Context, err error) string {
	var r *scheduler.Refusal
	switch {
	case err == nil:
		return "Dispatched"
	case errors.Is(err, errStandby), errors.Is(context.Cause(ctx), errStandby):
		return "EvictedOther"
	case !errors.As(err, &r):
		return "RejectedOther"
	}
	switch r.Reason {
	case scheduler.QueueTimeout:
		if r.Waited {
			return "EvictedTTL"
		}
		return "RejectedCapacity"
	case scheduler.NoEndpoints:
		if r.Waited {
			return "EvictedNoEndpoints"
		}
		return "RejectedNoEndpoints"
	case scheduler.FlowFull, scheduler.BandFull, scheduler.PoolFull, scheduler.ShedLoad:
		return "RejectedCapacity"
	case scheduler.Cancelled:
		return "EvictedContextCancelled"
	case scheduler.ShuttingDown:
		return "EvictedOther"
	default:
		return "RejectedOther"
	}
}
