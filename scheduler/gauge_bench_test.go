package scheduler

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkGates is what the gates cost a decision and the end of its lease:
// the look before it, and three changes of its endpoint's share.
func BenchmarkGates(b *testing.B) {
	for _, endpoints := range []int{100, 17_000} {
		for _, kind := range []DetectorKind{ConcurrencyDetector, UtilizationDetector} {
			b.Run(fmt.Sprintf("%s/endpoints=%d", kind, endpoints), func(b *testing.B) {
				e := New(Config{Detector: Detector{Kind: kind, Staleness: time.Hour}, UsageLimit: UsageLimit{Kind: SoftReflective}}, nil)
				b.Cleanup(e.Close)
				all := make([]Endpoint, endpoints)
				for i := range all {
					all[i] = Endpoint{ID: fmt.Sprint(i)}
				}
				e.SetEndpoints(all)
				for _, p := range all {
					e.SetHealth(p.ID, Healthy)
					e.SetLoad(p.ID, Load{At: time.Now()})
				}
				now := time.Now()
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					e.look(now)
					for range 3 {
						e.gauge.update(e.fleet.endpoints[i%endpoints], now)
					}
				}
			})
		}
	}
}
