package pool

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/scheduler"
)

// splitDescs are what is shown of pools that are split or go by revisions, and
// of no others. Revisions are the operator's words.
type splitDescs struct {
	decided, share, picked *prometheus.Desc
}

func newSplitDescs() splitDescs {
	desc := func(name, help, label string) *prometheus.Desc {
		return prometheus.NewDesc("weir_pool_"+name, help, []string{"pool", label}, nil)
	}
	return splitDescs{
		decided: desc("prefills_total", "Requests of a split pool that were dispatched, by where their prompts are computed: apart, or together with the answer.", "where"),
		share:   desc("revision_share", "Part of the requests that the revision is to take; 0 while one of its roles is missing.", "revision"),
		picked:  desc("revision_requests_total", "Requests that were dispatched to the revision.", "revision"),
	}
}

func (d *splitDescs) pool(out chan<- prometheus.Metric, name string, s scheduler.State) {
	if s.Splits != nil {
		out <- counter(d.decided, float64(s.Splits.Apart), name, "apart")
		out <- counter(d.decided, float64(s.Splits.Together), name, "together")
	}
	for _, r := range s.Revisions {
		out <- gauge(d.share, r.Share, name, r.Revision)
		out <- counter(d.picked, float64(r.Picked), name, r.Revision)
	}
}
