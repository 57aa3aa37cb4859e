package pickerconfig

import (
	"cmp"
	"math"
	"slices"
	"time"

	"weir/scheduler"
)

// flowControl is the section of that name. A nil duration was not given.
type flowControl struct {
	at                   at
	maxBytes, maxQueued  int64
	ttl, noEndpointTTL   *time.Duration
	bands                []*band
	normal, negative     *band
	usageLimit, detector ref
	eviction             bool
}

// band is one of priorityBands, or one of the two that others are made like.
type band struct {
	at                  at
	maxBytes, maxQueued int64
	ttl                 *time.Duration
	fairness, ordering  ref
	config              scheduler.BandConfig
}

func (d *document) readFlowControl(a at) {
	f := &d.flow
	f.at = a
	template := func(to **band) func(at) {
		return func(a at) { *to = d.readBand(a) }
	}
	d.object(a,
		field{"maxBytes", d.quantity(&f.maxBytes)},
		field{"maxRequests", d.quantity(&f.maxQueued)},
		field{"defaultRequestTTL", d.ttl(&f.ttl)},
		field{"noEndpointRequestTTL", d.ttl(&f.noEndpointTTL)},
		field{"defaultPriorityBand", template(&f.normal)},
		field{"defaultNegativePriorityBand", template(&f.negative)},
		field{"priorityBands", d.list(func(a at) { f.bands = append(f.bands, d.readBand(a)) })},
		field{"usageLimitPolicyPluginRef", d.nameRef(&f.usageLimit)},
		field{"saturationDetector", d.readRef(&f.detector, "pluginRef")},
		field{"enableEviction", d.boolean(&f.eviction)},
		field{"-endpointGatePluginRef", func(a at) {
			d.fail(a, "is not supported: an endpoint's own max_concurrency is its gate")
		}},
	)
	seen, shares := map[int]bool{}, 0.0
	for _, b := range f.bands {
		if seen[b.config.Priority] {
			d.fail(b.at, "two bands have the priority %d", b.config.Priority)
		}
		seen[b.config.Priority] = true
		if shares += b.config.MinShare; shares >= 1 && shares-b.config.MinShare < 1 {
			d.fail(b.at, "the bands' weirMinShare come to %g; together they must be less than 1", shares)
		}
	}
	for _, b := range []*band{f.normal, f.negative} {
		if b != nil && b.config.MinShare > 0 {
			d.fail(b.at, "weirMinShare is for a band of priorityBands: how many are made like this one is not known")
		}
	}
}

func (d *document) ttl(to **time.Duration) func(at) {
	return func(a at) {
		*to = new(time.Duration)
		d.duration(*to, 0)(a)
	}
}

func (d *document) readBand(a at) *band {
	b := &band{at: a}
	c := &b.config
	c.Fairness.Policy, c.Ordering = scheduler.GlobalStrict, scheduler.FirstCome
	d.object(a,
		field{"priority", d.whole(&c.Priority, math.MinInt32)},
		field{"maxBytes", d.quantity(&b.maxBytes)},
		field{"maxRequests", d.quantity(&b.maxQueued)},
		field{"defaultRequestTTL", d.ttl(&b.ttl)},
		field{"fairnessPolicyRef", d.nameRef(&b.fairness)},
		field{"orderingPolicyRef", d.nameRef(&b.ordering)},
		field{"weirMaxFlowRequests", d.whole(&c.MaxFlowQueued, 1)},
		field{"weirMinShare", d.number(&c.MinShare, 0, 1)},
	)
	c.MaxQueued, c.MaxBytes = count(b.maxQueued), b.maxBytes
	if b.ttl != nil {
		c.TTL = limit(*b.ttl)
	}
	d.refer(b.fairness, fairness, func(p *plugin) { c.Fairness = p.fairness })
	d.refer(b.ordering, ordering, func(p *plugin) { c.Ordering = p.ordering })
	return b
}

// count is a quantity as a number of requests.
func count(n int64) int { return int(min(n, unbounded)) }

// limit is a TTL as the scheduler reads it: 0 in a document sets none.
func limit(ttl time.Duration) time.Duration {
	if ttl == 0 {
		return -1
	}
	return ttl
}

func (d *document) readOurs(a at) {
	o := &d.ours
	d.object(a,
		field{"maxConcurrency", d.whole(&o.maxConcurrency, 1)},
		field{"maxFlowRequests", d.whole(&o.maxFlowRequests, 1)},
		field{"outputTokenCost", d.whole(&o.outputTokenCost, 1)},
		field{"slowStart", func(a at) {
			d.duration(&o.slowStart, 0)(a)
			o.slowStart = limit(o.slowStart) // 0 is none
		}},
		field{"overloadPause", d.duration(&o.overloadPause, time.Millisecond)},
		field{"breaker", func(a at) {
			d.object(a,
				field{"faults", d.whole(&o.breaker.Faults, 1)},
				field{"backoff", d.duration(&o.breaker.Backoff, time.Millisecond)},
				field{"maxBackoff", d.duration(&o.breaker.MaxBackoff, time.Millisecond)},
			)
		}},
	)
}

// result is what the document means, once its references are resolved.
func (d *document) result() *Document {
	o := &d.ours
	out := &Document{PropagatePriority: d.propagate, Config: scheduler.Config{
		MaxConcurrency: o.maxConcurrency, MaxFlowQueued: o.maxFlowRequests,
		OutputCost: o.outputTokenCost, Breaker: o.breaker, OverloadPause: o.overloadPause,
		Profile: d.picking(),
	}}
	out.Config.Profile.SlowStart = o.slowStart
	if d.gate {
		d.flowControlled(out)
	} else {
		d.unqueued(out)
	}
	for _, p := range d.plugins {
		switch {
		case p.kind.role == admitter:
			out.Config.Shed = p.shed
		case p.used, p.kind.auto && p.name == p.kind.name: // the default is always in use
		case p.kind.role&(producer|builtIn) == 0:
			d.warn(p.at, "nothing refers to it")
		}
	}
	return out
}

// flowControlled sets what the feature gate flowControl switches on.
func (d *document) flowControlled(out *Document) {
	f, c := &d.flow, &out.Config
	c.MaxBytes = f.maxBytes
	c.MaxQueued = cmp.Or(count(f.maxQueued), unbounded)
	c.TTL = time.Minute
	if f.ttl != nil {
		c.TTL = limit(*f.ttl)
	}
	c.NoEndpointTTL = c.TTL
	if f.noEndpointTTL != nil {
		c.NoEndpointTTL = *f.noEndpointTTL
	}
	if c.NoEndpointTTL <= 0 { // no limit, for which the scheduler has no word
		c.NoEndpointTTL = forever
	}
	c.DefaultBand = defaultBand()
	if f.normal != nil {
		c.DefaultBand = f.normal.config
	}
	c.DefaultBand.Priority = 0
	if f.negative != nil {
		negative := f.negative.config
		negative.Priority = 0
		c.DefaultNegativeBand = &negative
	}
	for _, b := range f.bands {
		c.Bands = append(c.Bands, b.config)
	}
	slices.SortFunc(c.Bands, func(a, b scheduler.BandConfig) int { return cmp.Compare(b.Priority, a.Priority) })
	for _, b := range c.Bands {
		out.Priorities = append(out.Priorities, b.Priority)
	}
	c.BandZero = true
	c.Eviction = f.eviction
	c.UsageLimit = d.limit()
	d.detect(c)
}

func defaultBand() scheduler.BandConfig {
	return scheduler.BandConfig{Fairness: scheduler.Fairness{Policy: scheduler.GlobalStrict}, Ordering: scheduler.FirstCome}
}

func (d *document) limit() scheduler.UsageLimit {
	if d.flow.usageLimit.name == "" {
		return scheduler.UsageLimit{Kind: scheduler.StaticLimit}
	}
	p := d.byName[d.flow.usageLimit.name]
	if p.limit.MinCeiling < 0 {
		d.fail(p.at, "minCeiling is missing")
	}
	if p.limit.MinCeiling == 0 && p.limit.Kind == scheduler.PriorityHoldback {
		d.fail(p.at, "minCeiling is 0: no pool is emptier than that, so that the lowest band would never be dispatched; give it more")
	}
	if p.limit.MinCeiling > p.limit.MaxCeiling {
		d.fail(p.at, "minCeiling is above maxCeiling")
	}
	return p.limit
}

// gateDetector is the instance that says how full the pool is.
func (d *document) gateDetector() *plugin {
	r := d.flow.detector
	if r.name == "" {
		r = d.detector
	}
	if r.name != "" {
		return d.byName[r.name]
	}
	if p := d.byName[string(scheduler.UtilizationDetector)]; p != nil && p.kind.role&detector != 0 {
		p.used = true
		return p
	}
	return d.instance(d.kinds[string(scheduler.UtilizationDetector)], string(scheduler.UtilizationDetector))
}

// detect sets how saturation is measured. What an endpoint may have at once is
// the detector's limit, where it counts requests; where tokens alone count, no
// number of requests is too many.
func (d *document) detect(c *scheduler.Config) {
	gate := d.gateDetector()
	if gate == nil {
		return
	}
	gate.used = true
	c.Detector = gate.detector
	if o := d.first(loadProducer); o != nil {
		c.Detector.OutputTokens, c.Detector.OutputRatio, c.Detector.MaxOutput = o.detector.OutputTokens, o.detector.OutputRatio, o.detector.MaxOutput
	}
	if c.MaxConcurrency != 0 {
		return
	}
	for _, p := range append([]*plugin{gate}, d.concurrencyFilters()...) {
		if p.detector.Kind != scheduler.ConcurrencyDetector {
			continue
		}
		n := p.maxConcurrency
		if p.detector.Mode == scheduler.CountTokens {
			n = unbounded
		}
		if c.MaxConcurrency != 0 && c.MaxConcurrency != n {
			d.fail(p.at, "another %s has another limit: an endpoint has one", p.kind.name)
		}
		c.MaxConcurrency = n
	}
}

func (d *document) concurrencyFilters() []*plugin {
	var all []*plugin
	for _, p := range d.plugins {
		if p.used && p.detector.Kind == scheduler.ConcurrencyDetector && d.inProfile(p) {
			all = append(all, p)
		}
	}
	return all
}

// unqueued is llm-d without the feature gate: requests go out at once however
// busy the endpoints are, and negative priorities are refused when the pool is
// saturated.
func (d *document) unqueued(out *Document) {
	c := &out.Config
	c.MaxConcurrency = cmp.Or(c.MaxConcurrency, unbounded)
	c.NoEndpointTTL = -1
	c.DefaultBand = defaultBand()
	gate := d.gateDetector()
	if gate == nil {
		return
	}
	gate.used = true
	if gate.detector.Kind != scheduler.UtilizationDetector {
		d.fail(d.root, "%s needs the feature gate flowControl", gate.kind.name)
		return
	}
	const step = 1e6 // a power that is 0 below saturation and 1 from there on
	c.Shed = scheduler.Shed{Enabled: true, QueueDepth: gate.detector.QueueDepth, KVUsage: gate.detector.KVUsage, Power: step, K: 1}
	d.warn(d.root, "featureGates lacks flowControl: nothing waits for a place, as in llm-d; flowControl: but its saturationDetector has no effect")
}
