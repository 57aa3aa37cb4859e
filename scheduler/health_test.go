package scheduler

import (
	"testing"
	"time"
)

// step is one thing that happens to a condition, at a time after the start.
type step struct {
	at    time.Duration
	do    string // grant, probe, or the end of a lease
	probe Health
	end   Result
	lease int
}

func grant(at time.Duration, n int) step { return step{at: at, do: "grant", lease: n} }

func end(at time.Duration, n int, r Result) step { return step{at: at, do: "end", lease: n, end: r} }

func probe(at time.Duration, h Health) step { return step{at: at, do: "probe", probe: h} }

// faults are n leases that are taken and fail, after a second.
func faults(from, n int) []step {
	const at = time.Second
	var steps []step
	for i := range n {
		steps = append(steps, grant(at, from+i))
	}
	for i := range n {
		steps = append(steps, end(at, from+i, EndpointFault))
	}
	return steps
}

func TestCondition(t *testing.T) {
	t.Parallel()
	const s = time.Second
	healthy := probe(0, Healthy)
	tests := []struct {
		name  string
		steps []step
		at    time.Duration
		limit int
		again time.Duration // 0: not by itself
	}{
		{"an unjudged endpoint may hold a quarter", nil, 0, 16, 0},
		{"a healthy endpoint may hold all", []step{healthy}, 0, 64, 0},
		{"an unhealthy endpoint may hold none", []step{probe(0, Unhealthy)}, 0, 0, 0},
		{"a completed request vouches for an unjudged endpoint", []step{grant(0, 1), end(s, 1, Completed)}, s, 64, 0},
		{"a completed request does not overrule a probe", []step{grant(0, 1), probe(s, Unhealthy), end(2*s, 1, Completed)}, 2 * s, 0, 0},
		{"two faults keep the circuit closed", append([]step{healthy}, faults(1, 2)...), s, 64, 0},
		{"three faults in a row open it for the backoff", append([]step{healthy}, faults(1, 3)...), s, 0, 2 * s},
		{
			"a completed request between faults starts the count anew",
			append(append([]step{healthy}, faults(1, 2)...), append([]step{grant(s, 8), end(s, 8, Completed)}, faults(3, 2)...)...), s, 64, 0,
		},
		{"after the backoff a trial may go", append([]step{healthy}, faults(1, 3)...), 2 * s, 64, 0},
		{"only one trial at a time", append(append([]step{healthy}, faults(1, 3)...), grant(2*s, 9)), 2 * s, 0, 0},
		{"a trial that completes closes the circuit", append(append([]step{healthy}, faults(1, 3)...), grant(2*s, 9), end(3*s, 9, Completed)), 3 * s, 64, 0},
		{"a trial that fails doubles the backoff", append(append([]step{healthy}, faults(1, 3)...), grant(2*s, 9), end(3*s, 9, EndpointFault)), 3 * s, 0, 5 * s},
		{"a trial whose caller was wrong decides nothing", append(append([]step{healthy}, faults(1, 3)...), grant(2*s, 9), end(3*s, 9, CallerFault)), 3 * s, 64, 0},
		{"a trial whose caller left decides nothing", append(append([]step{healthy}, faults(1, 3)...), grant(2*s, 9), end(3*s, 9, Abandoned)), 3 * s, 64, 0},
		{"the other leases of a dead endpoint don't lengthen the backoff", append([]step{healthy}, faults(1, 40)...), s, 0, 2 * s},
		{"a lease from before says nothing for an open circuit", append([]step{healthy, grant(0, 7)}, append(faults(1, 3), end(s, 7, Completed))...), s, 0, 2 * s},
		{"the callers' faults never count", []step{healthy, grant(0, 1), end(0, 1, CallerFault), grant(0, 2), end(0, 2, CallerFault), grant(0, 3), end(0, 3, CallerFault)}, 0, 64, 0},
		{"callers who leave never count", []step{healthy, grant(0, 1), end(0, 1, Abandoned), grant(0, 2), end(0, 2, Abandoned), grant(0, 3), end(0, 3, Abandoned)}, 0, 64, 0},
		{"a full endpoint rests without blame", []step{healthy, grant(0, 1), end(s, 1, Overloaded)}, s, 0, s + 500*time.Millisecond},
		{"a burst of refusals is one rest", []step{healthy, grant(0, 1), grant(0, 2), grant(0, 3), end(s, 1, Overloaded), end(s, 2, Overloaded), end(s, 3, Overloaded)}, s, 0, s + 500*time.Millisecond},
		{"a rest ends", []step{healthy, grant(0, 1), end(s, 1, Overloaded)}, s + 500*time.Millisecond, 64, 0},
		{"the next rest is twice as long", []step{healthy, grant(0, 1), end(s, 1, Overloaded), grant(2*s, 2), end(2*s, 2, Overloaded)}, 2 * s, 0, 3 * s},
		{
			"an endpoint that comes back is tried at once",
			append(append([]step{healthy}, faults(1, 3)...), probe(s, Unhealthy), probe(s+s/2, Healthy)), s + s/2, 64, 0,
		},
		{"a probe that finds it healthy still leaves the circuit open", append(append([]step{healthy}, faults(1, 3)...), probe(s, Healthy)), s, 0, 2 * s},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			start := time.Unix(1_000_000, 0)
			cfg := Config{}.withDefaults()
			var c condition
			leases := map[int]*lease{}
			for _, s := range tt.steps {
				now := start.Add(s.at)
				switch s.do {
				case "grant":
					leases[s.lease] = &lease{}
					c.began(leases[s.lease])
				case "probe":
					c.probed(s.probe)
				default:
					c.ended(leases[s.lease], s.end, cfg.Breaker, cfg.OverloadPause, now)
				}
			}
			limit, again := c.limit(64, start.Add(tt.at))
			if limit != tt.limit {
				t.Errorf("limit is %d, want %d", limit, tt.limit)
			}
			want := time.Time{}
			if tt.again > 0 {
				want = start.Add(tt.again)
			}
			if !again.Equal(want) {
				t.Errorf("to be looked at again at %v, want %v", again.Sub(start), tt.again)
			}
		})
	}
}

func TestBackoffIsBounded(t *testing.T) {
	t.Parallel()
	cfg := Config{}.withDefaults()
	now := time.Unix(1_000_000, 0)
	c := condition{health: Healthy, faults: cfg.Breaker.Faults - 1}
	l := &lease{}
	c.ended(l, EndpointFault, cfg.Breaker, 0, now)
	for range 20 {
		now = c.retryAt
		c.began(l)
		c.ended(l, EndpointFault, cfg.Breaker, 0, now)
	}
	if got := c.retryAt.Sub(now); got != cfg.Breaker.MaxBackoff {
		t.Errorf("backoff after 20 failed trials is %v, want %v", got, cfg.Breaker.MaxBackoff)
	}
	for range 20 {
		now = now.Add(time.Hour)
		c.ended(l, Overloaded, cfg.Breaker, cfg.OverloadPause, now)
	}
	if got, want := c.pausedUntil.Sub(now), 16*cfg.OverloadPause; got != want {
		t.Errorf("pause after 20 refusals is %v, want %v", got, want)
	}
}

func TestRetryAfterFollowsTheDrainRate(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_000_000, 0)
	var d drain
	if got := d.retryAfter(100, start); got != unknownRetryAfter {
		t.Errorf("retry after %v before anything was dispatched, want %v", got, unknownRetryAfter)
	}
	now := start
	for range 200 { // 20 each second, for 10 s
		now = now.Add(50 * time.Millisecond)
		d.dispatched(now)
	}
	for ahead, want := range map[int][2]time.Duration{
		0:         {time.Second, time.Second},
		1:         {time.Second, time.Second},
		200:       {9 * time.Second, 11 * time.Second},
		1_000_000: {time.Minute, time.Minute},
	} {
		if got := d.retryAfter(ahead, now); got < want[0] || got > want[1] {
			t.Errorf("retry after %v behind %d at 20/s, want %v to %v", got, ahead, want[0], want[1])
		}
	}
	if early := d.perSecond(start.Add(-time.Hour)); early < 0 || early > 400 {
		t.Errorf("a clock that jumps back gives the rate %v/s", early)
	}
	if stalled := d.retryAfter(200, now.Add(time.Hour)); stalled != time.Minute {
		t.Errorf("retry after %v when the pool has stalled, want a minute", stalled)
	}
}

func TestRateOfAYoungPoolIsNotUnderrated(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_000_000, 0)
	var d drain
	for i := range 40 { // 20 each second, for 2 s
		d.dispatched(start.Add(time.Duration(i) * 50 * time.Millisecond))
	}
	if got := d.perSecond(start.Add(2 * time.Second)); got < 18 || got > 22 {
		t.Errorf("rate is %.1f/s after two seconds at 20/s", got)
	}
}
