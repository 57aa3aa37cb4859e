package scheduler_test

import (
	"fmt"
	"testing"

	"weir/scheduler"
)

// large has no caps that matter.
func large() scheduler.Config {
	return scheduler.Config{MaxQueued: 1 << 30, MaxBandQueued: 1 << 30, MaxFlowQueued: 1 << 30}
}

func pool(b *testing.B, endpoints, maxConcurrency int) *scheduler.Embedded {
	b.Helper()
	e := scheduler.New(large(), nil)
	b.Cleanup(e.Close)
	all := make([]scheduler.Endpoint, endpoints)
	for i := range all {
		all[i] = endpoint(fmt.Sprintf("endpoint-%d", i), maxConcurrency)
	}
	e.SetEndpoints(all)
	for _, p := range all {
		e.SetHealth(p.ID, scheduler.Healthy)
	}
	return e
}

// BenchmarkDecision is a request that need not wait, and its end, in a pool
// that is half full.
func BenchmarkDecision(b *testing.B) {
	for _, endpoints := range []int{10, 100, 1000, 17_000} {
		for _, flows := range []int{1, 100, 10_000} {
			b.Run(fmt.Sprintf("endpoints=%d/flows=%d", endpoints, flows), func(b *testing.B) {
				e := pool(b, endpoints, 4)
				names := make([]string, flows)
				for i := range names {
					names[i] = fmt.Sprintf("flow-%d", i)
				}
				for i := range 2 * endpoints {
					if _, err := e.Schedule(b.Context(), of(names[i%flows])); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					l, err := e.Schedule(b.Context(), of(names[i%flows]))
					if err != nil {
						b.Fatal(err)
					}
					l.End(scheduler.Outcome{InputTokens: 10, OutputTokens: 10})
					i++
				}
			})
		}
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
