package pool

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"weir/scheduler"
)

// Scaling says when a pool has too few or too many endpoints. Zero fields take
// the default that is named with them; Max 0 means that nobody scales the pool.
type Scaling struct {
	Min, Max int
	// QueuedTokens is how many prompt tokens may wait for each endpoint that
	// would be added (32,768).
	QueuedTokens int
	KVUsage      float64       // of the endpoints' KV caches, 0 to 1, that is right (0.8)
	TTFT         time.Duration // aim for the 95th percentile of the time to first token; 0: none
	DownAfter    time.Duration // how long fewer must have been enough before fewer are wanted (5 min)
	// Roles that are scaled apart. None: those that endpoints have had, and one
	// without a name until there was an endpoint.
	Roles []string
}

func (s Scaling) withDefaults() Scaling {
	s.QueuedTokens = cmp.Or(s.QueuedTokens, 32_768)
	s.KVUsage = cmp.Or(s.KVUsage, 0.8)
	s.DownAfter = cmp.Or(s.DownAfter, 5*time.Minute)
	return s
}

// Signal is what one role of a pool shows.
type Signal struct {
	Ready        int           `json:"ready"`         // endpoints that are worth sending to
	Busy         float64       `json:"busy"`          // how many of them the running requests fill
	Queued       int           `json:"queued"`        // requests of the pool that wait
	QueuedTokens int           `json:"queued_tokens"` // of their prompts
	KVUsage      float64       `json:"kv_usage"`      // mean of those that told it lately; negative: none did
	TTFT         time.Duration `json:"ttft_ns"`       // 95th percentile of late, or what the oldest has waited; 0: unknown
}

// Scale is how many endpoints a role of a pool should have, and why.
type Scale struct {
	Role    string `json:"role"`
	Desired int    `json:"desired"` // what to make it: at once if more, after DownAfter if fewer
	Wanted  int    `json:"wanted"`  // by the present signal alone
	Why     string `json:"why"`
	Signal
}

const (
	fullEnough = 0.8  // part of an endpoint's places that may be taken before one more is wanted
	tolerance  = 0.1  // around the aim, within which nothing changes
	maxGrowth  = 2.0  // most by which a late first token multiplies what is there
	quantile   = 0.95 // of TTFT
)

// want is how many endpoints the signal asks for: the most that one of these
// asks for, between Min and Max.
//
//   - load: busy/0.8 + queued tokens / QueuedTokens, rounded up. Waiting work is
//     counted on top of running work, because what waits found no place there.
//   - KV use and TTFT: ready x measured/aim, rounded up, as Kubernetes' autoscaler
//     computes it, with its tolerance of a tenth. Unknown values ask for nothing.
//
// A prefill role looks at load and TTFT, a decode role at running requests and
// KV use, any other at all. Whoever waits or runs is reason enough for one.
func (s Scaling) want(role string, g Signal) (n int, why string) {
	prefill, decode := role == "prefill" || role == "encode-prefill", role == "decode"
	ask := func(reason string, m int) {
		if m > n {
			n, why = m, reason
		}
	}
	if g.Queued > 0 || g.Busy > 0 {
		ask("work", 1)
	}
	waiting := float64(g.QueuedTokens) / float64(s.QueuedTokens)
	if decode {
		waiting = 0
	}
	ask("queued tokens", int(math.Ceil(g.Busy/fullEnough+waiting)))
	if !prefill && g.KVUsage >= 0 {
		ask("KV use", inProportion(g.Ready, g.KVUsage/s.KVUsage))
	}
	if !decode && s.TTFT > 0 && g.TTFT > 0 {
		ask("time to first token", inProportion(g.Ready, min(float64(g.TTFT)/float64(s.TTFT), maxGrowth)))
	}
	switch {
	case n < s.Min:
		return s.Min, "minimum"
	case n > s.Max:
		return s.Max, fmt.Sprintf("maximum; %s asks for %d", why, n)
	case n == 0:
		return 0, "idle"
	default:
		return n, why
	}
}

func inProportion(ready int, ratio float64) int {
	if math.Abs(ratio-1) <= tolerance {
		return ready
	}
	return int(math.Ceil(float64(ready)*ratio - 1e-9))
}

// calm keeps what was wanted of late, so that a short lull removes nothing:
// the largest of the last DownAfter holds.
type calm struct{ peaks []peak } // later ones are lower

type peak struct {
	n     int
	until time.Time
}

// settle takes what is wanted now and returns what to ask for.
func (c *calm) settle(n int, now time.Time, downAfter time.Duration) int {
	c.peaks = slices.DeleteFunc(c.peaks, func(p peak) bool { return p.n <= n || !now.Before(p.until) })
	c.peaks = append(c.peaks, peak{n, now.Add(downAfter)})
	return c.peaks[0].n
}

// recent remembers counts of first tokens, so that a percentile of the last
// minute can be taken from counts that only grow.
type recent struct {
	marks []mark // oldest first
}

type mark struct {
	at     time.Time
	counts scheduler.Latencies
}

const (
	ttftWindow = time.Minute
	markEvery  = 5 * time.Second
)

// quantile takes the counts of now and returns a percentile of what came in the
// last minute, or so.
func (r *recent) quantile(now time.Time, counts scheduler.Latencies) time.Duration {
	for len(r.marks) > 1 && now.Sub(r.marks[1].at) >= ttftWindow {
		r.marks = slices.Delete(r.marks, 0, 1)
	}
	if n := len(r.marks); n == 0 || now.Sub(r.marks[n-1].at) >= markEvery {
		r.marks = append(r.marks, mark{now, counts})
	}
	return counts.Sub(r.marks[0].counts).Quantile(quantile)
}
