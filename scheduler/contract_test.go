package scheduler_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

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

// contracted builds a scheduler as the contract asks for it.
func contracted(t *testing.T, p schedulertest.Pool) embedded {
	t.Helper()
	cfg := scheduler.Config{
		MaxQueued: p.MaxQueued, MaxBandQueued: p.MaxBandQueued, MaxFlowQueued: p.MaxFlowQueued, TTL: p.TTL, Eviction: p.Eviction,
	}
	for priority, share := range p.Shares {
		cfg.Bands = append(cfg.Bands, scheduler.BandConfig{Priority: priority, MinShare: share})
	}
	e := embedded{scheduler.New(cfg, nil)}
	t.Cleanup(e.Close)
	e.SetEndpoints(p.Endpoints)
	return e
}

func everything() schedulertest.Capabilities {
	return schedulertest.Capabilities{
		ExactCaps: true, LeastLoaded: true, Excludes: true, FlowCap: true, RequestTTL: true, Turns: true,
		Weights: true, Sessions: true, Retries: true, Shares: true, Reservations: true, Eviction: true, HoldsEvicted: true,
	}
}

func TestEmbeddedKeepsTheContract(t *testing.T) {
	t.Parallel()
	schedulertest.Test(t, schedulertest.Harness{
		New: func(t *testing.T, p schedulertest.Pool) schedulertest.Subject {
			t.Helper()
			return contracted(t, p)
		},
		Run:    synctest.Test,
		Settle: synctest.Wait,
		Can:    everything(),
	})
}

// distant is a scheduler behind a network: it shows nothing of its insides, and
// whatever is said takes a while.
type distant struct{ near embedded }

const latency = 2 * time.Millisecond

func (d distant) SetEndpoints(endpoints []scheduler.Endpoint) { d.near.SetEndpoints(endpoints) }
func (d distant) Close()                                      { d.near.Close() }

func (d distant) Schedule(ctx context.Context, r scheduler.Request) (scheduler.Lease, error) {
	if ctx.Err() == nil {
		<-time.After(latency)
	}
	l, err := d.near.Schedule(ctx, r)
	if err != nil {
		return nil, err
	}
	<-time.After(latency)
	return distantLease{l}, nil
}

type distantLease struct{ scheduler.Lease }

func (l distantLease) End(o scheduler.Outcome) { time.AfterFunc(latency, func() { l.Lease.End(o) }) }

func TestContractNeedsNothingButAnswers(t *testing.T) {
	t.Parallel()
	schedulertest.Test(t, schedulertest.Harness{
		New: func(t *testing.T, p schedulertest.Pool) schedulertest.Subject {
			t.Helper()
			return distant{contracted(t, p)}
		},
		Run: synctest.Test,
		Settle: func() {
			synctest.Sleep(10 * latency)
			synctest.Wait()
		},
		Slack: 10 * latency,
		Can:   everything(),
	})
}
