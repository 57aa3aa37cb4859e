package scheduler

import (
	"sort"
	"time"
)

// Timing counts durations by size, for a histogram. The zero value is empty.
type Timing struct {
	Counts [11]uint64    `json:"counts"` // by TimingBounds, the last one for what is longer than all of them
	Sum    time.Duration `json:"sum_ns"`
}

// TimingBounds are the upper bounds of a Timing's counts.
func TimingBounds() [10]time.Duration {
	const us = time.Microsecond
	return [...]time.Duration{2 * us, 5 * us, 10 * us, 20 * us, 50 * us, 100 * us, 200 * us, 500 * us, 1000 * us, 10_000 * us}
}

func (t *Timing) observe(d time.Duration) {
	bounds := TimingBounds()
	t.Counts[sort.Search(len(bounds), func(i int) bool { return d <= bounds[i] })]++
	t.Sum += max(d, 0) // a clock may jump back
}
