package pickerconfig

import (
	"time"

	"weir/scheduler"
)

const (
	tokenProducer   = "token-producer"
	preciseProducer = "precise-prefix-cache-producer"
)

// tokenTimeout is how long the engine's tokenizer may take by default, and
// mostTokenTimeout at most: meanwhile the request waits.
const (
	tokenTimeout     = 20 * time.Millisecond
	mostTokenTimeout = time.Second
)

func tokens(d *document, p *plugin) []param {
	p.precise = scheduler.PreciseCache{}
	const ours = "the engine's name in the catalogue is used"
	return []param{
		{"modelName", "no effect", d.noEffect(ours)},
		{"vllm", "asks an engine of the pool, not url; timeout 20ms", func(a at) {
			p.precise.TokenTimeout = tokenTimeout
			d.object(a,
				field{"url", d.noEffect("an endpoint of the pool is asked")},
				field{"timeout", func(a at) {
					d.duration(&p.precise.TokenTimeout, 1)(a)
					if p.precise.TokenTimeout > mostTokenTimeout {
						d.warn(a, "is taken as %s: requests wait for it", mostTokenTimeout)
						p.precise.TokenTimeout = mostTokenTimeout
					}
				}},
				field{"mmTimeout", d.noEffect("prompts with media are not asked for")},
			)
		}},
		{"estimate", "no effect", d.noEffect("a token is taken for 4 bytes of the prompt where no engine is asked")},
		{"-udsTokenizerConfig", "", func(a at) { d.fail(a, "is gone from llm-d: write vllm") }},
	}
}

func precise(d *document, p *plugin) []param {
	p.precise = scheduler.PreciseCache{Enabled: true, BlockTokens: 16}
	c := &p.precise
	speculative, ttl := false, 2*time.Second
	settle := func(read func(at)) func(at) {
		return func(a at) {
			if read(a); speculative {
				c.Speculative = ttl
			}
		}
	}
	return []param{
		{"tokenProcessorConfig", "blockSizeTokens 16, that of the engines", func(a at) {
			d.object(a,
				field{"blockSizeTokens", d.whole(&c.BlockTokens, 1)},
				field{"blockSize", d.whole(&c.BlockTokens, 1)}, // as older ones have it
				field{"hashSeed", d.noEffect("blocks are named by their tokens, whatever the engine's hash is")},
				field{"hashAlgorithm", d.noEffect("blocks are named by their tokens, whatever the engine's hash is")},
			)
		}},
		{"indexerConfig", "no effect", d.noEffect("the index is bounded by the pool's endpoints; weirHostLoad and weirStorageLoad weigh tiers")},
		{"kvEventsConfig", "no effect", d.noEffect("kv_events of each endpoint in the catalogue says where it publishes")},
		{"speculativeIndexing", "false", settle(d.boolean(&speculative))},
		{"speculativeTTL", "2s", settle(d.duration(&ttl, 1))},
		{"weirHostLoad", "5us, for a token from the host's memory", d.duration(&c.HostLoad, 1)},
		{"weirStorageLoad", "25us, for a token from storage", d.duration(&c.StorageLoad, 1)},
		{"weirPrefill", "63us, for a token that is computed", d.duration(&c.Prefill, 1)},
	}
}

// follow is whether and how endpoints' reports of their caches are followed. The
// scorers that don't name the producer go by what was sent, as in llm-d.
func (d *document) follow() (c scheduler.PreciseCache) {
	p, t := d.first(preciseProducer), d.first(tokenProducer)
	if p == nil {
		if t != nil && t.precise.TokenTimeout > 0 {
			d.warn(t.at, "has no effect without %s", preciseProducer)
		}
		return c
	}
	if t == nil || t.precise.TokenTimeout == 0 {
		d.fail(p.at, "needs a %s with vllm: blocks are known by the engine's own tokens", tokenProducer)
		return c
	}
	for _, s := range d.plugins {
		if s.scorer.Kind == "prefix-cache-scorer" {
			s.scorer.Approximate = !d.reads(s, preciseProducer)
		}
	}
	c = p.precise
	c.TokenTimeout = t.precise.TokenTimeout
	return c
}

// reads reports whether the plugin names an instance of a kind of producer.
func (d *document) reads(p *plugin, kind string) bool {
	for _, r := range p.producers {
		if q := d.byName[r.name]; q != nil && q.kind.name == kind {
			return true
		}
	}
	return false
}
