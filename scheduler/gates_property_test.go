package scheduler_test

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/scheduler"
)

func detectors(t *rapid.T) scheduler.Detector {
	return scheduler.Detector{
		Kind:         rapid.SampledFrom([]scheduler.DetectorKind{scheduler.ConcurrencyDetector, scheduler.UtilizationDetector}).Draw(t, "detector"),
		Mode:         rapid.SampledFrom([]scheduler.ConcurrencyMode{scheduler.CountRequests, scheduler.CountTokens, scheduler.CountHybrid}).Draw(t, "mode"),
		MaxTokens:    rapid.IntRange(500, 3000).Draw(t, "max tokens"),
		OutputTokens: rapid.Bool().Draw(t, "output"),
		MaxOutput:    rapid.IntRange(0, 300).Draw(t, "max output"),
		Staleness:    time.Duration(rapid.IntRange(1, 5).Draw(t, "staleness")) * time.Second,
		StaleIsFull:  rapid.Bool().Draw(t, "stale is full"),
		Headroom:     rapid.SampledFrom([]float64{0, 0.5}).Draw(t, "headroom"),
	}
}

func limits(t *rapid.T) scheduler.UsageLimit {
	return scheduler.UsageLimit{
		Kind:       rapid.SampledFrom([]scheduler.UsageLimitKind{scheduler.StaticLimit, scheduler.PriorityHoldback, scheduler.SoftReflective}).Draw(t, "limit"),
		MinCeiling: rapid.Float64Range(0.1, 1).Draw(t, "min ceiling"),
		ByValue:    rapid.Bool().Draw(t, "by value"),
	}
}

// Whatever is set, said and done in whatever order: what the gates keep by
// adding and taking off is what the live leases add up to, a change of
// settings loses nobody, and in the end nothing is left.
func TestGatesNeverDriftFromTheLiveLeases(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			m := &model{
				e:       embedded{scheduler.New(scheduler.Config{MaxConcurrency: 2, TTL: 10 * time.Second, Eviction: true}, nil)},
				pending: map[int]pending{}, live: map[int]scheduler.Lease{}, gated: true,
			}
			defer m.e.Close()
			m.e.SetEndpoints([]scheduler.Endpoint{endpoint("a", 2), endpoint("b", 1)})
			actions := m.actions()
			actions["change settings"] = func(t *rapid.T) {
				m.e.SetConfig(scheduler.Config{
					MaxConcurrency: rapid.IntRange(1, 3).Draw(t, "concurrency"), TTL: 10 * time.Second,
					Detector: detectors(t), UsageLimit: limits(t), Eviction: rapid.Bool().Draw(t, "eviction"),
					Shed:      scheduler.Shed{Enabled: rapid.Bool().Draw(t, "shed")},
					Bands:     []scheduler.BandConfig{{Priority: rapid.IntRange(-3, 3).Draw(t, "priority")}},
					Decisions: rapid.IntRange(-1, 5).Draw(t, "decisions"),
				})
			}
			actions["load"] = func(t *rapid.T) {
				m.e.SetLoad(rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "endpoint"), scheduler.Load{
					Waiting: rapid.IntRange(-1, 10).Draw(t, "waiting"), KVUsage: rapid.Float64Range(-1, 2).Draw(t, "kv"),
					At: time.Now().Add(-time.Duration(rapid.IntRange(-1, 6).Draw(t, "age")) * time.Second),
				})
			}
			actions["roles"] = func(t *rapid.T) {
				role := rapid.SampledFrom([]string{"prefill", "decode", "both", "encode"}).Draw(t, "role")
				p := endpoint("b", 2)
				p.Labels = map[string]string{scheduler.RoleLabel: role}
				m.e.Embedded.SetEndpoints([]scheduler.Endpoint{endpoint("a", 2), p})
			}
			actions["first token"] = func(*rapid.T) {
				for _, l := range m.live {
					l.Observe(scheduler.Progress{Kind: scheduler.FirstToken})
				}
			}
			actions["obey eviction"] = func(*rapid.T) {
				for id, l := range m.live {
					select {
					case <-l.Evicted():
						delete(m.live, id)
						l.End(scheduler.Outcome{Result: scheduler.Abandoned})
					default:
					}
				}
			}
			actions[""] = func(t *rapid.T) {
				m.check(t)
				if err := m.e.Audit(); err != nil {
					t.Fatal(err)
				}
			}
			t.Repeat(actions)
			m.finish(t)
		})
	})
}
