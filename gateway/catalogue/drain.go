package catalogue

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Errors of Drain.
var (
	ErrNoPool     = errors.New("there is no such pool")
	ErrNoEndpoint = errors.New("the pool lists no such endpoint and discovers none")
	ErrForeign    = errors.New("llm-d schedules the pool and doesn't ask us: take the endpoint out of its InferencePool, or its discovery file")
)

// Drain says whether an endpoint takes nothing new, on every replica, and
// returns what that changed. It holds until it is said otherwise, here or in a
// document that mentions it. An endpoint that isn't in the catalogue must be in
// a pool that discovers its endpoints; whether it is there, nobody asks.
func Drain(ctx context.Context, app *pgxpool.Pool, pool, endpoint string, on bool) (Changes, error) {
	changes, err := change(ctx, app, false, func(tx pgx.Tx) (Changes, error) {
		doc, _, err := read(ctx, tx)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(doc.Pools, func(p Pool) bool { return p.Name == pool })
		if i < 0 {
			return nil, ErrNoPool
		}
		p := doc.Pools[i]
		if p.Scheduler.Kind == KindLLMD {
			return nil, ErrForeign
		}
		if err := p.drain(endpoint, on); err != nil {
			return nil, err
		}
		return apply(ctx, tx, &Document{Pools: []Pool{p}}, Options{})
	})
	if err != nil {
		return nil, fmt.Errorf("drain endpoint %s of pool %s: %w", endpoint, pool, err)
	}
	return changes, nil
}

// drain alters the pool, which is the caller's own.
func (p *Pool) drain(id string, on bool) error {
	for i := range p.Endpoints {
		if p.Endpoints[i].ID == id {
			p.Endpoints[i].Drain = &on
			return nil
		}
	}
	d := p.Discovery
	if d == nil {
		return ErrNoEndpoint
	}
	kept := make([]string, 0, len(d.Drain)+1) // not nil, which would leave all as it was
	for _, other := range d.Drain {
		if other != id {
			kept = append(kept, other)
		}
	}
	if on {
		kept = append(kept, id)
	}
	d.Drain = kept
	return nil
}
