package admission

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// A release is worth no round trip of its own: the next admission of this
// replica takes it along, ahead of itself. It waits for one at most this long,
// so that other replicas see the slot soon, and at most so many wait.
const (
	releaseWithin = 5 * time.Millisecond
	releaseBatch  = 256
)

// put keeps releases for Redis. The first of a request counts.
func (r *Redis) put(released map[string]group) {
	r.mu.Lock()
	before := len(r.released)
	for id, g := range released {
		delete(r.telling, id)
		if _, known := r.released[id]; !known {
			r.released[id] = g
		}
	}
	n := len(r.released)
	r.mu.Unlock()
	if before == 0 || n >= releaseBatch {
		select {
		case r.due <- struct{}{}:
		default:
		}
	}
}

// take empties what is kept for Redis. What was taken goes to told, put or owe.
func (r *Redis) take() map[string]group {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.released) == 0 {
		return nil
	}
	taken := r.released
	r.released = map[string]group{}
	for id := range taken {
		r.telling[id] = false
	}
	return taken
}

// told notes what Redis has taken. Where a renewal may have come after the
// release, the request is ended once more, with nothing left to correct.
func (r *Redis) told(released map[string]group) {
	back := map[string]group{}
	r.mu.Lock()
	for id, g := range released {
		if _, live := r.held[id]; r.telling[id] && !live {
			back[id] = g.ended()
		}
		delete(r.telling, id)
	}
	r.mu.Unlock()
	if len(back) > 0 {
		r.put(back)
	}
}

// admitAfterReleases tells Redis what was released and asks for an admission, in
// one round trip.
func (r *Redis) admitAfterReleases(ctx context.Context, keys []string, args []any) ([]int64, error) {
	released := r.take()
	if len(released) == 0 {
		return r.admit.Run(ctx, r.client, keys, args...).Int64Slice()
	}
	if err := r.loadRelease(ctx); err != nil {
		r.put(released)
		return nil, err
	}
	var asked *redis.Cmd
	_, err := r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for id, g := range released {
			r.settle.EvalSha(ctx, p, g.keys(), g.releaseArgs(id)...)
		}
		asked = r.admit.EvalSha(ctx, p, keys, args...)
		return nil
	})
	if err == nil {
		r.told(released)
		return asked.Int64Slice()
	}
	r.put(released) // it may be told twice: only the first time counts
	if !redis.HasErrorPrefix(err, "NOSCRIPT") {
		return nil, err
	}
	r.loaded.Store(false) // Redis has started anew
	r.flush(ctx)
	return r.admit.Run(ctx, r.client, keys, args...).Int64Slice()
}

// loadRelease makes sure that Redis knows the script: in a pipeline, one that is
// unknown would be left out, and what comes after it wouldn't.
func (r *Redis) loadRelease(ctx context.Context) error {
	if r.loaded.Load() {
		return nil
	}
	if err := r.settle.Load(ctx, r.client).Err(); err != nil {
		return err
	}
	r.loaded.Store(true)
	return nil
}

// flush tells Redis what was released. What it doesn't take is owed.
func (r *Redis) flush(ctx context.Context) {
	released := r.take()
	if len(released) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	for chunk := range slices.Chunk(slices.Collect(maps.Keys(released)), renewChunk) {
		part := make(map[string]group, len(chunk))
		for _, id := range chunk {
			part[id] = released[id]
		}
		if err := r.remove(ctx, part); err != nil {
			for id, g := range part {
				r.owe(id, g)
			}
			if ctx.Err() == nil {
				r.failed(err)
			}
			continue
		}
		r.told(part)
	}
}
