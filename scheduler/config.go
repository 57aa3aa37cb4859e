package scheduler

import (
	"cmp"
	"slices"
	"time"
)

// Config bounds an Embedded scheduler. Zero fields take the default that is
// named with them.
type Config struct {
	// MaxConcurrency is how many leases an endpoint may have that names no
	// limit of its own (64), but for Profile.Headroom.
	MaxConcurrency int

	// Requests that may wait in the pool (10,000), in one band (5,000) and in
	// one flow (1,000). A negative limit lets none wait.
	MaxQueued     int
	MaxBandQueued int
	MaxFlowQueued int

	// TTL is how long a request may wait while the pool has endpoints (60 s).
	// A negative one sets no limit: the caller's context is then the only one.
	TTL time.Duration
	// NoEndpointTTL is how long a request may wait while the pool has none, or
	// only unhealthy ones (as TTL). A negative one refuses at once.
	NoEndpointTTL time.Duration

	// OutputCost is what an output token counts in a flow's share, in input
	// tokens (2: decoding occupies an endpoint for longer than prefilling).
	OutputCost int

	// MaxBytes bounds the bodies that wait in the pool, in bytes; 0: no bound.
	MaxBytes int64

	// BandZero has there be a band of priority 0, as there always is in llm-d,
	// whether Bands names it or not: usage-limit policies spread their ceilings
	// over all bands that there are.
	BandZero bool

	// Bands are the priorities that have policies of their own. Others take
	// DefaultBand, negative ones DefaultNegativeBand where that is set. The
	// priority of these two says nothing.
	Bands               []BandConfig
	DefaultBand         BandConfig
	DefaultNegativeBand *BandConfig

	Detector   Detector   // says how full the pool is
	UsageLimit UsageLimit // says how full it may be for each band
	Shed       Shed       // refuses negative bands by chance before the pool is full
	Eviction   bool       // takes endpoints back from negative bands when a higher one is held up

	Profile Profile // which endpoint takes a request

	// Decisions is how many decisions are remembered (4,096); a negative number
	// remembers none.
	Decisions int
	// Seed is where chance begins, so that a run can be repeated; 0 takes 1.
	Seed uint64

	// Breaker takes an endpoint out that keeps failing.
	Breaker Breaker
	// OverloadPause is how long an endpoint rests that said it is full (500 ms,
	// doubled up to 16 times that while it says so again).
	OverloadPause time.Duration
}

// Breaker says when an endpoint's circuit opens. Zero fields take defaults.
type Breaker struct {
	Faults     int           // this many in a row open it (3)
	Backoff    time.Duration // until one request may try it again (1 s); doubles with each failed trial
	MaxBackoff time.Duration // bound of Backoff (30 s)
}

// Endpoint is one model server as the scheduler sees it.
type Endpoint struct {
	ID             string            // unique in the pool
	URL            string            // base URL, without a trailing slash or /v1
	MaxConcurrency int               // leases at once; 0 takes the pool's
	MaxTokens      int               // uncached prompt tokens at once; 0 takes the detector's
	Speed          float64           // prompt tokens per second that it prefills, where known; 0: as the others
	CacheBlocks    int               // blocks of its prefix cache, where known; 0: as its metrics say
	Labels         map[string]string // engine, accelerator, role, revision and the like, under llm-d's names
	Draining       bool              // finishes what runs and takes nothing new
	// Ranks is how many data-parallel ranks the server has, each with a load and
	// a prefix cache of its own; 0 counts as 1. Each is a place like an endpoint,
	// with the limits above, named "<id>#<rank>"; health and circuit are the
	// server's. A request for one of several names it in a header.
	Ranks int
}

// Load is what an engine last said of itself.
type Load struct {
	Running   int       `json:"running"`    // requests in the batch
	Waiting   int       `json:"waiting"`    // requests in the engine's own queue
	KVUsage   float64   `json:"kv_usage"`   // part of the KV cache in use, 0 to 1
	BlockSize int       `json:"block_size"` // tokens of a cache block; 0 when it doesn't say
	Blocks    int       `json:"blocks"`     // blocks of the cache; 0 when it doesn't say
	At        time.Time `json:"at"`         // when it was read
}

// Divided is the config of one of so many schedulers that share the pool without
// knowing of each other: with its part of all that may run or wait, one at
// least.
func (c Config) Divided(replicas int) Config {
	if replicas <= 1 {
		return c
	}
	c = c.withDefaults()
	part := func(n *int) { *n = Part(*n, replicas) }
	part(&c.MaxConcurrency)
	part(&c.MaxQueued)
	part(&c.MaxBandQueued)
	part(&c.MaxFlowQueued)
	part(&c.Detector.MaxTokens)
	if c.MaxBytes > 0 {
		c.MaxBytes = max(c.MaxBytes/int64(replicas), 1)
	}
	band := func(b BandConfig) BandConfig {
		part(&b.MaxQueued)
		part(&b.MaxFlowQueued)
		b.MaxBytes = cmp.Or(b.MaxBytes, defaultBandBytes) / int64(replicas)
		return b
	}
	c.DefaultBand, c.Bands = band(c.DefaultBand), slices.Clone(c.Bands)
	if c.DefaultNegativeBand != nil {
		negative := band(*c.DefaultNegativeBand)
		c.DefaultNegativeBand = &negative
	}
	for i, b := range c.Bands {
		c.Bands[i] = band(b)
	}
	return c
}

// Part is one of so many parts of a limit, one at least; what sets none, or
// lets nothing through, stays as it is.
func Part(limit, of int) int {
	if limit <= 0 {
		return limit
	}
	return max(limit/max(of, 1), 1)
}

func (c Config) withDefaults() Config {
	c.MaxConcurrency = cmp.Or(c.MaxConcurrency, 64)
	c.MaxQueued = cmp.Or(c.MaxQueued, 10_000)
	c.MaxBandQueued = cmp.Or(c.MaxBandQueued, 5_000)
	c.MaxFlowQueued = cmp.Or(c.MaxFlowQueued, 1_000)
	c.TTL = cmp.Or(c.TTL, time.Minute)
	c.NoEndpointTTL = cmp.Or(c.NoEndpointTTL, c.TTL)
	c.OutputCost = cmp.Or(c.OutputCost, 2)
	c.Breaker.Faults = cmp.Or(c.Breaker.Faults, 3)
	c.Breaker.Backoff = cmp.Or(c.Breaker.Backoff, time.Second)
	c.Breaker.MaxBackoff = cmp.Or(c.Breaker.MaxBackoff, 30*time.Second)
	c.OverloadPause = cmp.Or(c.OverloadPause, 500*time.Millisecond)
	c.Decisions = cmp.Or(c.Decisions, 4096)
	c.Seed = cmp.Or(c.Seed, 1)
	c.Detector = c.Detector.withDefaults()
	c.UsageLimit.Kind = cmp.Or(c.UsageLimit.Kind, StaticLimit)
	c.UsageLimit.MaxCeiling = cmp.Or(c.UsageLimit.MaxCeiling, 1)
	c.Shed.QueueDepth = cmp.Or(c.Shed.QueueDepth, 5)
	c.Shed.KVUsage = cmp.Or(c.Shed.KVUsage, 0.8)
	c.Shed.Power = cmp.Or(c.Shed.Power, 5)
	c.Shed.K = cmp.Or(c.Shed.K, 300)
	return c
}

func (d Detector) withDefaults() Detector {
	d.Kind = cmp.Or(d.Kind, ConcurrencyDetector)
	d.Mode = cmp.Or(d.Mode, CountRequests)
	d.MaxTokens = cmp.Or(d.MaxTokens, 1_000_000)
	d.OutputRatio = cmp.Or(d.OutputRatio, 1.5)
	d.QueueDepth = cmp.Or(d.QueueDepth, 5)
	d.KVUsage = cmp.Or(d.KVUsage, 0.8)
	d.Staleness = cmp.Or(d.Staleness, 6*time.Second)
	return d
}
