package billing

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// desk is a group whose transactions take a fixed time. Its clock is virtual.
type desk struct {
	group group
	takes time.Duration

	mu      sync.Mutex
	batches []int
	running int
	most    int // transactions at once
}

func newDesk(cfg SettleConfig, takes time.Duration) *desk {
	d := &desk{takes: takes}
	d.group.init(cfg.withDefaults())
	return d
}

// settle is what Settler.Settle does with its group.
func (d *desk) settle() error {
	it := &settlement{turn: make(chan struct{}, 1), err: errAbandoned}
	if err := d.group.enter(it); err != nil {
		return err
	}
	for range it.turn {
		d.commit()
	}
	return it.err
}

func (d *desk) commit() {
	batch := d.group.gather()
	d.mu.Lock()
	d.batches = append(d.batches, len(batch))
	d.running++
	d.most = max(d.most, d.running)
	d.mu.Unlock()
	<-time.After(d.takes)
	d.mu.Lock()
	d.running--
	d.mu.Unlock()
	finish(batch, nil)
	d.group.leave(batch)
}

// crowd lets callers settle at once, each so often, with pauses between.
func (d *desk) crowd(t *testing.T, callers, each int, pause func() time.Duration) {
	t.Helper()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				if err := d.settle(); err != nil {
					t.Error(err)
				}
				<-time.After(pause())
			}
		})
	}
	wg.Wait()
}

func sum(ns []int) (total int) {
	for _, n := range ns {
		total += n
	}
	return total
}

func TestALoneCallerWaitsForItsOwnCommitOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(SettleConfig{}, time.Millisecond)
		for range 10 {
			began := time.Now()
			if err := d.settle(); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took != time.Millisecond {
				t.Errorf("took %v", took)
			}
		}
	})
}

func TestCallersWhoComeTogetherShareEveryTransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(SettleConfig{}, time.Millisecond)
		const callers, each = 8, 50
		began := time.Now()
		d.crowd(t, callers, each, func() time.Duration { return rand.N(200 * time.Microsecond) })
		if n := sum(d.batches); n != callers*each {
			t.Errorf("%d settlements, want %d", n, callers*each)
		}
		// The first batch can't know of the others.
		if len(d.batches) > each+3 {
			t.Errorf("%d transactions for %d rounds: %v", len(d.batches), each, d.batches)
		}
		if took := time.Since(began) / each; took > 1500*time.Microsecond {
			t.Errorf("a round took %v", took)
		}
	})
}

func TestWhoWaitsForACrowdThatIsGoneWaitsOneLinger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(SettleConfig{Linger: 300 * time.Microsecond}, time.Millisecond)
		d.crowd(t, 20, 3, func() time.Duration { return 0 })
		for i, want := range []time.Duration{1300 * time.Microsecond, time.Millisecond} {
			began := time.Now()
			if err := d.settle(); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took != want {
				t.Errorf("call %d after the crowd took %v, want %v", i, took, want)
			}
		}
	})
}

func TestASecondTransactionNeedsAWholeBatch(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ callers, most int }{
		"few callers take turns":       {9, 1},
		"a whole batch doesn't wait":   {11, 2},
		"never more than are allowed":  {200, 3},
		"one caller is no transaction": {1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newDesk(SettleConfig{MaxBatch: 10, MaxInFlight: 3}, time.Millisecond)
				d.crowd(t, tt.callers, 1, func() time.Duration { return 0 })
				if d.most != tt.most || slices.Max(d.batches) > 10 || sum(d.batches) != tt.callers {
					t.Errorf("%d at once, want %d; batches %v", d.most, tt.most, d.batches)
				}
			})
		})
	}
}

func TestNobodyIsEverLeftWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // which fails when all goroutines wait for ever
		d := newDesk(SettleConfig{MaxBatch: 7, MaxInFlight: 2, Linger: 100 * time.Microsecond}, 250*time.Microsecond)
		const callers, each = 60, 40
		d.crowd(t, callers, each, func() time.Duration { return rand.N(3 * time.Millisecond) })
		if n := sum(d.batches); n != callers*each {
			t.Errorf("%d settlements, want %d", n, callers*each)
		}
		d.group.drain()
		if d.group.running != 0 || len(d.group.pending) != 0 || d.group.gathering {
			t.Errorf("left behind: %d running, %d pending", d.group.running, len(d.group.pending))
		}
	})
}

func TestTheLineIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(SettleConfig{MaxPending: 5, MaxInFlight: 1}, time.Millisecond)
		var wg sync.WaitGroup
		var mu sync.Mutex
		refused := 0
		wg.Go(func() { _ = d.settle() })
		synctest.Wait() // its transaction is under way
		for range 20 {
			wg.Go(func() {
				if err := d.settle(); errors.Is(err, ErrUnavailable) {
					mu.Lock()
					refused++
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if refused != 15 {
			t.Errorf("%d were refused, want 15", refused)
		}
	})
}
