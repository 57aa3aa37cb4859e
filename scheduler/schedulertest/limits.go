package schedulertest

import (
	"time"

	"weir/scheduler"
)

// What every scheduler says no to, and what some do.

// ttl is long enough that a real clock tells it from a shorter one.
const ttl = time.Second

func poolFull(t *trial) {
	running := t.occupy()
	calls := t.sendAll(3, "f", 0)
	// Some schedulers can't tell the two caps apart.
	t.retryable(t.refused(t.send(request("over", "g", 1, 0)), scheduler.PoolFull, scheduler.BandFull))
	running[0].complete()
	t.drain(calls)
}

func bandFull(t *trial) {
	running := t.occupy()
	calls := t.sendAll(2, "f", 0)
	t.retryable(t.refused(t.send(request("over", "g", 0, 0)), scheduler.BandFull, scheduler.PoolFull))
	calls = append(calls, t.sendAll(2, "g", 1)...)
	t.expect(1, 4)
	running[0].complete()
	t.drain(calls)
}

func flowFull(t *trial) {
	running := t.occupy()
	calls := t.sendAll(2, "f", 0)
	t.retryable(t.refused(t.send(request("over", "f", 0, 0)), scheduler.FlowFull))
	calls = append(calls, t.sendAll(2, "g", 0)...)
	t.expect(1, 4)
	running[0].complete()
	t.drain(calls)
}

func timeLimit(t *trial) {
	running := t.occupy()
	t.timedOut(t.send(request("plain", "f", 0, 0)), ttl)
	running[0].complete()
}

func requestLimit(t *trial) {
	running := t.occupy()
	own := []time.Duration{ttl / 2, time.Hour, 1<<63 - 1, -time.Second}
	calls := make([]*call, len(own))
	for i := range calls {
		r := request("limited", "f", 0, i)
		r.TTL = own[i]
		calls[i] = t.send(r)
	}
	for i, c := range calls {
		t.timedOut(c, min(max(own[i], 0), ttl))
	}
	running[0].complete()
}

// timedOut checks that the call is refused once its time is up.
func (t *trial) timedOut(c *call, want time.Duration) {
	t.Helper()
	t.retryable(t.refused(c, scheduler.QueueTimeout))
	if late := c.after - want; late < 0 || late > t.h.Slack {
		t.Errorf("%s was told after %v, want %v (at most %v late)", c.id, c.after, want, t.h.Slack)
	}
}

func noEndpoints(t *trial) {
	t.retryable(t.refused(t.send(request("r", "f", 0, 0)), scheduler.NoEndpoints))
}
