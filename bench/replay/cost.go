package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"weir/scheduler"
)

// cost is what a decision takes in one pool, in CPU time of the whole process:
// what else the machine does disturbs that least.
type cost struct {
	endpoints, flows int
	decision         time.Duration // and its end
	allocs, bytes    int64
	queued           time.Duration // for each request that passes through a queue; 0: not measured
}

// promptBytes is about 8,000 tokens.
const promptBytes = 32 << 10

// measureCost measures decisions for prompts of 8,000 tokens, half of which
// many have in common, in pools that are half full, the largest a little; and
// the queue of pools that are full.
func measureCost(ctx context.Context) ([]cost, error) {
	var out []cost
	for _, endpoints := range []int{10, 100, 1000, 17_000} {
		for _, flows := range []int{1, 100, 10_000} {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			c := cost{endpoints: endpoints, flows: flows}
			r := testing.Benchmark(decide(ctx, endpoints, flows))
			if r.N == 0 {
				return nil, fmt.Errorf("%d endpoints, %d flows: no decision was measured", endpoints, flows)
			}
			c.decision, c.allocs, c.bytes = time.Duration(r.Extra[cpuUnit]), r.AllocsPerOp(), r.AllocedBytesPerOp()
			if endpoints <= 1000 {
				c.queued = time.Duration(testing.Benchmark(pass(ctx, endpoints, flows)).Extra[cpuUnit])
			}
			out = append(out, c)
		}
	}
	return out, nil
}

const cpuUnit = "cpu-ns/op"

// cpuTime is what this process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// crowd is a pool with so many places at each endpoint, and what it is asked.
type crowd struct {
	sched    *scheduler.Embedded
	requests []scheduler.Request
}

func newCrowd(endpoints, places, flows int) *crowd {
	c := &crowd{sched: scheduler.New(scheduler.Config{MaxQueued: unlimited, MaxBandQueued: unlimited, MaxFlowQueued: unlimited, TTL: -1}, nil)}
	all := make([]scheduler.Endpoint, endpoints)
	for i := range all {
		all[i] = scheduler.Endpoint{ID: fmt.Sprintf("endpoint-%d", i), URL: "http://127.0.0.1", MaxConcurrency: places}
	}
	c.sched.SetEndpoints(all)
	for _, p := range all {
		c.sched.SetHealth(p.ID, scheduler.Healthy)
		c.sched.SetLoad(p.ID, scheduler.Load{BlockSize: 16, Blocks: 30_000, At: time.Now()})
	}
	rnd := rand.New(rand.NewPCG(1, 3))
	var prompts [][]byte
	for range 64 {
		p := bytes.Repeat([]byte("instructions and tools that many share; "), promptBytes/40+1)[:promptBytes]
		for i := promptBytes / 2; i < promptBytes; i++ {
			p[i] = byte('a' + rnd.IntN(26))
		}
		prompts = append(prompts, p)
	}
	for i := range max(flows, 64) {
		c.requests = append(c.requests, scheduler.Request{
			Flow: scheduler.Flow{FairnessID: fmt.Sprintf("flow-%d", i%flows)}, Model: "m", CacheSalt: "s",
			Prompt: [][]byte{prompts[i%64]}, InputTokens: promptBytes / 4, OutputTokens: 256,
		})
	}
	return c
}

func (c *crowd) outcome() scheduler.Outcome {
	return scheduler.Outcome{Result: scheduler.Completed, InputTokens: 4000, CachedTokens: 4000, OutputTokens: 100}
}

func (c *crowd) request(i int) scheduler.Request { return c.requests[i%len(c.requests)] }

// decide is a request that need not wait, and its end.
func decide(ctx context.Context, endpoints, flows int) func(*testing.B) {
	return func(b *testing.B) {
		b.Helper()
		c := newCrowd(endpoints, 4, flows)
		defer c.sched.Close()
		for i := range min(2*endpoints, 4000) { // as far as it makes a difference
			if _, err := c.sched.Schedule(ctx, c.request(i)); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportAllocs()
		i, began := 0, cpuTime()
		for b.Loop() {
			l, err := c.sched.Schedule(ctx, c.request(i))
			if err != nil {
				b.Fatal(err)
			}
			l.End(c.outcome())
			i++
		}
		b.ReportMetric(float64(cpuTime()-began)/float64(b.N), cpuUnit)
	}
}

// pass is a request that waits behind others in a full pool, until the end of
// another lets it go.
func pass(ctx context.Context, endpoints, flows int) func(*testing.B) {
	return func(b *testing.B) {
		b.Helper()
		c := newCrowd(endpoints, 1, flows)
		leases := make(chan scheduler.Lease, endpoints+flows)
		for i := range endpoints + flows {
			go func() {
				for {
					l, err := c.sched.Schedule(ctx, c.request(i))
					if err != nil {
						return // the pool was closed
					}
					leases <- l
				}
			}()
		}
		if err := c.full(ctx, endpoints+flows); err != nil {
			b.Fatal(err)
		}
		began := cpuTime()
		for b.Loop() {
			(<-leases).End(c.outcome())
		}
		b.ReportMetric(float64(cpuTime()-began)/float64(b.N), cpuUnit)
		b.StopTimer()
		c.sched.Close()
	}
}

// full waits until every caller waits: those that got a place ask again.
func (c *crowd) full(ctx context.Context, callers int) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		if c.sched.State().Queued == callers {
			return nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
