package scheduler

import (
	"fmt"
	"testing"
	"time"
)

func TestIdleFlowsAreForgottenOldestFirst(t *testing.T) {
	t.Parallel()
	var q queues
	b := q.band(0)
	waiting := &waiter{queuedAt: time.Unix(1, 0)}
	q.push(b, b.flow("waiting", 1), waiting)
	for i := range 3 * maxIdleFlows {
		b.flow(fmt.Sprintf("f%d", i), 1)
	}
	if got := len(b.flows); got != maxIdleFlows+1 {
		t.Errorf("%d flows remembered, want %d idle ones and the waiting one", got, maxIdleFlows)
	}
	if b.recent.Len() != len(b.flows) {
		t.Errorf("%d flows in order of use, %d by id", b.recent.Len(), len(b.flows))
	}
	if b.flows["waiting"] == nil {
		t.Error("a flow was forgotten while a request waits in it")
	}
	if b.flows["f0"] != nil || b.flows[fmt.Sprintf("f%d", 3*maxIdleFlows-1)] == nil {
		t.Error("not the longest unused were forgotten")
	}
	q.remove(waiting)
	if got := len(b.flows); got != maxIdleFlows {
		t.Errorf("%d flows remembered when none waits, want %d", got, maxIdleFlows)
	}
}

func TestFlowsThatWereServedTheSameTakeTurns(t *testing.T) {
	t.Parallel()
	var q queues
	b := q.band(0)
	for _, id := range []string{"a", "b", "c"} {
		for range 4 {
			q.push(b, b.flow(id, 1), &waiter{})
		}
	}
	turns := map[string]int{}
	for n := 1; q.queued > 0; n++ {
		w := q.next(func(*band) bool { return true })
		f := w.flow
		q.remove(w)
		b.charge(f, 0) // requests that cost nothing, so that only turns tell flows apart
		turns[f.id]++
		if n%3 == 0 && (turns["a"] != turns["b"] || turns["b"] != turns["c"]) {
			t.Fatalf("after %d dispatches the turns are %v, want the same for all", n, turns)
		}
	}
}

func TestFlowIsOrderedByFirstQueueingTime(t *testing.T) {
	t.Parallel()
	var f flow
	at := func(second int) *waiter { return &waiter{queuedAt: time.Unix(int64(second), 0)} }
	order := func() string {
		s := ""
		for w := f.head; w != nil; w = w.next {
			s += fmt.Sprint(w.queuedAt.Unix(), " ")
		}
		back := ""
		for w := f.tail; w != nil; w = w.prev {
			back = fmt.Sprint(w.queuedAt.Unix(), " ") + back
		}
		if s != back {
			t.Errorf("forwards %q, backwards %q", s, back)
		}
		return s
	}
	middle, last := at(5), at(7)
	for _, w := range []*waiter{at(3), middle, last, at(7), at(1), at(4), at(2)} {
		f.push(w)
	}
	if got, want := order(), "1 2 3 4 5 7 7 "; got != want {
		t.Errorf("order is %q, want %q", got, want)
	}
	f.remove(f.head)
	f.remove(middle)
	f.remove(f.tail)
	if got, want := order(), "2 3 4 7 "; got != want || f.tail != last || f.queued != 4 {
		t.Errorf("after removing the ends and the middle: %q with %d queued, want %q with 4", got, f.queued, want)
	}
	for f.head != nil {
		f.remove(f.tail)
	}
	if f.tail != nil || f.queued != 0 {
		t.Error("an emptied flow is not empty")
	}
}

func TestAheadCountsHigherBandsAndTurns(t *testing.T) {
	t.Parallel()
	var q queues
	fill := func(priority int, id string, n int) *flow {
		b := q.band(priority)
		f := b.flow(id, 1)
		for range n {
			q.push(b, f, &waiter{})
		}
		return f
	}
	fill(10, "x", 7)
	fill(-10, "x", 1000)
	fill(0, "flood", 500)
	few := fill(0, "few", 2)
	if got, want := q.ahead(q.band(0), few), 7+3*2; got != want {
		t.Errorf("%d ahead of a flow with two waiting beside a flood, want %d", got, want)
	}
	if got, want := q.ahead(q.band(0), q.band(0).flow("flood", 1)), 7+502; got != want {
		t.Errorf("%d ahead of the flood's next, want %d", got, want)
	}
}
