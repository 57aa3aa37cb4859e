package main

import (
	"context"
	"runtime"

	"golang.org/x/sync/errgroup"
)

// each runs f for all of the list at once, as far as there are cores, and
// returns what came of it in the list's order.
func each[In, Out any](ctx context.Context, list []In, f func(In) (Out, error)) ([]Out, error) {
	out := make([]Out, len(list))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, in := range list {
		g.Go(func() (err error) {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			out[i], err = f(in)
			return err
		})
	}
	return out, g.Wait()
}

// size is a pool: engines, and the cache of each in blocks.
type size struct{ endpoints, blocks int }

func sizes() (out []size) {
	for _, n := range []int{4, 8, 16} {
		for _, blocks := range []int{500, 1000, 4000, 0} {
			out = append(out, size{n, blocks})
		}
	}
	return out
}

// compared is one policy in one pool under one trace: at the speed at which it
// was recorded, and at one that the pool can't follow.
type compared struct{ recorded, saturated figures }

// sharedCache is the reference: one cache, as large as all together.
const sharedCache = "shared"

// matrix is a trace under all policies in all pools.
type matrix struct {
	name      string
	trace     trace
	unlimited float64 // part of the blocks that a cache finds which forgets nothing
	cells     map[size]map[string]compared
}

// measureTrace fills a trace's matrix.
func measureTrace(ctx context.Context, b bubbles, name string, t trace) (*matrix, error) {
	m := &matrix{name: name, trace: t, unlimited: inOrder(t, 1, 0), cells: map[size]map[string]compared{}}
	type cell struct {
		size   size
		policy policy
	}
	var cells []cell
	for _, s := range sizes() {
		m.cells[s] = map[string]compared{}
		for _, p := range referred() {
			cells = append(cells, cell{s, p})
		}
	}
	done, err := each(ctx, cells, func(c cell) (compared, error) {
		at := setup{workload: t, engines: fleetOf(c.size.endpoints, standard(c.size.blocks)), policy: c.policy, shared: c.policy.name == sharedCache}
		recorded, err := at.run(b)
		if err != nil {
			return compared{}, err
		}
		at.workload = t.faster(float64(c.size.endpoints))
		saturated, err := at.run(b)
		return compared{recorded.figures(), saturated.figures()}, err
	})
	for i, c := range cells {
		m.cells[c.size][c.policy.name] = done[i]
	}
	return m, err
}

// referred is all policies and the reference.
func referred() []policy {
	shared := leastLoaded()
	shared.name = sharedCache
	return append(policies(), shared)
}

// prefillWork is how many times the prompt tokens a policy computes of those
// that another does.
func prefillWork(a, b figures) float64 { return ratio(a.uncached, b.uncached) }
