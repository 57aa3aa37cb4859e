package scheduler

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// filter leaves out endpoints, with llm-d's meaning for the kind.
type filter struct {
	kind     string
	label    bool                     // whether it looks at labels alone
	failOpen bool                     // whether all pass where none would
	prepare  func(f *fleet, a *sheet) // may be nil
	pass     func(f *fleet, a *sheet, p *endpoint) bool
}

func (x *filter) apply(f *fleet, a *sheet) {
	if len(a.endpoints) == 0 {
		return
	}
	if x.prepare != nil {
		x.prepare(f, a)
	}
	a.keep(x.kind, x.failOpen, func(p *endpoint) bool { return x.pass(f, a, p) })
}

func newFilter(c Filter) (filter, bool) {
	switch c.Kind {
	case "decode-filter":
		return labels(c.Kind, RoleLabel, []string{"decode", "prefill-decode", "both", "encode-prefill-decode"}, true), true
	case "prefill-filter":
		return labels(c.Kind, RoleLabel, []string{"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"}, false), true
	case "encode-filter":
		return labels(c.Kind, RoleLabel, []string{"encode", "encode-prefill", "encode-prefill-decode"}, false), true
	case "by-label", "label-selector-filter":
		return labels(c.Kind, c.Label, c.Values, c.NoLabel), true
	case "context-length-aware":
		return contextFilter(c), true
	case string(ConcurrencyDetector):
		return concurrencyFilter(c.Detector), true
	case string(UtilizationDetector):
		return utilizationFilter(c.Detector), true
	case "session-affinity-filter":
		return filter{kind: c.Kind, failOpen: true, pass: func(_ *fleet, a *sheet, p *endpoint) bool {
			return a.session == nil || a.session.endpoint == p
		}}, true
	case "prefix-cache-affinity-filter":
		return affinityFilter(c), true
	default:
		return filter{}, false
	}
}

func labels(kind, label string, values []string, without bool) filter {
	return filter{kind: kind, label: true, pass: func(_ *fleet, _ *sheet, p *endpoint) bool {
		value, has := p.Labels[label]
		return !has && without || has && slices.Contains(values, value)
	}}
}

// concurrencyFilter leaves out endpoints at the detector's limit and its
// headroom. It does not fail open: the pool is full then.
func concurrencyFilter(d Detector) filter {
	tokens := float64(cmp.Or(d.MaxTokens, 1_000_000))
	room := 1 + d.Headroom
	return filter{kind: string(ConcurrencyDetector), pass: func(_ *fleet, _ *sheet, p *endpoint) bool {
		most := tokens
		if p.MaxTokens > 0 {
			most = float64(p.MaxTokens)
		}
		byRequests := float64(p.held) < float64(p.MaxConcurrency)*room
		byTokens := float64(p.tokens) < most*room
		switch d.Mode {
		case CountTokens:
			return byTokens
		case CountHybrid:
			return byRequests && byTokens
		case CountRequests:
			return byRequests
		default:
			return byRequests
		}
	}}
}

// utilizationFilter leaves out endpoints that say that they are full, or of
// which nothing recent is known; all pass if none would.
func utilizationFilter(d Detector) filter {
	waiting := float64(cmp.Or(d.QueueDepth, 5)) * (1 + d.Headroom)
	usage := cmp.Or(d.KVUsage, 0.8) * (1 + d.Headroom)
	stale := cmp.Or(d.Staleness, 200*time.Millisecond)
	return filter{kind: string(UtilizationDetector), failOpen: true, pass: func(_ *fleet, a *sheet, p *endpoint) bool {
		return !p.load.At.IsZero() && a.now.Sub(p.load.At) <= stale && float64(p.load.Waiting) < waiting && p.load.KVUsage < usage
	}}
}

// affinityFilter keeps the endpoints that have most of the prompt, unless the
// least loaded of them would take so much longer to begin than the least loaded
// of the others that computing the prompt anew is quicker.
func affinityFilter(c Filter) filter {
	score := cmp.Or(c.MinScore, 0.8)
	penalty := cmp.Or(c.MaxPenalty, 18*time.Second)
	rate := cmp.Or(c.Rate, 15_928)
	sticky := func(f *fleet, a *sheet, p *endpoint) bool {
		if a.knows(p) {
			return f.exactPart(a, p) >= score
		}
		return a.chain != nil && float64(f.prefix.have(&p.cache)) >= score*float64(len(a.chain.hashes)) && len(a.chain.hashes) > 0
	}
	loose := false // of the pick in hand
	return filter{
		kind: c.Kind, failOpen: true,
		prepare: func(f *fleet, a *sheet) {
			with, without := -1, -1
			for _, p := range a.endpoints {
				least := &without
				if sticky(f, a, p) {
					least = &with
				}
				if *least < 0 || p.pending < *least {
					*least = p.pending
				}
			}
			loose = without >= 0 && float64(with-without)/rate > penalty.Seconds()
		},
		pass: func(f *fleet, a *sheet, p *endpoint) bool { return loose || sticky(f, a, p) },
	}
}

// contextFilter leaves out endpoints that are labelled for prompts of another
// length. A label that can't be read lets no prompt pass.
func contextFilter(c Filter) filter {
	label := cmp.Or(c.Label, contextLabel)
	return filter{kind: c.Kind, pass: func(_ *fleet, a *sheet, p *endpoint) bool {
		value, has := p.Labels[label]
		if !has {
			return true
		}
		from, to, ok := span(value)
		return ok && from <= a.input && a.input <= to
	}}
}

// contextLabel says for prompts of how many tokens an endpoint is meant:
// "0-2048".
const contextLabel = "llm-d.ai/context-length-range"

func span(value string) (from, to int, ok bool) {
	first, last, _ := strings.Cut(value, "-")
	from, err := strconv.Atoi(strings.TrimSpace(first))
	to, err2 := strconv.Atoi(strings.TrimSpace(last))
	return from, to, err == nil && err2 == nil && 0 <= from && from <= to
}
