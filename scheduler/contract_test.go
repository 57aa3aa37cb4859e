package scheduler_test

import (
	"testing"
	"testing/synctest"

	"weir/scheduler"
	"weir/scheduler/schedulertest"
)

// embedded is an Embedded scheduler whose endpoints are always healthy.
type embedded struct{ *scheduler.Embedded }

func (e embedded) SetEndpoints(endpoints []scheduler.Endpoint) {
	e.Embedded.SetEndpoints(endpoints)
	for _, p := range endpoints {
		e.SetHealth(p.ID, scheduler.Healthy)
	}
}

func (e embedded) Queued() int { return e.State().Queued }
func (e embedded) Live() int   { return e.State().Live }

func TestEmbeddedKeepsTheContract(t *testing.T) {
	t.Parallel()
	schedulertest.Test(t, schedulertest.Harness{
		New: func(t *testing.T, p schedulertest.Pool) schedulertest.Subject {
			t.Helper()
			e := embedded{scheduler.New(scheduler.Config{
				MaxQueued: p.MaxQueued, MaxBandQueued: p.MaxBandQueued, MaxFlowQueued: p.MaxFlowQueued, TTL: p.TTL,
			}, nil)}
			t.Cleanup(e.Close)
			e.SetEndpoints(p.Endpoints)
			return e
		},
		Run:    synctest.Test,
		Settle: synctest.Wait,
		Can:    schedulertest.Capabilities{Turns: true, Weights: true, FlowCap: true, Retries: true, Excludes: true},
	})
}
