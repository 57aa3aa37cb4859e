//nolint:thelper,tparallel // these are the tests themselves: a failure should name their own line; who runs them is parallel
package schedulertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"weir/scheduler"
)

// Test checks that the harness's scheduler keeps the contract of
// scheduler.Scheduler and what the harness says that it can beyond.
func Test(t *testing.T, h Harness) {
	t.Helper()
	always := true
	for _, c := range []struct {
		name     string
		promised bool
		test     func(*testing.T, Harness)
	}{
		{"an attempt gets one lease with a target and the body", always, oneLease},
		{"ending a lease twice frees one place", always, endTwice},
		{"endpoints never hold more leases than they may", always, caps},
		{"the least loaded endpoint is taken", always, leastLoaded},
		{"a cancelled request leaves the queue and the next one goes", always, cancelQueued},
		{"a cancel that races with a dispatch leaks nothing", always, cancelDispatched},
		{"a request that is cancelled before it comes holds nothing", always, cancelBefore},
		{"a higher band goes first, each in order", always, strictBands},
		{"a full pool refuses with a reason and a time", always, poolFull},
		{"a full band refuses while another takes", always, bandFull},
		{"a request waits for the pool's time limit, or its own if shorter", always, timeLimits},
		{"without endpoints the reason says so", always, noEndpoints},
		{"an endpoint that comes is used by who waits", always, endpointComes},
		{"closing refuses who waits and who comes", always, closing},
		{"a storm of requests, ends and cancels leaves nothing", always, storm},
		{"a full flow refuses while another flow takes", h.Can.FlowCap, flowFull},
		{"the flows of a band take turns", h.Can.Turns, turns},
		{"flows share by weight in tokens", h.Can.Weights, weights},
		{"a retry goes to the head of its flow", h.Can.Retries, retries},
		{"an excluded endpoint is avoided, but better than none", h.Can.Excludes, excludes},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !c.promised {
				t.Skip("not promised by this scheduler")
			}
			h.Run(t, func(t *testing.T) { c.test(t, h) })
		})
	}
}

func oneLease(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(1, 2)})
	r := request("r1", "f", 0)
	l := send(t, s, r).granted(t)
	if targets := l.Targets(); len(targets) != 1 || targets[0].URL != "http://a.test" {
		t.Errorf("targets are %v, want the one endpoint", targets)
	}
	if !bytes.Equal(l.Body(), r.Body) {
		t.Errorf("body is %q, want %q", l.Body(), r.Body)
	}
	select {
	case <-l.Evicted():
		t.Error("evicted at once")
	default:
	}
	l.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived})
	l.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
	if got := s.Live(); got != 1 {
		t.Errorf("%d leases live, want 1", got)
	}
	l.End(completed())
	expectEmpty(t, h, s)
}

func endTwice(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(1, 2)})
	first := send(t, s, request("r1", "f", 0)).granted(t)
	second := send(t, s, request("r2", "f", 0)).granted(t)
	waiting := []*call{send(t, s, request("r3", "f", 0)), send(t, s, request("r4", "f", 0))}
	h.Settle()
	for range 3 {
		first.End(completed())
	}
	first.Observe(scheduler.Progress{Kind: scheduler.FirstToken})
	h.Settle()
	if s.Live() != 2 || s.Queued() != 1 {
		t.Fatalf("%d live and %d queued after one lease ended, want 2 and 1", s.Live(), s.Queued())
	}
	second.End(completed())
	for _, c := range waiting {
		c.granted(t).End(completed())
	}
	expectEmpty(t, h, s)
}

func caps(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: []scheduler.Endpoint{
		{ID: "a", URL: "http://a.test", MaxConcurrency: 1},
		{ID: "b", URL: "http://b.test", MaxConcurrency: 3},
	}})
	calls := sendAll(t, s, 10, "f", 0)
	h.Settle()
	if s.Live() != 4 || s.Queued() != 6 {
		t.Fatalf("%d live and %d queued, want 4 and 6", s.Live(), s.Queued())
	}
	on := map[string]int{}
	for _, c := range calls {
		if c.answered() {
			on[c.lease.Targets()[0].Endpoint]++
		}
	}
	if on["a"] != 1 || on["b"] != 3 {
		t.Errorf("leases by endpoint are %v, want a:1 b:3", on)
	}
	drain(t, calls)
	expectEmpty(t, h, s)
}

func leastLoaded(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(3, 8)})
	on := map[string][]scheduler.Lease{}
	take := func(i int) string {
		l := send(t, s, request(fmt.Sprintf("r%d", i), "f", 0)).granted(t)
		id := l.Targets()[0].Endpoint
		on[id] = append(on[id], l)
		return id
	}
	for i := range 6 {
		take(i)
	}
	for id, leases := range on {
		if len(leases) != 2 {
			t.Errorf("%d of 6 leases on %s, want 2", len(leases), id)
		}
	}
	on["b"][0].End(completed())
	h.Settle()
	if id := take(6); id != "b" {
		t.Errorf("the next went to %s, want b, which has the least", id)
	}
	for _, leases := range on {
		for _, l := range leases {
			l.End(completed())
		}
	}
	expectEmpty(t, h, s)
}

func cancelQueued(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(1, 1)})
	running := send(t, s, request("r1", "f", 0)).granted(t)
	gone := send(t, s, request("r2", "f", 0))
	h.Settle()
	next := send(t, s, request("r3", "f", 0))
	h.Settle()
	gone.cancel()
	_ = refused(t, gone, scheduler.Cancelled)
	if !errors.Is(gone.err, context.Canceled) {
		t.Errorf("the refusal %v hides its cause", gone.err)
	}
	h.Settle()
	if got := s.Queued(); got != 1 {
		t.Errorf("%d queued after the cancel, want 1", got)
	}
	running.End(completed())
	next.granted(t).End(completed())
	expectEmpty(t, h, s)
}

func cancelDispatched(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(1, 1)})
	for i := range 100 {
		running := send(t, s, request(fmt.Sprintf("running%d", i), "f", 0)).granted(t)
		c := send(t, s, request(fmt.Sprintf("cancelled%d", i), "f", 0))
		h.Settle()
		if i%2 == 0 {
			c.cancel()
			running.End(completed())
		} else {
			running.End(completed())
			c.cancel()
		}
		if <-c.done; c.err == nil {
			c.lease.End(scheduler.Outcome{Result: scheduler.Abandoned})
		} else {
			_ = refused(t, c, scheduler.Cancelled)
		}
		expectEmpty(t, h, s)
	}
}

func cancelBefore(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(1, 1)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l, err := s.Schedule(ctx, request("r1", "f", 0))
	if l != nil || reason(err) != scheduler.Cancelled {
		t.Errorf("got lease %v, error %v; want a refusal as cancelled", l, err)
	}
	expectEmpty(t, h, s)
}

func strictBands(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(1, 1)})
	running := send(t, s, request("first", "f", 0)).granted(t)
	var calls []*call
	for i, band := range []int{0, -10, 100, 0, 100, -10} {
		calls = append(calls, send(t, s, request(fmt.Sprintf("%d:%d", band, i), "f", band)))
		h.Settle()
	}
	running.End(completed())
	got := order(t, h, calls)
	want := []string{"100:2", "100:4", "0:0", "0:3", "-10:1", "-10:5"}
	if !slices.Equal(got, want) {
		t.Errorf("order is %v, want %v", got, want)
	}
	expectEmpty(t, h, s)
}

func storm(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(3, 4)})
	var calls []*call
	for i := range 300 {
		c := send(t, s, request(fmt.Sprintf("r%d", i), fmt.Sprintf("f%d", i%7), i%3))
		calls = append(calls, c)
		if i%5 == 0 {
			c.cancel()
		}
	}
	h.Settle()
	for i, c := range calls {
		if i%3 == 0 {
			c.cancel()
		}
	}
	drain(t, calls)
	expectEmpty(t, h, s)
}

// sendAll sends n requests of one flow, in order.
func sendAll(t *testing.T, s scheduler.Scheduler, n int, fairnessID string, band int) []*call {
	t.Helper()
	calls := make([]*call, n)
	for i := range calls {
		calls[i] = send(t, s, request(fmt.Sprintf("%s/%d/%d", fairnessID, band, i), fairnessID, band))
	}
	return calls
}

// drain ends the lease of every call as soon as it is granted.
func drain(t *testing.T, calls []*call) {
	t.Helper()
	done := make(chan *call)
	for _, c := range calls {
		go func() {
			<-c.done
			done <- c
		}()
	}
	for range calls {
		c := <-done
		switch {
		case c.err == nil:
			c.lease.End(completed())
		case reason(c.err) != scheduler.Cancelled:
			t.Errorf("request %s was refused: %v", c.id, c.err)
		}
	}
}

// order ends one lease after the other and returns the order in which the
// calls were granted theirs.
func order(t *testing.T, h Harness, calls []*call) []string {
	t.Helper()
	var ids []string
	left := slices.Clone(calls)
	for len(left) > 0 {
		h.Settle()
		i := slices.IndexFunc(left, (*call).answered)
		if i < 0 {
			t.Fatalf("%d requests wait while nothing runs; so far %v", len(left), ids)
		}
		l := left[i].granted(t)
		ids = append(ids, left[i].id)
		left = slices.Delete(left, i, i+1)
		l.End(completed())
	}
	return ids
}

func reason(err error) scheduler.Reason {
	if refusal, ok := errors.AsType[*scheduler.Refusal](err); ok {
		return refusal.Reason
	}
	return ""
}

// refused waits for the call's refusal, which has one of the reasons, and
// returns it.
func refused(t *testing.T, c *call, reasons ...scheduler.Reason) *scheduler.Refusal {
	t.Helper()
	<-c.done
	refusal, ok := errors.AsType[*scheduler.Refusal](c.err)
	if !ok || !slices.Contains(reasons, refusal.Reason) {
		t.Fatalf("request %s got %v, want a refusal as %v", c.id, c.err, reasons)
	}
	if c.lease != nil {
		t.Errorf("request %s was refused and holds a lease", c.id)
	}
	return refusal
}

// retryable checks that a refusal says when to come back.
func retryable(t *testing.T, r *scheduler.Refusal) {
	t.Helper()
	if r.RetryAfter < time.Second || r.RetryAfter > time.Minute {
		t.Errorf("%s: retry after %v, want 1 s to 60 s", r.Reason, r.RetryAfter)
	}
}

func expectEmpty(t *testing.T, h Harness, s Subject) {
	t.Helper()
	h.Settle()
	if s.Live() != 0 || s.Queued() != 0 {
		t.Errorf("%d leases live and %d requests queued at the end, want none", s.Live(), s.Queued())
	}
}
