package api

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts requests by route and status. Both are bounded: routes are
// patterns, and all that match none are one.
type metrics struct{ requests *prometheus.CounterVec }

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{requests: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "weir_http_requests_total",
		Help: "Requests to the public API by route and status.",
	}, []string{"route", "status"})}
	if r != nil {
		r.MustRegister(m.requests)
	}
	return m
}

func (m *metrics) count(x *exchange) {
	route := x.route
	if route == "" {
		route = "none"
	}
	status := x.status
	if status == 0 {
		status = clientClosed // nothing was sent: nobody was there
	}
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
}
