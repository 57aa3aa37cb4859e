package scheduler_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"weir/scheduler"
)

// An engine computes prompts in the order in which they come. What is kept from
// it while it has enough to do can be overtaken here.
func TestABusyEndpointTakesNoMorePromptsThatAreNewToIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{TTL: -1}, endpoint("a", 64))
		long := func(id string) scheduler.Request {
			r := prompted(id, 20_000, id)
			r.Streams = true
			return r
		}
		first := take(t, e, long("1"))
		low := send(t.Context(), e, long("2"))
		synctest.Wait()
		high := long("3")
		high.Flow.Band = 10
		top := send(t.Context(), e, high)
		synctest.Wait()
		if s := e.State(); s.Queued != 2 {
			t.Fatalf("%d wait, want both", s.Queued)
		}
		turn := prompted("4", 10_000, "1", "1", "4") // most of it is where the first is computed
		turn.Streams, turn.Flow.Band = true, 20
		if l := take(t, e, turn); expected(t, e, turn.ID) < 20_000-64 {
			t.Errorf("a conversation was not taken for what its endpoint has: %+v", l.Targets())
		} else {
			l.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
		}
		first.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
		a := <-top
		if a.err != nil {
			t.Fatalf("the higher band was refused: %v", a.err)
		}
		synctest.Wait()
		select {
		case <-low:
			t.Error("the lower band was sent behind the higher one, to wait at the engine")
		default:
		}
		a.lease.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
		if a := <-low; a.err != nil {
			t.Errorf("the lower band was refused: %v", a.err)
		}
	})
}

// Of an answer that comes in one piece nobody hears when its prompt is done.
func TestAnswersInOnePieceDontMakeAnEndpointBusy(t *testing.T) {
	t.Parallel()
	e := healthy(t, scheduler.Config{}, endpoint("a", 8))
	for i := range 8 {
		r := prompted(fmt.Sprint(i), 20_000, fmt.Sprint(i))
		r.TTL = -time.Second
		take(t, e, r)
	}
}
