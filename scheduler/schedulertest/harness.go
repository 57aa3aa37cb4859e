// Package schedulertest is the contract of a scheduler.Scheduler in executable
// form: every implementation runs Test. It needs nothing of a scheduler but its
// answers, so that one behind a network can be tested as it is.
package schedulertest

import (
	"testing"
	"time"

	"weir/scheduler"
)

// Harness builds the scheduler under test and owns its clock.
type Harness struct {
	// New builds a scheduler for one test. It is closed when the test ends.
	New func(t *testing.T, p Pool) Subject
	// Run runs a test under the harness's clock: in a synctest bubble where
	// time is virtual, as it is where it is real.
	Run func(t *testing.T, test func(t *testing.T))
	// Settle returns when everything that was set going has come to rest:
	// every request that was sent is queued or has its answer.
	Settle func()
	// Slack is how much later than due a request may be told that its time is
	// up: 0 where time is virtual.
	Slack time.Duration
	// Can says what this scheduler does beyond what all must do.
	Can Capabilities
	// Overshoots excuses a scheduler that counts a request only after it has
	// placed it: now and then it gives out one place too many for a while.
	Overshoots bool
}

// Capabilities are promises that not every scheduler makes. What is promised
// is tested.
type Capabilities struct {
	ExactCaps    bool // no endpoint ever holds more than it may
	LeastLoaded  bool // the least loaded endpoint is taken
	Excludes     bool // excluded endpoints are avoided
	FlowCap      bool // a flow's queue has a cap of its own
	RequestTTL   bool // a request's own time limit shortens the pool's
	Turns        bool // the flows of a band take turns
	Weights      bool // they share by weight, in tokens
	Sessions     bool // inside a flow the deeper turn of a session goes first, without more for its flow
	Retries      bool // a request with QueuedAt goes to the head of its flow
	Shares       bool // bands have minimum shares
	Reservations bool // flows have reservations
	Eviction     bool // endpoints are taken back from negative bands
	HoldsEvicted bool // and given to nobody before their lease has ended
}

// Pool is what a test asks of the scheduler. Zero limits are too large to
// matter. Its bands are -10, 0, 1, 10 and 100.
type Pool struct {
	Endpoints     []scheduler.Endpoint // healthy, each with a MaxConcurrency
	MaxQueued     int
	MaxBandQueued int
	MaxFlowQueued int
	TTL           time.Duration   // also of a pool without endpoints
	Shares        map[int]float64 // minimum shares of bands, for those that can
	Eviction      bool            // for those that can
}

// Subject is a scheduler under test.
type Subject interface {
	scheduler.Scheduler
	SetEndpoints(endpoints []scheduler.Endpoint) // all of them healthy
	Close()
}

// Counter is a Subject that can tell what waits and runs. Where it is
// implemented it is held to what the answers say.
type Counter interface {
	Queued() int // requests that wait
	Live() int   // leases that have not ended
}
