package pickerconfig

import (
	"math"
	"time"

	"weir/scheduler"
)

// staleAfter is where a load counts as unknown. llm-d's 200 ms are four of its
// readings; a loaded gateway may well miss so many.
const staleAfter = 6 * time.Second

// tiny is a number that has no effect where 0 would mean the default.
const tiny = 1e-12

// kinds is every type that a document may name, in the order in which people
// read of them.
func kinds() []*kind {
	var all []*kind
	for _, some := range [][]*kind{flowKinds(), detectorKinds(), filterKinds(), scorerKinds(), pickerKinds(), splitKinds(), producerKinds(), builtInKinds()} {
		all = append(all, some...)
	}
	return all
}

func flowKinds() []*kind {
	order := func(_ *document, p *plugin) []param {
		p.ordering = scheduler.Ordering(p.kind.name)
		return nil
	}
	fair := func(_ *document, p *plugin) []param {
		p.fairness = scheduler.Fairness{Policy: scheduler.FairnessPolicy(p.kind.name)}
		return nil
	}
	return []*kind{
		{name: string(scheduler.GlobalStrict), role: fairness, auto: true, params: fair},
		{name: string(scheduler.RoundRobin), role: fairness, params: fair},
		{name: "program-aware-fairness", role: fairness, params: programAware, note: "a program is a flow: what the plan's `fairness` names"},
		{name: string(scheduler.VirtualTokenCounter), role: fairness, params: tokenFairness, note: "Weir's own: shares by weight, in tokens; inside a flow, sessions by turn"},
		{name: string(scheduler.FirstCome), role: ordering, auto: true, params: order},
		{name: string(scheduler.Earliest), role: ordering, params: order},
		{name: string(scheduler.SLODeadline), role: ordering, params: order},
		{name: string(scheduler.StaticLimit), role: usageLimit, auto: true, params: static},
		{name: string(scheduler.PriorityHoldback), role: usageLimit, params: holdback},
		{name: string(scheduler.SoftReflective), role: usageLimit, params: func(_ *document, p *plugin) []param {
			p.limit = scheduler.UsageLimit{Kind: scheduler.SoftReflective}
			return nil
		}},
		{name: "probabilistic-admitter", role: admitter, params: probabilistic, note: "refuses with 503 before it queues, where llm-d answers 500 after"},
	}
}

func programAware(d *document, p *plugin) []param {
	p.fairness = scheduler.Fairness{Policy: scheduler.LeastAttainedService}
	f := &p.fairness
	strategy := ""
	return []param{
		{"strategy", "las", func(a at) {
			choice(d.reader, &strategy, "las", "turn-priority")(a)
			if strategy == "turn-priority" {
				f.Policy = scheduler.TurnPriority
			}
		}},
		{"lasWeightService", "0.8", d.notZero(&f.ServiceWeight)},
		{"lasWeightHeadWait", "0.2", d.notZero(&f.HeadWaitWeight)},
		{"lasHalfLifeSeconds", "60; 0: never", func(a at) {
			d.seconds(&f.HalfLife)(a)
			if f.HalfLife == 0 {
				f.HalfLife = -1
			}
		}},
		{"turnPriorityTimeWeight", "0.5", d.notZero(&f.TurnTimeWeight)},
		{"turnPriorityInactivitySeconds", "120", d.inactivity(&f.TurnInactivity)},
		{"evictionTtlSeconds", "no effect", d.noEffect("an idle flow is forgotten when its state says no more")},
		{"evictionSweepSeconds", "no effect", d.noEffect("an idle flow is forgotten when its state says no more")},
	}
}

func tokenFairness(d *document, p *plugin) []param {
	p.fairness = scheduler.Fairness{Policy: scheduler.VirtualTokenCounter}
	f := &p.fairness
	return []param{
		{"turnTimeWeight", "0.5", d.notZero(&f.TurnTimeWeight)},
		{"turnInactivitySeconds", "120", d.inactivity(&f.TurnInactivity)},
		{"ignoreTurns", "false", d.boolean(&f.IgnoreTurns)},
	}
}

func static(d *document, p *plugin) []param {
	p.limit = scheduler.UsageLimit{Kind: scheduler.StaticLimit}
	return []param{{"threshold", "1", func(a at) {
		ceiling := 1.0
		d.number(&ceiling, tiny, 100)(a)
		if ceiling != 1 { // one ceiling for all is a holdback without a slope
			p.limit = scheduler.UsageLimit{Kind: scheduler.PriorityHoldback, MinCeiling: ceiling, MaxCeiling: ceiling}
		}
	}}}
}

func holdback(d *document, p *plugin) []param {
	p.limit = scheduler.UsageLimit{Kind: scheduler.PriorityHoldback, MinCeiling: -1, MaxCeiling: 1}
	l := &p.limit
	var domain string
	return []param{
		{"minCeiling", "must be given", d.number(&l.MinCeiling, 0, 1)},
		{"maxCeiling", "1", d.number(&l.MaxCeiling, tiny, 1)},
		{"shape", "linear", choice(d.reader, new(string), "linear")},
		{"domain", "rank", func(a at) {
			choice(d.reader, &domain, "rank", "value")(a)
			l.ByValue = domain == "value"
		}},
	}
}

func probabilistic(d *document, p *plugin) []param {
	p.shed = scheduler.Shed{Enabled: true, QueueDepth: 5, KVUsage: 0.8, Power: 5, K: 300}
	s := &p.shed
	return []param{
		{"queueDepthThreshold", "5", d.whole(&s.QueueDepth, 1)},
		{"kvCacheUtilThreshold", "0.8", d.number(&s.KVUsage, tiny, 1)},
		{"power", "5", d.number(&s.Power, tiny, 1e6)},
		{"k", "300", d.number(&s.K, tiny, 1e12)},
	}
}

func detectorKinds() []*kind {
	return []*kind{
		{name: string(scheduler.ConcurrencyDetector), role: detector | filter, params: concurrency},
		{name: string(scheduler.UtilizationDetector), role: detector | filter, auto: true, params: utilization},
	}
}

func concurrency(d *document, p *plugin) []param {
	p.maxConcurrency = 100
	p.detector = scheduler.Detector{Kind: scheduler.ConcurrencyDetector, Mode: scheduler.CountRequests, MaxTokens: 1_000_000}
	c := &p.detector
	return []param{
		{"maxConcurrency", "100, of each endpoint that names none", d.whole(&p.maxConcurrency, 1)},
		{"concurrencyMode", "requests", choice(d.reader, &c.Mode, scheduler.CountRequests, scheduler.CountTokens, scheduler.CountHybrid)},
		{"maxTokenConcurrency", "1000000", d.whole(&c.MaxTokens, 1)},
		{"headroom", "0", d.number(&c.Headroom, 0, 1000)},
		{"inFlightLoadProducerName", "", d.producer(p)},
	}
}

func utilization(d *document, p *plugin) []param {
	p.detector = scheduler.Detector{Kind: scheduler.UtilizationDetector, QueueDepth: 5, KVUsage: 0.8, Staleness: staleAfter}
	u := &p.detector
	var policy string
	return []param{
		{"queueDepthThreshold", "5", d.whole(&u.QueueDepth, 1)},
		{"kvCacheUtilThreshold", "0.8", d.number(&u.KVUsage, tiny, 1)},
		{"metricsStalenessThreshold", "6s", d.duration(&u.Staleness, 1)},
		{"headroom", "0", d.number(&u.Headroom, 0, 1000)},
		{"stalenessPolicy", "ignore", func(a at) {
			choice(d.reader, &policy, "saturated", "ignore")(a)
			u.StaleIsFull = policy == "saturated"
		}},
	}
}

func pickerKinds() []*kind {
	params := func(d *document, p *plugin) []param {
		p.picker = scheduler.Picker{Kind: scheduler.PickerKind(p.kind.name), MaxEndpoints: 1}
		return []param{{"maxNumOfEndpoints", "1", d.whole(&p.picker.MaxEndpoints, 1)}}
	}
	return []*kind{
		{name: string(scheduler.MaxScore), role: picker, auto: true, params: params},
		{name: string(scheduler.WeightedRandom), role: picker, params: params},
		{name: string(scheduler.Random), role: picker, params: params},
	}
}

func producerKinds() []*kind {
	return []*kind{
		{name: prefixProducer, role: producer, auto: true, params: approxPrefix},
		{name: loadProducer, role: producer, auto: true, params: inflightLoad},
		{name: tokenProducer, role: producer | builtIn, params: tokens, note: "for precise-prefix-cache-producer; where it is late, approx-prefix-cache-producer decides"},
		{name: preciseProducer, role: producer | builtIn, params: precise, note: "follows the endpoints that have kv_events; of the others, approx-prefix-cache-producer"},
	}
}

const (
	prefixProducer = "approx-prefix-cache-producer"
	loadProducer   = "inflight-load-producer"
)

func approxPrefix(d *document, p *plugin) []param {
	autoTune, block, blocks, tokens, lru := true, 16, 2048, 131_072, 31_250
	settle := func(read func(at)) func(at) {
		return func(a at) {
			read(a)
			p.prefix = scheduler.PrefixCache{MaxTokens: tokens, EndpointBlocks: lru}
			size := max(block, 64)
			if !autoTune {
				p.prefix.BlockTokens = size
			}
			switch {
			case tokens > 0:
			case blocks > 0:
				p.prefix.MaxTokens = int(min(int64(blocks)*int64(size), unbounded))
			default:
				p.prefix.MaxTokens = unbounded
			}
		}
	}
	settle(func(at) {})(at{})
	return []param{
		{"autoTune", "true", settle(d.boolean(&autoTune))},
		{"blockSizeTokens", "16; at least 64 are used", settle(d.whole(&block, 1))},
		{"maxPrefixTokensToMatch", "131072; 0: maxPrefixBlocksToMatch bounds it", settle(d.whole(&tokens, 0))},
		{"maxPrefixBlocksToMatch", "2048; 0: no bound", settle(d.whole(&blocks, 0))},
		{"lruCapacityPerServer", "31250, of an endpoint that doesn't say", settle(d.whole(&lru, 1))},
		{"-blockSize", "", func(a at) { d.fail(a, "counted characters: write blockSizeTokens") }},
	}
}

func inflightLoad(d *document, p *plugin) []param {
	p.detector = scheduler.Detector{OutputRatio: 1.5}
	o := &p.detector
	return []param{
		{"addEstimatedOutputTokens", "false", d.boolean(&o.OutputTokens)},
		{"outputRatio", "1.5", d.number(&o.OutputRatio, tiny, 1000)},
		{"maxEstimatedOutputTokens", "no bound", d.whole(&o.MaxOutput, 1)},
		{"prefixMatchInfoProducerName", "", d.producer(p)},
		{"syncCrossReplicaState", "false", func(a at) {
			sync := false
			d.boolean(&sync)(a)
			if sync {
				d.notShared(a)
			}
		}},
	}
}

// notZero reads a number whose 0 is meant.
func (r *reader) notZero(to *float64) func(at) {
	return func(a at) {
		r.number(to, 0, math.MaxFloat32)(a)
		if *to == 0 {
			*to = tiny
		}
	}
}

// inactivity reads after how many seconds a session counts as new; 0: at once.
func (r *reader) inactivity(to *time.Duration) func(at) {
	return func(a at) {
		r.seconds(to)(a)
		*to = max(*to, 1)
	}
}

// noEffect accepts a parameter that means nothing here.
func (r *reader) noEffect(why string) func(at) {
	return func(a at) { r.warn(a, "has no effect: %s", why) }
}

// producer reads the name of an instance whose data the plugin reads.
func (d *document) producer(p *plugin) func(at) {
	return func(a at) {
		var r ref
		d.nameRef(&r)(a)
		p.producers = append(p.producers, r)
	}
}
