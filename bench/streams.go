package main

import (
	"context"
	"fmt"

	"weir/bench/proc"
)

const (
	droppedStreams = 50
	readBeforeDrop = 10 // events
)

// held is what a target holds: memory, and streams that nobody reads any more.
type held struct {
	jsonPeak  int64 // bytes, of the first part in a run of small JSON
	perStream int64 // bytes of resident memory that the target's first part grew by
	crowd     int64 // bytes of resident memory with all of the streams open that it is to carry
	overrun   int   // events that the upstream made for the worst dropped stream, beyond what its caller read
}

// holdStreams opens idle streams on each target, weighs them and drops them
// all; then it drops streams in mid-flow. Each drop must reach the upstream.
func (b *bench) holdStreams(ctx context.Context, idle int) error {
	for _, t := range b.targets {
		if len(t.parts) == 0 {
			continue
		}
		b.say(fmt.Sprintf("%d idle streams, then %d dropped ones: %s", idle, droppedStreams, t.name))
		h := b.held[t.name]
		var err error
		if h.perStream, err = b.weigh(ctx, t, idle); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		if h.overrun, err = b.overrun(ctx, t); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
		b.held[t.name] = h
	}
	return nil
}

// weigh returns the memory that each of n idle streams takes.
func (b *bench) weigh(ctx context.Context, t *target, n int) (int64, error) {
	var before, grown proc.Memory
	_, err := b.dropping(ctx, t, n, func() (err error) {
		if before, err = proc.MemoryOf(t.parts[0].PID); err != nil {
			return err
		}
		leave, err := b.client.hold(ctx, t, newShape(idleModel, 512, true), n)
		defer leave()
		if err != nil {
			return err
		}
		grown, err = proc.MemoryOf(t.parts[0].PID)
		return err
	})
	return (grown.Now - before.Now) / int64(n), err
}

// overrun returns how many events the upstream made for nobody.
func (b *bench) overrun(ctx context.Context, t *target) (int, error) {
	if err := answers("http://" + b.mockAddr + "/_forget")(ctx); err != nil {
		return 0, err
	}
	after, err := b.dropping(ctx, t, droppedStreams, func() error {
		return b.client.leaveAfter(ctx, t, newShape(pacedModel, 512, true), droppedStreams, readBeforeDrop)
	})
	return after.MostOnCancel - readBeforeDrop, err
}

// dropping does something that drops n streams, and sees that the upstream lost
// exactly those.
func (b *bench) dropping(ctx context.Context, t *target, n int, do func() error) (Stats, error) {
	before, err := b.quiet(ctx)
	if err != nil {
		return before, err
	}
	if err := do(); err != nil {
		return before, err
	}
	after, err := b.quiet(ctx)
	if err != nil {
		return after, err
	}
	made := after.minus(before)
	if t.metered {
		b.made = b.made.plus(made)
	}
	if made.Cancelled != n {
		return after, fmt.Errorf("%d streams were dropped, the upstream lost %d", n, made.Cancelled)
	}
	return after, nil
}
