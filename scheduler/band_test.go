package scheduler

import (
	"fmt"
	"testing"
	"time"
)

func newQueues(cfg Config) *queues {
	q := &queues{}
	cfg = cfg.withDefaults()
	q.configure(&cfg)
	return q
}

// wait queues a request as one that came at the time.
func (q *queues) wait(r Request, at time.Time) *waiter {
	b, f := q.flow(&r)
	w := &waiter{request: r, entered: at, queuedAt: r.QueuedAt}
	if w.queuedAt.IsZero() {
		w.queuedAt = at
	}
	q.push(b, f, w)
	return w
}

func in(fairnessID string, band int) Request {
	return Request{Flow: Flow{FairnessID: fairnessID, Band: band}}
}

func always(*band) bool { return true }

// send dispatches whose turn it is, as one that is expected to take s.
func (q *queues) send(t *testing.T, s service, at time.Time) (*waiter, *charge) {
	t.Helper()
	w := q.next(always)
	if w == nil {
		t.Fatal("nobody's turn")
	}
	c := &charge{band: w.band, flow: w.flow}
	q.began(c, &w.request, s, at)
	q.remove(w)
	return w, c
}

func TestIdleFlowsAreForgottenOldestFirst(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	q := newQueues(Config{})
	q.wait(in("running", 0), now)
	_, running := q.send(t, service{}, now)
	waiting := q.wait(in("waiting", 0), now)
	b := q.band(0)
	for i := range 3 * maxIdleFlows {
		r := in(fmt.Sprintf("f%d", i), 0)
		q.flow(&r)
	}
	if got := len(b.flows); got != maxIdleFlows+2 || b.idle.n != maxIdleFlows {
		t.Errorf("%d flows remembered, %d of them idle; want %d idle ones and two busy ones", got, b.idle.n, maxIdleFlows)
	}
	if b.flows["waiting"] == nil || b.flows["running"] == nil {
		t.Error("a flow was forgotten while a request waits or runs in it")
	}
	if b.flows["f0"] != nil || b.flows[fmt.Sprintf("f%d", 3*maxIdleFlows-1)] == nil {
		t.Error("not the longest unused were forgotten")
	}
	q.remove(waiting)
	q.ended(running, service{}, now)
	if got := len(b.flows); got > maxIdleFlows+1 || b.idle.n > maxIdleFlows {
		t.Errorf("%d flows remembered when none waits, want %d", got, maxIdleFlows)
	}
}

func TestFlowsThatWereServedTheSameTakeTurns(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	q := newQueues(Config{})
	for _, id := range []string{"a", "b", "c"} {
		for range 4 {
			q.wait(in(id, 0), now)
		}
	}
	turns := map[string]int{}
	for n := 1; q.queued > 0; n++ {
		w, _ := q.send(t, service{}, now) // requests that cost nothing, so that only turns tell flows apart
		turns[w.request.Flow.FairnessID]++
		if n%3 == 0 && (turns["a"] != turns["b"] || turns["b"] != turns["c"]) {
			t.Fatalf("after %d dispatches the turns are %v, want the same for all", n, turns)
		}
	}
}

func TestAheadCountsHigherBandsAndTurns(t *testing.T) {
	t.Parallel()
	q := newQueues(Config{})
	fill := func(priority int, id string, weight, n int) *flow {
		r := in(id, priority)
		r.Weight = weight
		for range n {
			q.wait(r, time.Unix(1, 0))
		}
		_, f := q.flow(&r)
		return f
	}
	fill(10, "x", 1, 7)
	fill(-10, "x", 1, 1000)
	flood := fill(0, "flood", 1, 500)
	few := fill(0, "few", 1, 2)
	newcomer := fill(0, "new", 4, 0)
	for _, tt := range []struct {
		name string
		f    *flow
		want int
	}{
		{"a flow with two waiting beside a flood", few, 7 + 2 + 3},
		{"the flood's next", flood, 7 + 500 + 2},
		{"a newcomer of four times the weight", newcomer, 7 + 1},
	} {
		if got := q.ahead(q.band(0), tt.f); got != tt.want {
			t.Errorf("%d ahead of %s, want %d", got, tt.name, tt.want)
		}
	}
}
