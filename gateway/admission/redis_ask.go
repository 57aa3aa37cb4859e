package admission

import (
	"context"
	"errors"

	"github.com/redis/go-redis/v9"
)

// askBatch is how many admissions share a round trip at most: Redis serves
// nobody else while it runs a script.
const askBatch = 64

// errUnasked is the error of an admission that nobody came to ask for.
var errUnasked = errors.New("admission: not asked")

// asking is one admission that Redis is asked for.
type asking struct {
	keys   []string
	args   []any
	answer []int64
	err    error
}

// askTogether asks for the admissions that came at the same time, after telling
// Redis what was released. A caller who leaves takes nobody's answer along.
func (r *Redis) askTogether(ctx context.Context, batch []*asking) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
	defer cancel()
	err := r.askOnce(ctx, batch)
	if redis.HasErrorPrefix(err, "NOSCRIPT") { // Redis has started anew
		r.loaded.Store(false)
		err = r.askOnce(ctx, batch)
	}
	if err != nil {
		for _, a := range batch {
			a.err = err
		}
	}
}

// askOnce is one round trip. It may be made again: an admission counts once by
// its id, and so does a release.
func (r *Redis) askOnce(ctx context.Context, batch []*asking) error {
	if err := r.loadScripts(ctx); err != nil {
		return err
	}
	released := r.take()
	asked := make([]*redis.Cmd, len(batch))
	_, err := r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for id, g := range released {
			r.settle.EvalSha(ctx, p, g.keys(), g.releaseArgs(id)...)
		}
		for i, a := range batch {
			asked[i] = r.admit.EvalSha(ctx, p, a.keys, a.args...)
		}
		return nil
	})
	if err != nil {
		r.put(released)
		return err
	}
	r.told(released)
	for i, a := range batch {
		a.answer, a.err = asked[i].Int64Slice()
	}
	return nil
}

// loadScripts makes sure that Redis knows the scripts: in a pipeline, one that
// is unknown would be left out, and what comes after it wouldn't.
func (r *Redis) loadScripts(ctx context.Context) error {
	if r.loaded.Load() {
		return nil
	}
	for _, s := range []*redis.Script{r.settle, r.admit} {
		if err := s.Load(ctx, r.client).Err(); err != nil {
			return err
		}
	}
	r.loaded.Store(true)
	return nil
}
