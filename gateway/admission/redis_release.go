package admission

import (
	"context"
	"maps"
	"slices"
	"time"
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
	if len(released) == 0 {
		return
	}
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
