package gateway

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A keep-alive that waits for a slow caller holds back neither the time limits
// nor whoever sets them.
func TestASlowKeepAliveHoldsNothingBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		ctx, cancel := context.WithCancelCause(t.Context())
		calls := 0
		w := newWatch(cancel, begin.Add(time.Hour), func(now time.Time) time.Time {
			calls++
			synctest.Sleep(10 * time.Second)
			return now.Add(15 * time.Second)
		}, begin.Add(time.Second))

		synctest.Sleep(2 * time.Second) // the keep-alive is being sent
		w.wait(IdleLimit, 3*time.Second)
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("whoever sets a limit waited until %v", took)
		}
		<-ctx.Done()
		if took, e := time.Since(begin), ended(ctx); took != 5*time.Second || e.Cause != IdleLimit {
			t.Errorf("ended as %q after %v, want %q after 5s", e.Cause, took, IdleLimit)
		}
		w.stop()
		if took := time.Since(begin); took != 11*time.Second {
			t.Errorf("stopped after %v, while a keep-alive was sent until 11s", took)
		}
		synctest.Sleep(time.Hour)
		if calls != 1 {
			t.Errorf("%d keep-alives, of which some after the end", calls)
		}
	})
}

func TestKeepAlivesComeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, cancel := context.WithCancelCause(t.Context())
		var at []time.Duration
		w := newWatch(cancel, begin.Add(time.Hour), func(now time.Time) time.Time {
			at = append(at, now.Sub(begin))
			return now.Add(10 * time.Second)
		}, begin.Add(5*time.Second))
		synctest.Sleep(30 * time.Second)
		w.stop()
		if len(at) != 3 || at[0] != 5*time.Second || at[1] != 15*time.Second || at[2] != 25*time.Second {
			t.Errorf("keep-alives at %v", at)
		}
	})
}
