package gateway

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/billing"
	"weir/scheduler"
)

// epp are the metrics of single requests that llm-d's router has, under its
// names and labels, so that dashboards made for it work. What belongs to whole
// pools is shown by scheduler/pool.
//
// A label that names tenants, by their random fairness ids, has a bounded
// number of values, the first ones that came; the rest are one, "other". So
// has the whole set of series.
type epp struct {
	queue *prometheus.HistogramVec // by series and outcome
	ends  *prometheus.CounterVec   // by outcome, priority and pool

	total, errors                     *prometheus.CounterVec
	duration, ttft, ntpot, tpot       *prometheus.HistogramVec
	size, answer                      *prometheus.HistogramVec
	inputs, outputs, cachedToks, gaps *prometheus.HistogramVec

	mostIDs int
	mu      sync.RWMutex
	ids     map[string]struct{}
	known   map[seriesKey]*series
}

// maxSeries bounds the combinations of labels that name a tenant.
const maxSeries = 2000

// otherID stands for the tenants beyond the bound.
const otherID = "other"

// seriesKey is what tells the series of two requests apart.
type seriesKey struct {
	fairness, pool, model, target string
	priority                      int
}

// series is where the requests of one key are counted: looked up once, so that
// counting costs little.
type series struct {
	seriesKey

	band                              string // the priority as a label
	total, dispatched                 prometheus.Counter
	queue, duration, ntpot, tpot      prometheus.Observer
	ttft                              [2]prometheus.Observer // of documents and of streams
	size, answer                      prometheus.Observer
	inputs, outputs, cachedToks, gaps prometheus.Observer
}

// llm-d's outcomes of flow control.
const (
	outcomeDispatched = "Dispatched"
	outcomeFull       = "RejectedCapacity"
	outcomeEmpty      = "RejectedNoEndpoints"
	outcomeRejected   = "RejectedOther"
	outcomeTTL        = "EvictedTTL"
	outcomeNoEndpoint = "EvictedNoEndpoints"
	outcomeLeft       = "EvictedContextCancelled"
	outcomeEvicted    = "EvictedOther"
)

func newEPP(reg prometheus.Registerer, mostIDs int) *epp {
	request := requestLabels()
	name := func(n string) string { return "llm_d_epp_" + n }
	seconds := func(n, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name(n), Help: help, Buckets: []float64{.001, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, labels)
	}
	counts := func(n, help string, from float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name(n), Help: help, Buckets: prometheus.ExponentialBuckets(from, 4, 10)}, request)
	}
	counter := func(n, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name(n), Help: help}, labels)
	}
	m := &epp{
		queue: seconds("flow_control_request_queue_duration_seconds", "Time in the queue, by what came of it.",
			"fairness_id", "priority", "outcome", "inference_pool", "model_name", "target_model_name"),
		ends:       counter("flow_control_requests_total", "Attempts by what came of their wait.", "outcome", "priority", "inference_pool"),
		total:      counter("request_total", "Requests that came to a queue.", request...),
		errors:     counter("request_error_total", "Requests that failed after they came to a queue, by cause.", append(request, "error_code")...),
		duration:   seconds("request_duration_seconds", "From arrival to settlement.", request...),
		ttft:       seconds("request_ttft_seconds", "From arrival to the first output.", append(request, "streaming")...),
		ntpot:      seconds("request_ntpot_seconds", "Duration for each token of output.", request...),
		tpot:       seconds("request_streaming_tpot_seconds", "Time between tokens of a stream, mean.", request...),
		gaps:       seconds("request_streaming_itl_seconds", "Time between two pieces of a stream's output.", request...),
		size:       counts("request_size_bytes", "Bytes of the body for the engine.", 256),
		answer:     counts("response_size_bytes", "Bytes of the answer as the caller sees it.", 256),
		inputs:     counts("request_input_tokens", "Prompt tokens.", 1),
		outputs:    counts("request_output_tokens", "Output tokens.", 1),
		cachedToks: counts("request_cached_tokens", "Prompt tokens that the engine had cached.", 1),
		mostIDs:    mostIDs,
		ids:        make(map[string]struct{}),
		known:      make(map[seriesKey]*series),
	}
	if reg != nil {
		reg.MustRegister(m.queue, m.ends, m.total, m.errors, m.duration, m.ttft, m.ntpot, m.tpot, m.gaps, m.size, m.answer, m.inputs, m.outputs, m.cachedToks)
	}
	return m
}

// series finds where a request is counted.
func (m *epp) series(k seriesKey) *series {
	m.mu.RLock()
	s := m.known[m.bounded(k)]
	m.mu.RUnlock()
	if s != nil {
		return s
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k = m.bounded(k)
	if k.fairness != otherID {
		m.ids[k.fairness] = struct{}{}
	}
	if m.known[k] == nil {
		m.known[k] = m.newSeries(k)
	}
	return m.known[k]
}

// bounded is the key under which a request is counted: with "other" for its
// tenant where that, or the whole key, would be one too many. It holds mu.
func (m *epp) bounded(k seriesKey) seriesKey {
	_, shown := m.ids[k.fairness]
	if !shown && len(m.ids) >= m.mostIDs || len(m.known) >= maxSeries && m.known[k] == nil {
		k.fairness = otherID
	}
	return k
}

func (m *epp) newSeries(k seriesKey) *series {
	s := &series{seriesKey: k, band: strconv.Itoa(k.priority)}
	names := s.request()
	band, request := s.band, names[:]
	return &series{
		seriesKey:  k,
		band:       band,
		total:      m.total.WithLabelValues(request...),
		dispatched: m.ends.WithLabelValues(outcomeDispatched, band, k.pool),
		queue:      m.queue.WithLabelValues(k.fairness, band, outcomeDispatched, k.pool, k.model, k.target),
		duration:   m.duration.WithLabelValues(request...),
		ntpot:      m.ntpot.WithLabelValues(request...),
		tpot:       m.tpot.WithLabelValues(request...),
		ttft: [2]prometheus.Observer{
			m.ttft.WithLabelValues(append(request, "false")...), m.ttft.WithLabelValues(append(request, "true")...),
		},
		gaps:       m.gaps.WithLabelValues(request...),
		size:       m.size.WithLabelValues(request...),
		answer:     m.answer.WithLabelValues(request...),
		inputs:     m.inputs.WithLabelValues(request...),
		outputs:    m.outputs.WithLabelValues(request...),
		cachedToks: m.cachedToks.WithLabelValues(request...),
	}
}

// requestLabels are llm-d's labels of a single request.
func requestLabels() []string {
	return []string{"model_name", "target_model_name", "fairness_id", "priority"}
}

// request is the values of these labels.
func (s *series) request() [4]string { return [4]string{s.model, s.target, s.fairness, s.band} }

// waited counts what came of an attempt's wait.
func (m *epp) waited(s *series, outcome string, d time.Duration) {
	if outcome == outcomeDispatched {
		s.dispatched.Inc()
		s.queue.Observe(d.Seconds())
		return
	}
	m.ends.WithLabelValues(outcome, s.band, s.pool).Inc()
	m.queue.WithLabelValues(s.fairness, s.band, outcome, s.pool, s.model, s.target).Observe(d.Seconds())
}

// outcomeOf is llm-d's word for how a wait ended.
func outcomeOf(ctx context.Context, err error) string {
	if err == nil {
		return outcomeDispatched
	}
	if ctx.Err() != nil {
		return outcomeLeft
	}
	refusal, ok := errors.AsType[*scheduler.Refusal](err)
	if !ok {
		return outcomeRejected
	}
	switch refusal.Reason {
	case scheduler.QueueTimeout, scheduler.NoEndpoints:
		return outcomeInTime(refusal)
	case scheduler.FlowFull, scheduler.BandFull, scheduler.PoolFull, scheduler.ShedLoad:
		return outcomeFull
	case scheduler.Cancelled:
		return outcomeLeft
	case scheduler.ShuttingDown:
		return outcomeEvicted
	default:
		return outcomeRejected
	}
}

// outcomeInTime tells requests whose time was up in the queue from those that
// could not be queued at all.
func outcomeInTime(r *scheduler.Refusal) string {
	empty := r.Reason == scheduler.NoEndpoints
	switch {
	case r.Waited && empty:
		return outcomeNoEndpoint
	case r.Waited:
		return outcomeTTL
	case empty:
		return outcomeEmpty
	default:
		return outcomeFull
	}
}

// ended counts a request that came to a queue.
func (m *epp) ended(s *series, r *billing.Receipt, bytes, made int) {
	s.total.Inc()
	if r.Outcome != string(Success) {
		m.errors.WithLabelValues(s.model, s.target, s.fairness, s.band, r.Outcome).Inc()
	}
	if r.Attempts == 0 {
		return
	}
	s.duration.Observe(r.Duration.Seconds())
	s.size.Observe(float64(bytes))
	if made > 0 {
		s.answer.Observe(float64(made))
	}
	output := r.Usage.Output + r.Usage.Reasoning
	if r.TTFT > 0 {
		streaming := 0
		if r.Stream {
			streaming = 1
		}
		s.ttft[streaming].Observe(r.TTFT.Seconds())
		if r.Stream && output > 1 {
			s.tpot.Observe((r.Duration - r.TTFT).Seconds() / float64(output-1))
		}
	}
	if output > 0 {
		s.ntpot.Observe(r.Duration.Seconds() / float64(output))
	}
	if input := r.Usage.InputUncached + r.Usage.InputCached; input > 0 {
		s.inputs.Observe(float64(input))
		s.cachedToks.Observe(float64(r.Usage.InputCached))
		s.outputs.Observe(float64(output))
	}
}
