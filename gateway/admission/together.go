package admission

import (
	"context"
	"slices"
	"sync"
)

// together lets calls that come at the same time share one round trip: waking
// Redis, and this process by its answer, costs far more than what it is asked.
// One batch is on its way at a time; what comes meanwhile makes up the next.
// A caller who is alone waits for nobody, and no goroutine stands between.
type together[C any] struct {
	// most is how many calls go in one batch.
	most int
	// run makes the calls of a batch, and returns when all have their answers.
	// The context is of the caller whose goroutine it is.
	run func(ctx context.Context, batch []C)

	mu      sync.Mutex
	flying  bool
	waiting []*seat[C]
}

// seat is one caller's place.
type seat[C any] struct {
	call  C
	wake  chan struct{} // closed when the call was made, or the caller is to lead
	leads bool          // guarded by mu
}

// do makes the call and returns when it was made, or with ctx's error when that
// ends first: the call may be made all the same then.
func (t *together[C]) do(ctx context.Context, call C) error {
	own := &seat[C]{call: call}
	t.mu.Lock()
	if t.flying {
		own.wake = make(chan struct{})
		t.waiting = append(t.waiting, own)
		t.mu.Unlock()
		select {
		case <-own.wake:
		case <-ctx.Done():
			if !t.leave(own) {
				return context.Cause(ctx)
			}
		}
		if !own.leads {
			return nil
		}
		t.mu.Lock()
	}
	t.flying = true
	others := t.board(t.most - 1)
	t.mu.Unlock()
	batch := make([]C, 1, 1+len(others))
	batch[0] = own.call
	for _, s := range others {
		batch = append(batch, s.call)
	}
	defer t.land(others)
	t.run(ctx, batch)
	return nil
}

// board takes up to n of those who wait, in their order. It holds mu.
func (t *together[C]) board(n int) []*seat[C] {
	n = min(n, len(t.waiting))
	taken := slices.Clone(t.waiting[:n])
	t.waiting = slices.Delete(t.waiting, 0, n)
	return taken
}

// land wakes those whose calls were made, and gives the lead to the next.
func (t *together[C]) land(made []*seat[C]) {
	for _, s := range made {
		close(s.wake)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flying = len(t.waiting) > 0
	for _, next := range t.board(1) {
		next.leads = true
		close(next.wake)
	}
}

// leave gives a place up. It reports whether the caller was made to lead in the
// meantime, and must: others wait for it.
func (t *together[C]) leave(own *seat[C]) (leads bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.waiting, own); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	return own.leads
}
