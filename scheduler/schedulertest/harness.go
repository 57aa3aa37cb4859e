// Package schedulertest is the contract of a scheduler.Scheduler in executable
// form: every implementation runs Test.
package schedulertest

import (
	"context"
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
}

// Capabilities are promises that not every scheduler makes. What is promised
// is tested.
type Capabilities struct {
	Turns    bool // the flows of a band take turns
	Weights  bool // they share by weight, in tokens
	FlowCap  bool // a flow's queue has a cap of its own
	Retries  bool // a request with QueuedAt goes to the head of its flow
	Excludes bool // excluded endpoints are avoided
}

// Pool is what a test asks of the scheduler. Zero limits are too large to
// matter.
type Pool struct {
	Endpoints     []scheduler.Endpoint // healthy, each with a MaxConcurrency
	MaxQueued     int
	MaxBandQueued int
	MaxFlowQueued int
	TTL           time.Duration
}

// Subject is a scheduler under test.
type Subject interface {
	scheduler.Scheduler
	SetEndpoints(endpoints []scheduler.Endpoint) // all of them healthy
	Queued() int                                 // requests that wait
	Live() int                                   // leases that have not ended
	Close()
}

// call is a request that was sent, and its answer.
type call struct {
	id     string
	cancel context.CancelFunc
	done   chan struct{} // closed with the answer
	lease  scheduler.Lease
	err    error
	after  time.Duration // how long the answer took
}

// send schedules the request on a goroutine that ends with the answer.
func send(t *testing.T, s scheduler.Scheduler, r scheduler.Request) *call {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &call{id: r.ID, cancel: cancel, done: make(chan struct{})}
	began := time.Now()
	go func() {
		defer close(c.done)
		c.lease, c.err = s.Schedule(ctx, r)
		c.after = time.Since(began)
	}()
	return c
}

func (c *call) answered() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// granted waits for the call's lease.
func (c *call) granted(t *testing.T) scheduler.Lease {
	t.Helper()
	<-c.done
	if c.err != nil {
		t.Fatalf("request %s was refused: %v", c.id, c.err)
	}
	return c.lease
}

// request is one of a flow; ids are unique by their caller.
func request(id, fairnessID string, band int) scheduler.Request {
	return scheduler.Request{
		ID:          id,
		Flow:        scheduler.Flow{FairnessID: fairnessID, Band: band},
		Body:        []byte(`{"id":"` + id + `"}`),
		InputTokens: 100, OutputTokens: 100,
	}
}

func completed() scheduler.Outcome {
	return scheduler.Outcome{Result: scheduler.Completed, InputTokens: 100, OutputTokens: 100}
}

// endpoints returns n endpoints with so many leases each.
func endpoints(n, maxConcurrency int) []scheduler.Endpoint {
	all := make([]scheduler.Endpoint, n)
	for i := range all {
		id := string(rune('a' + i))
		all[i] = scheduler.Endpoint{ID: id, URL: "http://" + id + ".test", MaxConcurrency: maxConcurrency}
	}
	return all
}
