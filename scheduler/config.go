package scheduler

import (
	"cmp"
	"time"
)

// Config bounds an Embedded scheduler. Zero fields take the default that is
// named with them.
type Config struct {
	// MaxConcurrency is how many leases an endpoint may have that names no
	// limit of its own (64).
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
	ID             string // unique in the pool
	URL            string // base URL, without a trailing slash or /v1
	MaxConcurrency int    // leases at once; 0 takes the pool's
	Draining       bool   // finishes what runs and takes nothing new
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
	return c
}
