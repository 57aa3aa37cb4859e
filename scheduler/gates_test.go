package scheduler_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"weir/scheduler"
)

func in(band int, fairnessID string) scheduler.Request {
	r := of(fairnessID)
	r.Flow.Band = band
	return r
}

func bands(priorities ...int) (all []scheduler.BandConfig) {
	for _, p := range priorities {
		all = append(all, scheduler.BandConfig{Priority: p})
	}
	return all
}

// dispatched counts the answers that came, which must all be leases.
func dispatched(t *testing.T, calls []<-chan answer) (leases []scheduler.Lease) {
	t.Helper()
	synctest.Wait()
	for _, c := range calls {
		select {
		case a := <-c:
			if a.err != nil {
				t.Fatalf("refused: %v", a.err)
			}
			leases = append(leases, a.lease)
		default:
		}
	}
	return leases
}

func flood(t *testing.T, e embedded, r scheduler.Request, n int) (calls []<-chan answer) {
	t.Helper()
	for range n {
		calls = append(calls, send(t.Context(), e, r))
		synctest.Wait()
	}
	return calls
}

func TestHoldbackKeepsRoomForHigherBands(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{
			Bands: bands(10, 0), UsageLimit: scheduler.UsageLimit{Kind: scheduler.PriorityHoldback, MinCeiling: 0.5},
		}, endpoint("a", 4), endpoint("b", 4))
		low := dispatched(t, flood(t, e, in(0, "low"), 20))
		if len(low) != 4 {
			t.Fatalf("the low band holds %d of 8 leases, want half", len(low))
		}
		high := dispatched(t, flood(t, e, in(10, "high"), 20))
		if len(high) != 4 {
			t.Fatalf("the high band got %d leases past those who wait, want the other 4", len(high))
		}
		for _, l := range high[:3] {
			l.End(scheduler.Outcome{})
		}
		synctest.Wait()
		if s := e.State(); s.Bands[0].Live != 4 || s.Bands[1].Live != 4 {
			t.Errorf("%d and %d live, want the high band's own backlog in its room", s.Bands[0].Live, s.Bands[1].Live)
		}
	})
}

// A band at its ceiling ends the cycle, though nothing waits in it.
func TestACeilingIsHeadOfLine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{
			Bands:      bands(10, 0),
			UsageLimit: scheduler.UsageLimit{Kind: scheduler.PriorityHoldback, MinCeiling: 0.9, MaxCeiling: 0.5},
		}, endpoint("a", 4))
		if low := dispatched(t, flood(t, e, in(0, "low"), 4)); len(low) != 2 {
			t.Errorf("the low band holds %d of 4 leases, want no more than the band above it may", len(low))
		}
	})
}

// What is guaranteed to a flow isn't held back by the ceiling of its band.
func TestAReservationGoesThroughTheCeilingOfItsBand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{
			Bands: bands(10, 0), UsageLimit: scheduler.UsageLimit{Kind: scheduler.PriorityHoldback, MinCeiling: 0.5},
		}, endpoint("a", 4))
		if low := dispatched(t, flood(t, e, in(0, "low"), 4)); len(low) != 2 {
			t.Fatalf("the low band holds %d of 4 leases, want half", len(low))
		}
		r := in(0, "reserved")
		r.Reserved = 1
		r.TTL = -1
		if _, err := e.Schedule(t.Context(), r); err != nil {
			t.Errorf("a flow below its reservation: %v", err)
		}
	})
}

// A soft ceiling lets nobody wait for ever while the pool isn't full, though
// nothing else happens in it.
func TestSoftCeilingsNeverStall(t *testing.T) {
	t.Parallel()
	for slots := 1; slots <= 64; slots++ {
		for live := range slots {
			synctest.Test(t, func(t *testing.T) {
				e := healthy(t, scheduler.Config{Bands: bands(2, 1, 0)}, endpoint("a", slots))
				for range live {
					take(t, e, in(2, "x"))
				}
				e.SetConfig(scheduler.Config{Bands: bands(2, 1, 0), UsageLimit: scheduler.UsageLimit{Kind: scheduler.SoftReflective}})
				if a := <-send(t.Context(), e, in(0, "y")); a.err != nil || a.after > time.Second {
					t.Errorf("%d of %d live: got %v after %v", live, slots, a.err, a.after)
				}
			})
		}
	}
}

func TestShedRefusesNegativeBandsByChance(t *testing.T) {
	t.Parallel()
	const tries = 2000
	tests := []struct {
		name     string
		band     int
		pressure float64 // of the one endpoint
		want     float64 // part that is refused
	}{
		{"nothing of an idle pool", -1, 0, 0},
		{"by the fifth power of the pressure", -1, 0.25, 300 * math.Pow(0.25, 5)},
		{"everything from a third on", -1, 0.32, 1},
		{"nothing of band 0", 0, 1, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				shed := func() (n int) {
					e := healthy(t, scheduler.Config{Shed: scheduler.Shed{Enabled: true}}, endpoint("a", 1<<20))
					e.SetLoad("a", scheduler.Load{KVUsage: tt.pressure * 0.8, At: time.Now()})
					for range tries {
						l, err := e.Schedule(t.Context(), in(tt.band, "x"))
						if err == nil {
							l.End(scheduler.Outcome{})
							continue
						}
						if (answer{err: err}).reason() != scheduler.ShedLoad {
							t.Fatalf("refused as %v", err)
						}
						n++
					}
					return n
				}
				first, second := shed(), shed()
				if got := float64(first) / tries; math.Abs(got-tt.want) > 0.03 {
					t.Errorf("%.3f were refused, want %.3f", got, tt.want)
				}
				if first != second {
					t.Errorf("%d, then %d were refused: the same seed should repeat itself", first, second)
				}
			})
		})
	}
}

func TestSettingsChangeWithoutLosingTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{MaxConcurrency: 1, TTL: time.Minute}, endpoint("a", 0))
		first := take(t, e, in(0, "x"))
		calls := flood(t, e, in(0, "x"), 3)
		calls = append(calls, flood(t, e, in(5, "y"), 1)...)
		doomed := send(t.Context(), e, in(-5, "z"))
		synctest.Wait()

		e.SetConfig(scheduler.Config{
			MaxConcurrency: 3, MaxQueued: 1, TTL: 10 * time.Second, Bands: bands(5, 0, -5),
			UsageLimit: scheduler.UsageLimit{Kind: scheduler.PriorityHoldback, MinCeiling: 0.1},
		})
		if got := dispatched(t, calls); len(got) != 1 {
			t.Errorf("%d were dispatched, want one: band 0 stops at 0.55 of 3", len(got))
		}
		s := e.State()
		if s.Live != 2 || s.Queued != 4 || s.Bands[1].Ceiling != 0.55 {
			t.Errorf("%d live, %d queued, ceiling %v; want 2, 4 and 0.55", s.Live, s.Queued, s.Bands[1].Ceiling)
		}
		first.End(scheduler.Outcome{})
		if got := dispatched(t, calls); len(got) != 1 {
			t.Errorf("%d more were dispatched, want 1", len(got))
		}
		expectAt(t, doomed, scheduler.QueueTimeout, 10*time.Second) // the new limit, counted from when it came
	})
}
