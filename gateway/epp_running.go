package gateway

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"weir/scheduler"
)

// running is the set of exchanges that hold a lease: what is in flight is its
// size. Schedulers bound how many there are.
type running struct {
	mu  sync.Mutex
	set map[*holding]struct{}
}

// holding is an exchange's entry in the set. It doesn't change while it is in.
type holding struct {
	series   *series
	endpoint string
	lease    scheduler.Lease
}

// tokened is a lease that knows for how many tokens it counts at its endpoint.
// One of a remote scheduler doesn't.
type tokened interface{ Tokens() int }

func newRunning() *running { return &running{set: make(map[*holding]struct{})} }

func (r *running) add(h *holding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set[h] = struct{}{}
}

// remove takes h out, if it is in.
func (r *running) remove(h *holding) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.set, h)
}

// all copies the entries, so that no lease is asked under the set's lock.
func (r *running) all() []holding {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]holding, 0, len(r.set))
	for h := range r.set {
		list = append(list, *h)
	}
	return list
}

// runningGauges shows what is in flight, under llm-d's names. Each scrape
// counts the set. A pool is the namespace of its endpoints.
type runningGauges struct {
	running *running
	epp     *epp

	requests, atEndpoint, tokens *prometheus.Desc
}

func newRunningGauges(r *running, m *epp) *runningGauges {
	at := []string{"endpoint_name", "namespace", "producer_name", "fairness_id", "priority"}
	desc := func(name, help string, labels []string) *prometheus.Desc {
		return prometheus.NewDesc("llm_d_epp_"+name, help, labels, nil)
	}
	return &runningGauges{
		running: r, epp: m,
		requests:   desc("request_running", "Requests that hold an endpoint.", requestLabels()),
		atEndpoint: desc("inflight_requests", "Requests at an endpoint that have not ended.", at),
		tokens:     desc("inflight_tokens", "Tokens for which the requests at an endpoint count: uncached ones of prompts that are being computed.", at),
	}
}

// Describe names the gauges.
func (g *runningGauges) Describe(out chan<- *prometheus.Desc) {
	out <- g.requests
	out <- g.atEndpoint
	out <- g.tokens
}

// place is where a request is in flight, as the gauges' labels tell it.
type place struct{ endpoint, pool, fairness, band string }

// inFlight is what runs at one place.
type inFlight struct {
	n, tokens int
	told      bool // the tokens are known
}

// Collect counts what runs. Requests are shown for every series that there
// ever was, endpoints while something runs there.
func (g *runningGauges) Collect(out chan<- prometheus.Metric) {
	requests := make(map[[4]string]int) // over the pools of a model
	g.epp.each(func(s *series) { requests[s.request()] += 0 })
	places := make(map[place]inFlight)
	for _, h := range g.running.all() {
		s := h.series
		requests[s.request()]++
		at := place{h.endpoint, s.pool, s.fairness, s.band}
		sum := places[at]
		sum.n++
		if l, ok := h.lease.(tokened); ok {
			sum.tokens, sum.told = sum.tokens+l.Tokens(), true
		}
		places[at] = sum
	}
	show := func(d *prometheus.Desc, n int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for labels, n := range requests {
		show(g.requests, n, labels[:]...)
	}
	for at, sum := range places {
		labels := []string{at.endpoint, at.pool, inFlightProducer, at.fairness, at.band}
		show(g.atEndpoint, sum.n, labels...)
		if sum.told {
			show(g.tokens, sum.tokens, labels...)
		}
	}
}

// inFlightProducer is llm-d's name of what counts in-flight load.
const inFlightProducer = "inflight-load-producer"
