package main

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"weir/bench/proc"
)

// target is where a request can be sent.
type target struct {
	name    string
	url     string
	ops     string // of the operators' listener; empty: none
	key     string
	parts   []proc.Part // whose CPU counts; the first one's memory is measured. None for the mock itself
	metered bool        // its receipts are held against the mock
}

// load is a case of the tables: so many requests of one shape.
type load struct {
	name    string
	shape   shape
	callers int
	n       int
	aim     float64 // CPU as a multiple of the floor's; 0 when the design states none
	latency bool    // measured for its latency, so against the mock as well
	rate    float64 // a second, for an open loop; 0 is a closed one
	over    string  // how bytes travel to the target; empty: plain HTTP/1.1
}

func loads(scale float64) []load {
	n := func(full int) int { return max(int(float64(full)*scale), 8) }
	return []load{
		{name: "small JSON, 8 callers", shape: newShape(burstModel, 512, false), callers: 8, n: n(4000), aim: 1.9},
		{name: "64-event stream, 8 callers", shape: newShape(burstModel, 512, true), callers: 8, n: n(1000), aim: 1.5},
		{name: "20 KB prompt, 4 callers", shape: newShape(burstModel, 20_000, false), callers: 4, n: n(1200)},
		{name: "200 KB prompt, 4 callers", shape: newShape(burstModel, 200_000, false), callers: 4, n: n(300), aim: 1.3},
		{name: "64 events 20 ms apart, 128 streams", shape: newShape(pacedModel, 512, true), callers: 128, n: n(256), aim: 1.25},
		{name: "small JSON, 1 caller", shape: newShape(burstModel, 512, false), callers: 1, n: n(400), latency: true},
		{name: "64-event stream, 1 caller", shape: newShape(burstModel, 512, true), callers: 1, n: n(200), latency: true},
		{name: "small JSON, open loop 300/s", shape: newShape(burstModel, 512, false), n: n(900), rate: 300, latency: true},
	}
}

// round is what one target did with one load in one round.
type round struct {
	perSecond  float64
	cpu        []time.Duration // per request, by part
	first      [2]time.Duration
	total      [2]time.Duration // p50 and p99
	peakMemory int64
}

func (r round) allCPU() time.Duration {
	var sum time.Duration
	for _, c := range r.cpu {
		sum += c
	}
	return sum
}

// results of all rounds, by load and target.
type results map[string]map[string][]round

// warmUp opens connections and grows heaps before anything counts. The peak of
// memory in the JSON run is taken here, from processes that have done nothing
// else yet.
func (b *bench) warmUp(ctx context.Context, ls []load) error {
	b.say(fmt.Sprintf("warming up %d targets", len(b.targets)))
	for _, t := range b.targets {
		json, err := b.measure(ctx, t, ls[0])
		if err != nil {
			return err
		}
		stream := ls[1]
		stream.n = max(stream.n/8, 8)
		if _, err := b.measure(ctx, t, stream); err != nil {
			return err
		}
		b.held[t.name] = held{jsonPeak: json.peakMemory}
	}
	for _, l := range secureLoads(0) {
		for _, t := range b.secure {
			if _, err := b.measure(ctx, t, l); err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
		}
	}
	return nil
}

func (b *bench) measureAll(ctx context.Context, rounds int, ls []load) error {
	for i := range rounds {
		for _, l := range ls {
			b.say(fmt.Sprintf("round %d of %d: %s", i+1, rounds, l.name))
			ts := b.on(l)
			for k := range ts {
				// Another order in each round: nobody is always first.
				t := ts[(k+i)%len(ts)]
				if len(t.parts) == 0 && !l.latency {
					continue
				}
				r, err := b.measure(ctx, t, l)
				if err != nil {
					return fmt.Errorf("%s: %w", l.name, err)
				}
				if b.results[l.name] == nil {
					b.results[l.name] = map[string][]round{}
				}
				b.results[l.name][t.name] = append(b.results[l.name][t.name], r)
			}
		}
	}
	return nil
}

// measure puts one load on one target, and nothing else runs meanwhile.
func (b *bench) measure(ctx context.Context, t *target, l load) (round, error) {
	runtime.GC() // ours, so that it doesn't fall into the measurement
	if len(t.parts) > 0 {
		proc.ForgetPeak(t.parts[0].PID)
	}
	madeBefore, err := b.quiet(ctx)
	if err != nil {
		return round{}, err
	}
	before, err := proc.CPU(t.parts)
	if err != nil {
		return round{}, err
	}
	var took run
	if l.rate > 0 {
		took, err = b.via(l).open(ctx, t, l.shape, l.rate, l.n)
	} else {
		took, err = b.via(l).closed(ctx, t, l.shape, l.callers, l.n)
	}
	if err != nil {
		return round{}, err
	}
	made, err := b.quiet(ctx)
	if err != nil {
		return round{}, err
	}
	if t.metered {
		b.made = b.made.plus(made.minus(madeBefore))
	}
	// What a target does just after an answer is a part of its cost.
	if err := pause(ctx, 60*time.Millisecond); err != nil {
		return round{}, err
	}
	after, err := proc.CPU(t.parts)
	if err != nil {
		return round{}, err
	}
	return took.summary(t, l.n, before, after)
}

func (r run) summary(t *target, n int, before, after []time.Duration) (round, error) {
	out := round{perSecond: float64(n) / r.wall.Seconds()}
	for i := range before {
		out.cpu = append(out.cpu, (after[i]-before[i])/time.Duration(n))
	}
	out.first = percentiles(r.samples, func(s sample) time.Duration { return s.first })
	out.total = percentiles(r.samples, func(s sample) time.Duration { return s.total })
	if len(t.parts) > 0 {
		m, err := proc.MemoryOf(t.parts[0].PID)
		if err != nil {
			return out, err
		}
		out.peakMemory = m.Peak
	}
	return out, nil
}

// percentiles returns p50 and p99.
func percentiles(samples []sample, of func(sample) time.Duration) [2]time.Duration {
	values := make([]time.Duration, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	slices.Sort(values)
	return [2]time.Duration{at(values, 0.50), at(values, 0.99)}
}

// at returns the value at a rank from 0 to 1 of a sorted list.
func at[T any](sorted []T, rank float64) T {
	if len(sorted) == 0 {
		var none T
		return none
	}
	return sorted[min(int(rank*float64(len(sorted))), len(sorted)-1)]
}

// spread is the middle of several rounds, and how far they lie apart.
type spread[T cmp.Ordered] struct{ median, low, high T }

func spreadOf[T cmp.Ordered](values []T) spread[T] {
	sorted := slices.Sorted(slices.Values(values))
	if len(sorted) == 0 {
		return spread[T]{}
	}
	return spread[T]{median: sorted[len(sorted)/2], low: sorted[0], high: sorted[len(sorted)-1]}
}
