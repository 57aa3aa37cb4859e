package admission

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// calls is a place where calls are made that take a second each batch.
type calls struct {
	mu      sync.Mutex
	batches [][]int
	flying  int
	most    int // batches on their way at once
}

func (c *calls) run(_ context.Context, batch []*int) {
	c.mu.Lock()
	c.flying++
	c.most = max(c.most, c.flying)
	c.mu.Unlock()
	<-time.After(time.Second)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flying--
	made := make([]int, len(batch))
	for i, call := range batch {
		made[i] = *call
		*call = -*call
	}
	c.batches = append(c.batches, made)
}

func TestCallsThatComeMeanwhileShareTheNextBatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c calls
		calling := together[*int]{most: 4, run: c.run}
		var callers sync.WaitGroup
		for n := range 10 {
			callers.Go(func() {
				<-time.After(time.Duration(n) * time.Millisecond)
				call := n + 1
				if err := calling.do(t.Context(), &call); err != nil || call != -(n+1) {
					t.Errorf("call %d: %d, %v", n+1, call, err)
				}
			})
		}
		callers.Wait()
		want := [][]int{{1}, {2, 3, 4, 5}, {6, 7, 8, 9}, {10}}
		if !slices.EqualFunc(c.batches, want, slices.Equal[[]int]) || c.most != 1 {
			t.Errorf("batches = %v, %d at once; want %v, one after the other", c.batches, c.most, want)
		}
		if calling.flying || len(calling.waiting) != 0 {
			t.Errorf("left behind: flying %v, %d waiting", calling.flying, len(calling.waiting))
		}
	})
}

func TestACallerWhoLeavesHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		leave time.Duration // of the second caller, whose turn comes after one second
	}{
		{"while it waits", 500 * time.Millisecond},
		{"in the moment of its turn", time.Second},
		{"while its batch is on its way", 1500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var made calls
				calling := together[*int]{most: 4, run: made.run}
				left, cancel := context.WithCancel(t.Context())
				time.AfterFunc(c.leave, cancel)
				var callers sync.WaitGroup
				for n, ctx := range []context.Context{t.Context(), left, t.Context(), left, t.Context()} {
					callers.Go(func() {
						<-time.After(time.Duration(n) * time.Millisecond)
						call := n + 1
						err := calling.do(ctx, &call)
						if ctx != left && (err != nil || call != -(n+1)) {
							t.Errorf("call %d: %d, %v", n+1, call, err)
						}
						if err != nil && !errors.Is(err, context.Canceled) {
							t.Errorf("call %d: %v", n+1, err)
						}
					})
				}
				callers.Wait()
				call := 9
				if err := calling.do(t.Context(), &call); err != nil || call != -9 || calling.flying {
					t.Errorf("afterwards: %d, %v, flying %v", call, err, calling.flying)
				}
			})
		})
	}
}
