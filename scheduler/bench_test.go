package scheduler_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"syscall"
	"testing"

	"weir/scheduler"
)

// large has no caps that matter.
func large() scheduler.Config {
	return scheduler.Config{
		MaxQueued: 1 << 30, MaxBandQueued: 1 << 30, MaxFlowQueued: 1 << 30,
		Profile: scheduler.Profile{SlowStart: -1}, // as if the endpoints had been there for long
	}
}

func pool(b *testing.B, endpoints, maxConcurrency int) *scheduler.Embedded {
	b.Helper()
	e := scheduler.New(large(), nil)
	b.Cleanup(e.Close)
	all := make([]scheduler.Endpoint, endpoints)
	for i := range all {
		all[i] = endpoint(fmt.Sprintf("endpoint-%d", i), maxConcurrency)
		all[i].CacheBlocks = 500 // soon full, so that each prompt evicts as much as it brings
	}
	e.SetEndpoints(all)
	for _, p := range all {
		e.SetHealth(p.ID, scheduler.Healthy)
	}
	return e
}

// BenchmarkDecision is a request with a prompt of 8,000 tokens that need not
// wait, its first token and its end, in a pool that is half full. The prompts
// are turns of 100 conversations under one system prompt, each three quarters
// of what came before and a quarter that is new.
func BenchmarkDecision(b *testing.B) {
	for _, endpoints := range []int{10, 100, 1000, 17_000} {
		for _, flows := range []int{1, 100, 10_000} {
			b.Run(fmt.Sprintf("endpoints=%d/flows=%d", endpoints, flows), func(b *testing.B) {
				e := pool(b, endpoints, 4)
				names := make([]string, flows)
				for i := range names {
					names[i] = fmt.Sprintf("flow-%d", i)
				}
				turn := conversations()
				request := func(i int) scheduler.Request {
					r := of(names[i%flows])
					r.Prompt, r.InputTokens = turn(i), 8000
					return r
				}
				for i := range 2 * endpoints {
					if _, err := e.Schedule(b.Context(), request(i)); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportAllocs()
				i, cpu := 0, cpuTime(b)
				for b.Loop() {
					l, err := e.Schedule(b.Context(), request(i))
					if err != nil {
						b.Fatal(err)
					}
					l.Observe(scheduler.Progress{Kind: scheduler.FirstToken})
					l.End(scheduler.Outcome{InputTokens: 2000, CachedTokens: 6000, OutputTokens: 10})
					i++
				}
				b.ReportMetric(float64(cpuTime(b)-cpu)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// cpuTime is what this process has used, on all cores together: unlike the
// clock it says something on a machine that does other things as well.
func cpuTime(b *testing.B) int64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// conversations returns what makes the i-th prompt, of 32,000 bytes. Making
// one takes a few bytes' writing, so that it hardly counts.
func conversations() func(i int) [][]byte {
	const n = 100
	system := bytes.Repeat([]byte("system"), 1000)
	histories, last := make([][]byte, n), make([]byte, 8000)
	for i := range histories {
		histories[i] = bytes.Repeat([]byte{byte(i)}, 18_000)
	}
	return func(i int) [][]byte {
		binary.LittleEndian.PutUint64(last, uint64(i))
		return [][]byte{system, histories[i%n], last}
	}
}

// BenchmarkQueued is a request that waits in a full pool behind others, until
// the end of another lets it go: what passes through the queue in a second.
func BenchmarkQueued(b *testing.B) {
	for _, endpoints := range []int{10, 100, 1000} {
		for _, flows := range []int{1, 100, 10_000} {
			b.Run(fmt.Sprintf("endpoints=%d/flows=%d", endpoints, flows), func(b *testing.B) {
				e := pool(b, endpoints, 1)
				leases := make(chan scheduler.Lease, endpoints+flows)
				for i := range endpoints + flows {
					go func() {
						for {
							l, err := e.Schedule(b.Context(), of(fmt.Sprintf("flow-%d", i%flows)))
							if err != nil {
								return
							}
							leases <- l
						}
					}()
				}
				for e.State().Queued < flows {
					runtime.Gosched()
				}
				b.ReportAllocs()
				for b.Loop() {
					(<-leases).End(scheduler.Outcome{InputTokens: 10, OutputTokens: 10})
				}
				b.StopTimer()
				e.Close()
			})
		}
	}
}
