package schedulertest

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"weir/scheduler"
)

// trial is one test of one scheduler: all that was sent to it and what came of
// it, which says how many wait and run without asking the scheduler.
type trial struct {
	*testing.T
	h         Harness
	s         Subject
	endpoints []scheduler.Endpoint
	calls     []*call
	answers   atomic.Int64
	closed    bool
}

func begin(t *testing.T, h Harness, p Pool) *trial {
	t.Helper()
	return &trial{T: t, h: h, s: h.New(t, p), endpoints: p.Endpoints}
}

// call is a request that was sent, and its answer.
type call struct {
	scheduler.Lease // nil when refused

	id     string
	flow   scheduler.Flow
	cancel context.CancelFunc
	done   chan struct{} // closed with the answer
	err    error
	after  time.Duration // how long the answer took
	nth    int64         // which of all answers it was
	ended  bool
}

// send schedules the request on a goroutine that ends with the answer.
func (t *trial) send(r scheduler.Request) *call {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	c := &call{id: r.ID, flow: r.Flow, cancel: cancel, done: make(chan struct{})}
	began := time.Now()
	go func() {
		defer close(c.done)
		c.Lease, c.err = t.s.Schedule(ctx, r)
		c.after, c.nth = time.Since(began), t.answers.Add(1)
	}()
	t.calls = append(t.calls, c)
	return c
}

// sendAll sends so many, one after the other.
func (t *trial) sendAll(n int, fairnessID string, band int) []*call {
	t.Helper()
	calls := make([]*call, n)
	for i := range calls {
		calls[i] = t.send(request(fairnessID, fairnessID, band, i))
		t.h.Settle()
	}
	return calls
}

func (c *call) answered() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// live reports whether the call holds a lease.
func (c *call) live() bool { return c.answered() && c.err == nil && !c.ended }

// complete ends the call's lease.
func (c *call) complete() { c.finish(completed()) }

func (c *call) finish(o scheduler.Outcome) {
	c.ended = true
	c.End(o)
}

// granted waits for the call's lease.
func (t *trial) granted(c *call) *call {
	t.Helper()
	<-c.done
	if c.err != nil {
		t.Fatalf("request %s was refused: %v", c.id, c.err)
	}
	return c
}

// refused waits for the call's refusal, which has one of the reasons, and
// returns it.
func (t *trial) refused(c *call, reasons ...scheduler.Reason) *scheduler.Refusal {
	t.Helper()
	<-c.done
	refusal, ok := errors.AsType[*scheduler.Refusal](c.err)
	if !ok || !slices.Contains(reasons, refusal.Reason) {
		t.Fatalf("request %s got %v, want a refusal as %v", c.id, c.err, reasons)
	}
	if c.Lease != nil {
		t.Errorf("request %s was refused and holds a lease", c.id)
	}
	return refusal
}

// retryable checks that a refusal says when to come back.
func (t *trial) retryable(r *scheduler.Refusal) {
	t.Helper()
	if r.RetryAfter < time.Second || r.RetryAfter > time.Minute {
		t.Errorf("%s: retry after %v, want 1 s to 60 s", r.Reason, r.RetryAfter)
	}
}

func (t *trial) count(is func(*call) bool) int {
	n := 0
	for _, c := range t.calls {
		if is(c) {
			n++
		}
	}
	return n
}

// expect lets everything come to rest and checks how many run and wait.
func (t *trial) expect(live, queued int) {
	t.Helper()
	var gotLive, gotQueued int
	t.until(func() bool {
		gotLive = t.count((*call).live)
		gotQueued = t.count(func(c *call) bool { return !c.answered() })
		if t.h.Overshoots && gotLive == live+1 { // for a while
			return gotQueued == queued-1
		}
		return gotLive == live && gotQueued == queued
	})
	if over := gotLive - live; gotLive+gotQueued != live+queued || over != 0 && (over != 1 || !t.h.Overshoots) {
		t.Fatalf("%d hold a lease and %d wait, want %d and %d", gotLive, gotQueued, live, queued)
	}
	if n, ok := t.s.(Counter); ok && (n.Live() != live || n.Queued() != queued) {
		t.Fatalf("the scheduler counts %d leases and %d waiting, want %d and %d", n.Live(), n.Queued(), live, queued)
	}
}

// until lets everything come to rest, and again where the clock is real and a
// rest may have come too soon.
func (t *trial) until(so func() bool) {
	for began := time.Now(); ; {
		t.h.Settle()
		if so() || time.Since(began) >= t.h.Slack {
			return
		}
	}
}

// places is how many leases the pool may give out.
func (t *trial) places() int {
	n := 0
	for _, p := range t.endpoints {
		n += p.MaxConcurrency
	}
	return n
}

func (t *trial) setEndpoints(endpoints []scheduler.Endpoint) {
	t.endpoints = endpoints
	t.s.SetEndpoints(endpoints)
}

// occupy fills the pool.
func (t *trial) occupy() []*call {
	t.Helper()
	calls := make([]*call, t.places())
	for i := range calls {
		calls[i] = t.granted(t.send(request("occupies", "occupies", 0, i)))
	}
	return calls
}

// empty checks that nothing is left: no call without its answer, no lease, and
// every place of the pool is free again, for requests that need not wait.
func (t *trial) empty() {
	t.Helper()
	t.expect(0, 0)
	if t.closed {
		return
	}
	calls := t.occupy()
	for _, c := range calls {
		if c.after > t.h.Slack {
			t.Errorf("a place of an empty pool came after %v", c.after)
		}
		c.complete()
	}
	t.expect(0, 0)
}

// answer is a call that got its answer, for those who wait for several.
func (t *trial) answer(calls []*call) <-chan *call {
	done := make(chan *call)
	for _, c := range calls {
		go func() {
			<-c.done
			done <- c
		}()
	}
	return done
}

// drain ends the lease of every call as soon as it is granted.
func (t *trial) drain(calls []*call) {
	t.Helper()
	done := t.answer(calls)
	for range calls {
		if c := <-done; c.err == nil {
			c.complete()
		} else if reason(c.err) != scheduler.Cancelled {
			t.Errorf("request %s was refused: %v", c.id, c.err)
		}
	}
}

// order ends one lease after the other and returns the order in which the
// calls were granted theirs.
func (t *trial) order(calls []*call) []string {
	t.Helper()
	return t.first(len(calls), calls, func(*call) scheduler.Outcome { return completed() })
}

// first does so for the first n, each of which ends with its outcome.
func (t *trial) first(n int, calls []*call, outcome func(*call) scheduler.Outcome) []string {
	t.Helper()
	var ids []string
	for left := slices.Clone(calls); len(ids) < n; {
		at := -1
		t.until(func() bool {
			for i, c := range left {
				if c.answered() && (at < 0 || c.nth < left[at].nth) {
					at = i
				}
			}
			return at >= 0
		})
		if at < 0 {
			t.Fatalf("%d requests wait while nothing runs; so far %v", len(left), ids)
		}
		c := t.granted(left[at])
		left = slices.Delete(left, at, at+1)
		ids = append(ids, c.id)
		c.finish(outcome(c))
	}
	return ids
}

// abandon cancels what waits and ends what runs.
func (t *trial) abandon() {
	t.Helper()
	for _, c := range t.calls {
		c.cancel()
	}
	for _, c := range t.calls {
		if <-c.done; c.live() {
			c.finish(scheduler.Outcome{Result: scheduler.Abandoned})
		}
	}
}

func reason(err error) scheduler.Reason {
	if refusal, ok := errors.AsType[*scheduler.Refusal](err); ok {
		return refusal.Reason
	}
	return ""
}
