package admission

import (
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// renewChunk is how many slots one script call renews: Redis serves nobody
	// else meanwhile.
	renewChunk = 500
	// syncTimeout bounds one renewal, which is on nobody's way.
	syncTimeout = 2 * time.Second
)

// Run renews the slots of live requests until ctx ends, and finds the way back
// to a Redis that was lost. Without it slots expire under their holders.
func (r *Redis) Run(ctx context.Context) error {
	if err := r.sync(ctx); err != nil && ctx.Err() == nil {
		r.lose(err) // it has never answered: there is nothing to tolerate
	}
	soon := time.NewTimer(time.Hour) // until what was released has waited enough
	soon.Stop()
	defer soon.Stop()
	for {
		wait := r.cfg.Renew
		if r.lost.Load() || r.failures.Load() > 0 {
			wait = r.cfg.Probe
		}
		timer := time.NewTimer(wait)
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				timer.Stop()
				r.flush(context.WithoutCancel(ctx))
				return nil
			case <-r.due:
				soon.Reset(releaseWithin)
			case <-soon.C:
				r.flush(ctx)
			case <-r.fell: // the time until the next try is shorter now
				timer.Stop()
				waiting = false
			case <-timer.C:
				r.heal(ctx)
				waiting = false
			}
		}
	}
}

// heal tells Redis what this replica holds; if Redis was lost and answers
// again, it becomes the judge again.
func (r *Redis) heal(ctx context.Context) {
	if err := r.sync(ctx); err != nil {
		if ctx.Err() == nil {
			r.failed(err)
		}
		return
	}
	r.failures.Store(0)
	if !r.lost.Swap(false) {
		return
	}
	r.log.Info("redis is back: limits are shared again")
	// What was admitted here since the first batch was made up.
	if err := r.sync(ctx); err != nil && ctx.Err() == nil {
		r.failed(err)
	}
}

// sync renews all live slots in one pipelined batch, carries what Redis doesn't
// know and pays what is owed.
func (r *Redis) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	c := &carried{}
	if r.ahead() {
		// Not before Redis answers, so that what ends until then is corrected
		// here; and on top of what Redis had been told.
		if err := r.recall(ctx, r.client.Eval(ctx, lifeScript, []string{lifeKey}, rand.Text())); err != nil {
			return err
		}
		c = r.carry()
	}
	r.mu.Lock()
	held, owed := maps.Clone(r.held), maps.Clone(r.owed) // what is carried is renewed with it
	r.mu.Unlock()
	var life *redis.Cmd
	_, err := r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Ping(ctx) // a renewal begins
		life = p.Eval(ctx, lifeScript, []string{lifeKey}, rand.Text())
		r.queueCarried(ctx, p, c)
		queueRemovals(ctx, p, owed)
		queueRenewals(ctx, p, held, r.cfg.SlotTTL)
		r.index.renew(ctx, p)
		return nil
	})
	if err != nil {
		return err
	}

	if err := r.recall(ctx, life); err != nil {
		return err
	}
	r.mu.Lock()
	r.carrying = nil
	for id := range owed {
		delete(r.owed, id)
	}
	back := r.putBack(held)
	r.mu.Unlock()
	return r.remove(ctx, back)
}

// putBack are those of the renewed requests that ended while the batch was on
// its way, so that it may have put them back. Those whose release Redis is still
// to be told of end by that, which alone knows what to correct. It holds mu.
func (r *Redis) putBack(renewed map[string]group) map[string]group {
	back := map[string]group{}
	for id, g := range renewed {
		_, live := r.held[id]
		_, released := r.released[id]
		_, owed := r.owed[id]
		_, telling := r.telling[id]
		switch {
		case telling:
			r.telling[id] = true
		case !live && !released && !owed:
			back[id] = g.ended()
		default:
		}
	}
	return back
}

// queueRenewals puts requests into their live sets with a fresh expiry.
func queueRenewals(ctx context.Context, p redis.Pipeliner, requests map[string]group, life time.Duration) {
	sets := map[string][]any{}
	for id, g := range requests {
		for _, n := range g.nodes {
			key := g.liveKey(&n)
			sets[key] = append(sets[key], id)
		}
	}
	for key, ids := range sets {
		for chunk := range slices.Chunk(ids, renewChunk) {
			p.Eval(ctx, renewScript, []string{key}, slices.Concat([]any{life.Microseconds()}, chunk)...)
		}
	}
}

// queueRemovals ends requests at their nodes.
func queueRemovals(ctx context.Context, p redis.Pipeliner, requests map[string]group) {
	for id, g := range requests {
		p.Eval(ctx, releaseScript, g.keys(), g.releaseArgs(id)...)
	}
}

func (r *Redis) remove(ctx context.Context, requests map[string]group) error {
	_, err := r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		queueRemovals(ctx, p, requests)
		return nil
	})
	return err
}
