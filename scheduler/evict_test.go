package scheduler_test

import (
	"testing"
	"testing/synctest"
	"time"

	"weir/scheduler"
)

// evicted reports which of the leases the scheduler wants back.
func evicted(leases ...scheduler.Lease) (which []int) {
	synctest.Wait()
	for i, l := range leases {
		select {
		case <-l.Evicted():
			which = append(which, i)
		default:
		}
	}
	return which
}

func same(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestEvictionTakesTheLowestThenTheNewest(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		running []int // bands, in the order in which they came
		waits   int   // the band that is held up
		want    []int
	}{
		{"the newest of the lowest band", []int{-1, -2, -2, -1}, 0, []int{2}},
		{"a negative band may displace a lower one", []int{-1, -2, -1, -1}, -1, []int{1}},
		{"nobody of an equal band", []int{-1, -1, -1, -1}, -1, nil},
		{"nobody of band 0", []int{0, 0, 0, 0}, 10, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := healthy(t, scheduler.Config{Eviction: true}, endpoint("a", 2), endpoint("b", 2))
				var leases []scheduler.Lease
				for _, band := range tt.running {
					leases = append(leases, take(t, e, in(band, "x")))
				}
				waits := send(t.Context(), e, in(tt.waits, "y"))
				if got := evicted(leases...); !same(got, tt.want) {
					t.Fatalf("evicted %v, want %v", got, tt.want)
				}
				synctest.Sleep(time.Second)
				for _, i := range tt.want {
					leases[i].End(scheduler.Outcome{Result: scheduler.Abandoned})
					leases[i].End(scheduler.Outcome{Result: scheduler.Abandoned})
					if a := <-waits; a.err != nil || a.after != time.Second {
						t.Errorf("got %v after %v, want the place that was freed", a.err, a.after)
					}
				}
				if s := e.State(); s.Live != 4 {
					t.Errorf("%d live, want 4: a lease counts once, however often it ends", s.Live)
				}
			})
		})
	}
}

func TestEvictionStopsAndWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := scheduler.Config{
			Eviction: true, Bands: bands(10, 0, -1),
			UsageLimit: scheduler.UsageLimit{Kind: scheduler.PriorityHoldback, MaxCeiling: 0.2, MinCeiling: 0.1},
		}
		e := healthy(t, scheduler.Config{Eviction: true}, endpoint("a", 10))
		var leases []scheduler.Lease
		for range 10 {
			leases = append(leases, take(t, e, in(-1, "x")))
		}
		e.SetConfig(cfg) // the pool is at 1.0, where 0.2 is allowed
		send(t.Context(), e, in(10, "y"))
		if got := evicted(leases...); !same(got, []int{8, 9}) {
			t.Fatalf("evicted %v, want the two newest at once and no more", got)
		}
		synctest.Sleep(5 * time.Second)
		leases[9].End(scheduler.Outcome{})
		if got := evicted(leases...); len(got) != 2 {
			t.Fatalf("evicted %v before all of the round had ended", got)
		}
		leases[8].End(scheduler.Outcome{})
		synctest.Sleep(9 * time.Millisecond)
		if got := evicted(leases...); len(got) != 2 {
			t.Fatalf("evicted %v within the grace", got)
		}
		synctest.Sleep(time.Millisecond)
		if got := evicted(leases...); !same(got, []int{6, 7, 8, 9}) {
			t.Fatalf("evicted %v, want the next two once the grace was over", got)
		}
		s := e.State()
		if n := s.Bands[0].Evictions; n != 4 || s.Reclaimed.Sum != 10*time.Second || s.ReclaimTarget != 2 || s.ReclaimPending != 2 {
			t.Errorf("%d told to end for the top band, those that did took %v; of %d in this round %d are left",
				n, s.Reclaimed.Sum, s.ReclaimTarget, s.ReclaimPending)
		}
		synctest.Sleep(10*time.Second - time.Millisecond)
		if got := evicted(leases...); len(got) != 4 {
			t.Fatalf("evicted %v while the victims may still end", got)
		}
		synctest.Sleep(time.Millisecond)
		if got := evicted(leases...); !same(got, []int{4, 5, 6, 7, 8, 9}) {
			t.Fatalf("evicted %v, want another two when victims never end", got)
		}
		leases[6].End(scheduler.Outcome{}) // late: of no round that is awaited
		leases[7].End(scheduler.Outcome{})
		synctest.Sleep(time.Second)
		if got := evicted(leases...); len(got) != 6 {
			t.Fatalf("evicted %v: late ends were taken for the present round's", got)
		}
		if s := e.State(); s.ReclaimTimedOut != 2 || s.Reclaimed.Sum != 10*time.Second {
			t.Errorf("%d timed out, and those that ended took %v: want each counted once", s.ReclaimTimedOut, s.Reclaimed.Sum)
		}
	})
}

func TestNothingIsEvictedWhereThatIsOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{}, endpoint("a", 1))
		l := take(t, e, in(-1, "x"))
		send(t.Context(), e, in(0, "y"))
		if l.Evicted() != nil || len(evicted(l)) > 0 {
			t.Error("a lease can be evicted")
		}
	})
}

// A pulse that is shut is not a place that anybody waits for.
func TestAShutPulseEvictsNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{
			Eviction: true, Bands: bands(1, 0, -1), UsageLimit: scheduler.UsageLimit{Kind: scheduler.SoftReflective},
		}, endpoint("a", 100))
		var leases []scheduler.Lease
		for len(leases) < 99 {
			leases = append(leases, (<-send(t.Context(), e, in(-1, "x"))).lease)
		}
		if a := <-send(t.Context(), e, in(0, "y")); a.err != nil || a.after == 0 {
			t.Errorf("got %v after %v, want a wait for the pulse", a.err, a.after)
		}
		if got := evicted(leases...); got != nil {
			t.Errorf("evicted %v", got)
		}
	})
}
