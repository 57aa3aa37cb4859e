package pickerconfig

import (
	"slices"
	"time"

	"weir/scheduler"
)

const roleLabel = "llm-d.ai/role"

func filterKinds() []*kind {
	role := func(noLabel bool, values ...string) func(*document, *plugin) []param {
		return func(_ *document, p *plugin) []param {
			p.filters = []scheduler.Filter{{Kind: p.kind.name, Label: roleLabel, Values: values, NoLabel: noLabel}}
			return nil
		}
	}
	const old = "old in llm-d: write label-selector-filter"
	return []*kind{
		{name: "decode-filter", role: filter, params: role(true, "decode", "prefill-decode", "both", "encode-prefill-decode")},
		{name: "prefill-filter", role: filter, params: role(false, "prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode")},
		{name: "encode-filter", role: filter, params: role(false, "encode", "encode-prefill", "encode-prefill-decode")},
		{name: "label-selector-filter", role: filter, params: labelSelector, note: "of the operators of matchExpressions, In"},
		{name: "by-label-selector", role: filter, params: labelSelector, note: old},
		{name: "by-label", role: filter, params: byLabel, note: old},
		{name: "prefix-cache-affinity-filter", role: filter, params: prefixAffinity},
		{name: "session-affinity-filter", role: filter, params: sessionAffinity, note: sessionNote},
	}
}

const sessionNote = "Weir knows sessions itself: no header makes or names one"

func byLabel(d *document, p *plugin) []param {
	p.filters = []scheduler.Filter{{Kind: "label-selector-filter"}}
	f := &p.filters[0]
	return []param{
		{"label", "must be given", d.text(&f.Label)},
		{"validValues", "", d.texts(&f.Values)},
		{"allowsNoLabel", "false", d.boolean(&f.NoLabel)},
	}
}

// labelSelector reads a selector of Kubernetes. All its requirements have to be
// met, so that each is a filter.
func labelSelector(d *document, p *plugin) []param {
	p.filters = nil
	add := func(label string, values ...string) {
		p.filters = append(p.filters, scheduler.Filter{Kind: "label-selector-filter", Label: label, Values: values})
	}
	return []param{
		{"matchLabels", "", func(a at) {
			for label, value := range d.labels(a) {
				add(label, value)
			}
		}},
		{"matchExpressions", "operator In only", d.list(func(a at) {
			var key, operator string
			var values []string
			d.object(a, field{"key", d.text(&key)}, field{"operator", choice(d.reader, &operator, "In")}, field{"values", d.texts(&values)})
			if key == "" || len(values) == 0 {
				d.fail(a, "want key, operator: In and values")
				return
			}
			add(key, values...)
		})},
	}
}

// labels reads a mapping of texts, in its order.
func (d *document) labels(a at) func(yield func(string, string) bool) {
	return func(yield func(string, string) bool) {
		fields := make([]field, 0, len(a.node.Content)/2)
		for i := 0; i+1 < len(a.node.Content); i += 2 {
			name := a.node.Content[i].Value
			fields = append(fields, field{name, func(a at) {
				var value string
				d.text(&value)(a)
				yield(name, value)
			}})
		}
		d.object(a, fields...)
	}
}

func prefixAffinity(d *document, p *plugin) []param {
	p.filters = []scheduler.Filter{{Kind: p.kind.name, MinScore: 0.8, MaxPenalty: 18 * time.Second, Rate: 15_928}}
	f := &p.filters[0]
	var explore float64
	millis, tokens := 18_000.0, 0.0
	settle := func(read func(at)) func(at) { // whichever bound is reached first
		return func(a at) {
			read(a)
			f.MaxPenalty = forever
			if millis > 0 {
				f.MaxPenalty = time.Duration(millis * float64(time.Millisecond))
			}
			if tokens > 0 {
				f.MaxPenalty = min(f.MaxPenalty, time.Duration(tokens/f.Rate*float64(time.Second)))
			}
		}
	}
	return []param{
		{"affinityThreshold", "0.8; 0: no filter", func(a at) {
			d.number(&f.MinScore, 0, 1)(a)
			p.idle = f.MinScore == 0
		}},
		{"maxTTFTPenaltyMs", "18000; 0: no bound", settle(d.number(&millis, 0, float64(forever.Milliseconds())))},
		{"maxTokensInFlightPenalty", "0: no bound; old in llm-d", settle(d.number(&tokens, 0, 1e12))},
		{"peakPrefillThroughput", "15928", settle(d.number(&f.Rate, 1, 1e12))},
		{"explorationProbability", "0; no other", func(a at) {
			d.number(&explore, 0, 1)(a)
			if explore != 0 {
				d.fail(a, "only 0 is supported: a hot prefix spills over by load, not by chance")
			}
		}},
		{"ttftSource", "prefillThroughput; no other", choice(d.reader, new(string), "prefillThroughput")},
		{"prefixMatchInfoProducerName", "", d.producer(p)},
		{"inFlightLoadProducerName", "", d.producer(p)},
	}
}

// sessionAffinity serves the filter and the scorer.
func sessionAffinity(d *document, p *plugin) []param {
	p.session = scheduler.SessionAffinity{}
	if p.kind.role&filter != 0 {
		p.filters = []scheduler.Filter{{Kind: p.kind.name}}
	} else {
		p.scorer = scheduler.Scorer{Kind: p.kind.name}
	}
	return []param{
		{"strategy", "either: Weir keeps the binding itself", choice(d.reader, new(string), "encoded_endpoint_header", "session_id")},
		{"encodedEndpointHeaderConfig", "no effect", d.noEffect(sessionNote)},
		{"sessionIdConfig", "", func(a at) {
			d.object(a,
				field{"sources", d.noEffect(sessionNote)},
				field{"evictionTtlSeconds", d.seconds(&p.session.TTL)},
				field{"evictionSweepSeconds", d.noEffect("bindings end on time")},
			)
		}},
		{"profileName", "no effect", d.noEffect("there is one profile")},
	}
}

func scorerKinds() []*kind {
	plain := func(_ *document, p *plugin) []param {
		p.scorer = scheduler.Scorer{Kind: p.kind.name}
		return nil
	}
	return []*kind{
		{name: "queue-scorer", role: scorer, params: plain},
		{name: "running-requests-size-scorer", role: scorer, params: plain},
		{name: "kv-cache-utilization-scorer", role: scorer, params: plain},
		{name: "load-aware-scorer", role: scorer, params: loadAware},
		{name: "active-request-scorer", role: scorer, params: activeRequest},
		{name: "token-load-scorer", role: scorer, params: tokenLoad},
		{name: "prefix-cache-scorer", role: scorer, params: prefixScorer},
		{name: "session-affinity-scorer", role: scorer, params: sessionAffinity, note: sessionNote},
		{name: "no-hit-lru-scorer", role: scorer, params: noHit},
		{name: "context-length-aware", role: scorer | filter, params: contextLength},
		{name: scheduler.WorkScorer, role: scorer, params: plain, note: "Weir's own: the prefill work before and of the request, less what is cached there"},
	}
}

func noHit(d *document, p *plugin) []param {
	p.scorer = scheduler.Scorer{Kind: p.kind.name}
	return []param{
		{"lruSize", "no effect", d.noEffect("there are as many entries as endpoints")},
		{"prefixMatchInfoProducerName", "", d.producer(p)},
	}
}

func contextLength(d *document, p *plugin) []param {
	p.scorer, p.filters = scheduler.Scorer{Kind: p.kind.name}, nil
	filtering := false
	return []param{
		{"enableFiltering", "false", func(a at) {
			d.boolean(&filtering)(a)
			if filtering {
				p.filters = []scheduler.Filter{{Kind: p.kind.name}}
			}
		}},
		{"label", "llm-d.ai/context-length-range; no other", choice(d.reader, new(string), "llm-d.ai/context-length-range")},
	}
}

func loadAware(d *document, p *plugin) []param {
	p.scorer = scheduler.Scorer{Kind: p.kind.name, Threshold: 128}
	return []param{{"threshold", "128", d.number(&p.scorer.Threshold, 1, 1e9)}}
}

func activeRequest(d *document, p *plugin) []param {
	p.scorer = scheduler.Scorer{Kind: p.kind.name, MaxBusyScore: 1}
	return []param{
		{"idleThreshold", "0", d.number(&p.scorer.Threshold, 0, 1e9)},
		{"maxBusyScore", "1", func(a at) {
			d.number(&p.scorer.MaxBusyScore, 0, 1)(a)
			p.scorer.MaxBusyScore = max(p.scorer.MaxBusyScore, tiny)
		}},
		{"requestTimeout", "no effect", d.noEffect("a request counts until it has ended")},
		{"inFlightLoadProducerName", "", d.producer(p)},
	}
}

func tokenLoad(d *document, p *plugin) []param {
	p.scorer = scheduler.Scorer{Kind: p.kind.name, Threshold: 4_194_304}
	return []param{
		{"queueThresholdTokens", "4194304", d.number(&p.scorer.Threshold, 1, 1e15)},
		{"inFlightLoadProducerName", "", d.producer(p)},
	}
}

func prefixScorer(d *document, p *plugin) []param {
	p.scorer = scheduler.Scorer{Kind: p.kind.name, MatchLengthTokens: 8192}
	return []param{
		{"matchLengthWeight", "0", d.number(&p.scorer.MatchLengthWeight, 0, 1)},
		{"matchLengthScaleTokens", "8192", d.whole(&p.scorer.MatchLengthTokens, 1)},
		{"prefixMatchInfoProducerName", "", d.producer(p)},
	}
}

func (d *document) texts(to *[]string) func(at) {
	return d.list(func(a at) {
		var s string
		d.text(&s)(a)
		if !slices.Contains(*to, s) {
			*to = append(*to, s)
		}
	})
}
