package schedulertest

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"weir/scheduler"
)

// What every scheduler does.

func oneLease(t *trial) {
	r := request("r", "f", 0, 1)
	c := t.granted(t.send(r))
	if targets := c.Targets(); len(targets) == 0 || targets[0].URL != "http://a.test" {
		t.Errorf("targets are %v, want the endpoint first", targets)
	}
	if !bytes.Equal(c.Body(), r.Body) {
		t.Errorf("body is %q, want %q", c.Body(), r.Body)
	}
	select {
	case <-c.Evicted():
		t.Error("evicted at once")
	default:
	}
	c.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived})
	c.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
	t.expect(1, 0)
	c.complete()
	c.Observe(scheduler.Progress{Kind: scheduler.EventReceived, OutputTokens: 9})
}

func endTwice(t *trial) {
	running := t.occupy()
	waiting := t.sendAll(4, "f", 0)
	for range 4 {
		running[0].complete()
	}
	running[0].Observe(scheduler.Progress{Kind: scheduler.FirstToken})
	t.expect(2, 3)
	running[1].complete()
	for _, c := range waiting {
		t.granted(c).complete()
	}
}

func places(t *trial) {
	calls := t.sendAll(10, "f", 0)
	t.expect(t.places(), 10-t.places())
	t.drain(calls)
}

func cancelQueued(t *trial) {
	running := t.occupy()
	gone := t.sendAll(1, "gone", 0)[0]
	next := t.sendAll(1, "f", 0)[0]
	gone.cancel()
	_ = t.refused(gone, scheduler.Cancelled)
	if !errors.Is(gone.err, context.Canceled) {
		t.Errorf("the refusal %v hides its cause", gone.err)
	}
	t.expect(1, 1)
	running[0].complete()
	t.granted(next).complete()
}

func cancelDispatched(t *trial) {
	rounds := 100
	if t.h.Slack > 0 {
		rounds = 20 // each takes a real while
	}
	for i := range rounds {
		running := t.granted(t.send(request("running", "f", 0, i)))
		c := t.send(request("cancelled", "f", 0, i))
		t.h.Settle()
		if i%2 == 0 {
			c.cancel()
			running.complete()
		} else {
			running.complete()
			c.cancel()
		}
		if <-c.done; c.err == nil {
			c.finish(scheduler.Outcome{Result: scheduler.Abandoned})
		} else {
			_ = t.refused(c, scheduler.Cancelled)
		}
		t.expect(0, 0)
	}
}

func cancelBefore(t *trial) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l, err := t.s.Schedule(ctx, request("r", "f", 0, 1))
	if l != nil || reason(err) != scheduler.Cancelled {
		t.Errorf("got lease %v, error %v; want a refusal as cancelled", l, err)
	}
}

func strictBands(t *trial) {
	running := t.occupy()
	var calls []*call
	for i, band := range []int{0, -10, 100, 0, 100, -10} {
		calls = append(calls, t.send(request(map[int]string{0: "middle", -10: "low", 100: "high"}[band], "f", band, i)))
		t.h.Settle()
	}
	running[0].complete()
	got := t.order(calls)
	want := []string{"high/002", "high/004", "middle/000", "middle/003", "low/001", "low/005"}
	if slices.Equal(got, want) {
		return
	}
	for at, id := range want {
		// Two that were placed at once may be told in either order.
		if moved := slices.Index(got, id) - at; !t.h.Overshoots || moved < -1 || moved > 1 {
			t.Fatalf("order is %v, want %v", got, want)
		}
	}
}

func endpointComes(t *trial) {
	calls := t.sendAll(5, "f", 0)
	t.expect(0, 5)
	t.setEndpoints(endpoints(1, 2))
	t.expect(2, 3)
	t.drain(calls)
}

func endpointGoes(t *trial) {
	running := t.occupy()
	waiting := t.sendAll(2, "f", 0)
	t.setEndpoints(endpoints(1, 1)) // only a stays
	t.expect(2, 2)
	for _, c := range running {
		if c.Targets()[0].Endpoint == "b" {
			c.complete()
		}
	}
	t.expect(1, 2)
	for _, c := range running {
		if c.live() {
			c.complete()
		}
	}
	for _, c := range waiting {
		if id := t.granted(c).Targets()[0].Endpoint; id != "a" {
			t.Errorf("%s went to %s, which is gone", c.id, id)
		}
		c.complete()
	}
}

func closing(t *trial) {
	running := t.occupy()
	waiting := t.sendAll(3, "f", 0)
	t.s.Close()
	t.closed = true
	for _, c := range waiting {
		t.retryable(t.refused(c, scheduler.ShuttingDown))
	}
	_ = t.refused(t.send(request("late", "f", 0, 1)), scheduler.ShuttingDown)
	running[0].complete()
	t.s.Close()
}

func storm(t *trial) {
	for i := range 300 {
		c := t.send(request("r", "f"+string(rune('0'+i%7)), []int{0, 1, 100}[i%3], i))
		if i%5 == 0 {
			c.cancel()
		}
	}
	t.h.Settle()
	for i, c := range t.calls {
		if i%3 == 0 {
			c.cancel()
		}
	}
	t.drain(t.calls)
}
