package gateway

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"weir/billing"
	"weir/gateway/admission"
	"weir/tenants"
)

// checkpointEvery is how much of an exchange is unknown at most, should this
// process die.
const checkpointEvery = time.Second

// trace is how far an exchange with an intent has come, for the checkpoints.
type trace struct {
	tenant, request string
	dispatched      atomic.Bool  // a model server has been reached
	input           atomic.Int64 // as the engine counts it; 0 until it says
	cached          atomic.Int64 // of the input, as it is billed
	output          atomic.Int64

	told admission.Progress // of the last checkpoint; only the checkpoints use it
}

// traces is the set of exchanges with an intent that are under way.
type traces struct {
	mu  sync.Mutex
	set map[*trace]struct{}
}

func newTraces() *traces { return &traces{set: make(map[*trace]struct{})} }

func (t *traces) add(x *trace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set[x] = struct{}{}
}

func (t *traces) remove(x *trace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.set, x)
}

// follow notes what the meter has read, as it is billed. The input doesn't change
// while an answer goes on: it is looked for until it is there.
func (t *trace) follow(m *meter, billed func(billing.Usage) billing.Usage) {
	t.output.Store(m.output)
	if t.input.Load() != 0 || len(m.raw) == 0 {
		return
	}
	if u, source := m.usage(false); source == billing.UpstreamPartial {
		u = billed(u)
		t.cached.Store(u.InputCached) // before what says that it is there
		t.input.Store(u.Input())
	}
}

// moved lists those that have come further than was told, and notes them.
func (t *traces) moved() (far []admission.Progress) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for x := range t.set {
		now := admission.Progress{
			Tenant: x.tenant, Request: x.request,
			Dispatched: x.dispatched.Load(), Input: x.input.Load(), Output: x.output.Load(),
		}
		if now.Input > 0 {
			now.Cached = x.cached.Load()
		}
		if now.Dispatched && now != x.told {
			x.told = now
			far = append(far, now)
		}
	}
	return far
}

// Checkpoint notes each second how far the exchanges under way have come, until
// ctx ends: whoever settles what this process leaves behind, should it die,
// bills what was noted.
func (g *Gateway) Checkpoint(ctx context.Context) error {
	if g.deps.Intents == nil {
		return nil
	}
	ticker := time.NewTicker(checkpointEvery)
	defer ticker.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		far := g.traces.moved()
		if len(far) == 0 {
			continue
		}
		err := g.deps.Intents.Checkpoint(ctx, far)
		if err != nil && !failing && ctx.Err() == nil {
			g.log.LogAttrs(ctx, slog.LevelWarn, "progress not noted: should this process die, less is billed", slog.Any("error", err))
		}
		failing = err != nil
	}
}

// intent is what is kept of the exchange until it is settled; nil where nothing
// is billed.
func (x *exchange) intent() *admission.Intent {
	mode := x.g.mode(x.call.Principal)
	if x.g.deps.Intents == nil || mode == billing.ModeOff {
		return nil
	}
	p := x.call.Principal
	in := &admission.Intent{
		Request: x.call.ID, Tenant: string(p.Tenant), Project: string(p.Project), Key: string(p.Key),
		Model: x.model.Name, Operation: string(x.call.Operation), Tier: string(x.tier), Mode: string(mode),
		Prompt: x.meter.prompt, StartedAt: x.call.ReceivedAt, Replica: x.g.cfg.Replica,
	}
	if x.priced {
		in.PriceVersion = x.price.Version
	}
	if x.purse.hold != nil {
		in.Chunks = x.purse.hold.Chunks()
	}
	x.trace = &trace{tenant: in.Tenant, request: in.Request}
	return in
}

// mode is how a caller's use is billed.
func (g *Gateway) mode(p *tenants.Principal) billing.Mode {
	return cmp.Or(billing.Mode(p.Billing.Mode), g.cfg.BillingMode, billing.ModeOff)
}
