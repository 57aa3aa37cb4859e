//nolint:thelper // these are the tests themselves: a failure should name their own line
package schedulertest

import (
	"fmt"
	"testing"
	"time"

	"weir/scheduler"
)

func poolFull(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(1, 1), MaxQueued: 3})
	running := send(t, s, request("r", "f", 0)).granted(t)
	calls := sendAll(t, s, 3, "f", 0)
	h.Settle()
	// Some schedulers can't tell the two caps apart.
	retryable(t, refused(t, send(t, s, request("over", "g", 1)), scheduler.PoolFull, scheduler.BandFull))
	running.End(completed())
	drain(t, calls)
	expectEmpty(t, h, s)
}

func bandFull(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(1, 1), MaxBandQueued: 2})
	running := send(t, s, request("r", "f", 0)).granted(t)
	calls := sendAll(t, s, 2, "f", 0)
	h.Settle()
	retryable(t, refused(t, send(t, s, request("over", "g", 0)), scheduler.BandFull, scheduler.PoolFull))
	calls = append(calls, sendAll(t, s, 2, "g", 1)...)
	h.Settle()
	if got := s.Queued(); got != 4 {
		t.Errorf("%d queued, want 4: another band has a place", got)
	}
	running.End(completed())
	drain(t, calls)
	expectEmpty(t, h, s)
}

func flowFull(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(1, 1), MaxFlowQueued: 2})
	running := send(t, s, request("r", "f", 0)).granted(t)
	calls := sendAll(t, s, 2, "f", 0)
	h.Settle()
	retryable(t, refused(t, send(t, s, request("over", "f", 0)), scheduler.FlowFull))
	calls = append(calls, sendAll(t, s, 2, "g", 0)...)
	h.Settle()
	if got := s.Queued(); got != 4 {
		t.Errorf("%d queued, want 4: another flow has a place", got)
	}
	running.End(completed())
	drain(t, calls)
	expectEmpty(t, h, s)
}

func timeLimits(t *testing.T, h Harness) {
	const ttl, own = 3 * time.Second, 2 * time.Second
	s := h.New(t, Pool{Endpoints: endpoints(1, 1), TTL: ttl})
	running := send(t, s, request("r", "f", 0)).granted(t)
	plain, shorter, longer := request("plain", "f", 0), request("shorter", "f", 0), request("longer", "f", 0)
	shorter.TTL, longer.TTL = own, time.Hour
	for _, c := range []struct {
		call *call
		want time.Duration
	}{
		{send(t, s, plain), ttl}, {send(t, s, shorter), own}, {send(t, s, longer), ttl},
	} {
		retryable(t, refused(t, c.call, scheduler.QueueTimeout))
		if late := c.call.after - c.want; late < 0 || late > h.Slack {
			t.Errorf("%s was told after %v, want %v (at most %v late)", c.call.id, c.call.after, c.want, h.Slack)
		}
	}
	running.End(completed())
	expectEmpty(t, h, s)
}

func noEndpoints(t *testing.T, h Harness) {
	s := h.New(t, Pool{TTL: time.Second})
	retryable(t, refused(t, send(t, s, request("r", "f", 0)), scheduler.NoEndpoints))
	expectEmpty(t, h, s)
}

func endpointComes(t *testing.T, h Harness) {
	s := h.New(t, Pool{TTL: time.Minute})
	calls := sendAll(t, s, 5, "f", 0)
	h.Settle()
	if got := s.Queued(); got != 5 {
		t.Fatalf("%d queued in a pool without endpoints, want 5", got)
	}
	s.SetEndpoints(endpoints(1, 2))
	h.Settle()
	if s.Live() != 2 || s.Queued() != 3 {
		t.Errorf("%d live and %d queued after an endpoint came, want 2 and 3", s.Live(), s.Queued())
	}
	drain(t, calls)
	expectEmpty(t, h, s)
}

func closing(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(1, 1)})
	running := send(t, s, request("r", "f", 0)).granted(t)
	waiting := sendAll(t, s, 3, "f", 0)
	h.Settle()
	s.Close()
	for _, c := range waiting {
		retryable(t, refused(t, c, scheduler.ShuttingDown))
	}
	_ = refused(t, send(t, s, request("late", "f", 0)), scheduler.ShuttingDown)
	running.End(completed())
	s.Close()
	expectEmpty(t, h, s)
}

func turns(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(1, 1)})
	running := send(t, s, request("r", "z", 0)).granted(t)
	flood := sendAll(t, s, 20, "flood", 0)
	h.Settle()
	few := sendAll(t, s, 3, "few", 0)
	h.Settle()
	running.End(completed())
	got := order(t, h, append(flood, few...))
	last := 0
	for i, id := range got {
		if id[:3] == "few" {
			last = i
		}
	}
	if last > 6 {
		t.Errorf("the last of 3 requests beside a flood went as number %d: %v", last, got)
	}
	expectEmpty(t, h, s)
}

// weights keeps three flows backlogged on one endpoint and counts the tokens
// that each is served, with prompts of different length.
func weights(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(1, 1)})
	flows := []struct {
		name          string
		weight, input int
	}{{"one", 1, 400}, {"two", 2, 100}, {"five", 5, 1000}}
	running := send(t, s, request("r", "z", 0)).granted(t)
	type waiting struct {
		*call
		flow int
	}
	var calls []waiting
	for i, f := range flows {
		for n := range 400 {
			r := request(fmt.Sprintf("%s/%d", f.name, n), f.name, 0)
			r.Weight, r.InputTokens, r.OutputTokens = f.weight, f.input, 1
			calls = append(calls, waiting{send(t, s, r), i})
		}
	}
	h.Settle()
	running.End(completed())
	served, total := make([]float64, len(flows)), 0.0
	for range 300 {
		h.Settle()
		at := -1
		for i, c := range calls {
			if c.answered() {
				at = i
				break
			}
		}
		if at < 0 {
			t.Fatal("nothing was dispatched")
		}
		c := calls[at]
		calls = append(calls[:at], calls[at+1:]...)
		l := c.granted(t)
		served[c.flow] += float64(flows[c.flow].input)
		total += float64(flows[c.flow].input)
		l.End(scheduler.Outcome{InputTokens: flows[c.flow].input, OutputTokens: 1})
	}
	for i, f := range flows {
		want := float64(f.weight) / 8
		if got := served[i] / total; got < want-0.03 || got > want+0.03 {
			t.Errorf("flow %s was served %.3f of the tokens, want %.3f within 0.03", f.name, got, want)
		}
	}
	for _, c := range calls {
		c.cancel()
	}
	for _, c := range calls {
		<-c.done
		if c.err == nil {
			c.lease.End(completed())
		}
	}
	expectEmpty(t, h, s)
}

func retries(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(1, 1)})
	began := time.Now()
	running := send(t, s, request("r.1", "f", 0)).granted(t)
	<-time.After(10 * time.Millisecond)
	waiting := sendAll(t, s, 3, "f", 0)
	h.Settle()
	again := request("r.2", "f", 0)
	again.QueuedAt = began
	retry := send(t, s, again)
	h.Settle()
	running.End(scheduler.Outcome{Result: scheduler.EndpointFault})
	if got := order(t, h, append(waiting, retry)); got[0] != "r.2" {
		t.Errorf("order is %v, want the retry first", got)
	}
	expectEmpty(t, h, s)
}

func excludes(t *testing.T, h Harness) {
	s := h.New(t, Pool{Endpoints: endpoints(2, 2)})
	var leases []scheduler.Lease
	for i, want := range []string{"b", "b", "a"} {
		r := request(fmt.Sprintf("r%d", i), "f", 0)
		r.Exclude = []string{"a"}
		l := send(t, s, r).granted(t)
		if got := l.Targets()[0].Endpoint; got != want {
			t.Errorf("request %d went to %s, want %s", i, got, want)
		}
		leases = append(leases, l)
	}
	for _, l := range leases {
		l.End(completed())
	}
	expectEmpty(t, h, s)
}
