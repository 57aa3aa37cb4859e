package main

import (
	"context"
	"fmt"
	"syscall"

	"weir/bench/proc"
)

// spareFiles is what a process opens beside its streams' connections.
const spareFiles = 500

// room is how many of n streams a gateway can hold open, each with two
// connections. It raises the limit on open files as far as it may, for the
// processes that are started later.
func room(n int) (int, error) {
	want := uint64(2*n + spareFiles)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	limit.Max = max(limit.Max, want)
	limit.Cur = limit.Max
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit) == nil {
		return n, nil
	}
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil { // not ours to raise
		return 0, err
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, err
	}
	return min(n, (int(limit.Max)-spareFiles)/2), nil
}

// holdCrowd opens all of the streams that a gateway is to carry at once, on the
// floor and on each gateway, and weighs the process. It comes last: what a heap
// has grown to it keeps for a while.
func (b *bench) holdCrowd(ctx context.Context) error {
	for _, t := range b.targets {
		if t.name != floorName && !t.metered {
			continue
		}
		b.say(fmt.Sprintf("%d open streams: %s", b.crowd, t.name))
		_, err := b.dropping(ctx, t, b.crowd, func() error {
			leave, err := b.client.hold(ctx, t, newShape(idleModel, 512, true), b.crowd)
			defer leave()
			if err != nil {
				return err
			}
			m, err := proc.MemoryOf(t.parts[0].PID)
			h := b.held[t.name]
			h.crowd = m.Now
			b.held[t.name] = h
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return nil
}
