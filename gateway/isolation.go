package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/billing"
	"weir/gateway/catalogue"
	"weir/gateway/conformance"
	"weir/scheduler"
	"weir/tenants"
)

// A tenant that can see what came from a prefix cache can find out what others
// have asked. So cached tokens are shown, and billed as such, only by endpoints
// that keep tenants apart: those of a pool that serves one tenant alone, and
// those of a pool that claims to be verified, while a probe has found that the
// claim is true. Elsewhere all input counts as uncached.

const (
	proofHolds  = 25 * time.Hour   // one day, and time to prove it again
	proveEvery  = 24 * time.Hour   // again
	proveLook   = 5 * time.Second  // between looks for endpoints without a proof
	proveRetry  = 10 * time.Second // after a first probe that failed, then twice as long each time
	proveWait   = 5 * time.Minute  // at most
	proveLimit  = time.Minute      // of one endpoint's probe
	proveAtOnce = 8                // endpoints
)

// spot is one endpoint of a pool, and one way to ask it. Another URL is another
// server; and an engine that keeps tenants apart in chats may not do so in
// responses of its own.
type spot struct {
	pool, endpoint, url string
	native              bool
}

// proof is what probes of an endpoint have found.
type proof struct {
	at    time.Time // of the last one that was passed; zero: none since one failed
	next  time.Time // when to probe again
	fails int       // in a row
	fault string    // of the last probe; empty: it was passed
	older string    // a prompt that it was sent: by now its cache may be in slower storage
}

// isolation remembers what endpoints of pools that claim to be verified have
// proven.
type isolation struct {
	mu     sync.Mutex
	proofs map[spot]*proof
	holds  map[string]bool // pools of which every endpoint had proven it at the last look
	first  chan struct{}   // closed after the first round
	once   sync.Once
}

func newIsolation() *isolation {
	return &isolation{proofs: make(map[spot]*proof), first: make(chan struct{})}
}

func (i *isolation) proven(s spot, now time.Time) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.proofs[s]
	return p != nil && !p.at.IsZero() && now.Sub(p.at) < proofHolds
}

// isolates reports whether the endpoint keeps the pool's tenants apart when it
// is asked this way.
func (g *Gateway) isolates(p *catalogue.Pool, t scheduler.Target, op Operation) bool {
	switch p.Isolation {
	case tenants.IsolationSingleTenant:
		return len(p.Tenants) == 1
	case tenants.IsolationVerified:
		return g.isolation.proven(spot{p.Name, t.Endpoint, t.URL, op == Responses}, time.Now())
	default:
		return false
	}
}

// isolatesAll is isolates for all that a target makes see the prompt.
func (g *Gateway) isolatesAll(p *catalogue.Pool, t scheduler.Target, op Operation) bool {
	return g.isolates(p, t, op) && (t.Prefill == nil || g.isolates(p, *t.Prefill, op))
}

// keepsClaim reports whether all of the pool did when its endpoints were last
// looked at. A plan that wants isolation goes nowhere else; that no endpoint
// which came since slips in is checked with the lease.
func (g *Gateway) keepsClaim(p *catalogue.Pool) bool {
	if p.Isolation == tenants.IsolationSingleTenant {
		return len(p.Tenants) == 1
	}
	g.isolation.mu.Lock()
	defer g.isolation.mu.Unlock()
	return g.isolation.holds[p.Name]
}

// allIsolate reports whether the pool has endpoints and all of them do, in every
// way in which they are asked.
func (g *Gateway) allIsolate(snap *catalogue.Snapshot, p *catalogue.Pool) bool {
	all := g.targets(p)
	for _, by := range probesOf(snap, p) {
		if slices.ContainsFunc(all, func(t scheduler.Target) bool { return !g.isolates(p, t, by.op) }) {
			return false
		}
	}
	return len(all) > 0
}

// targets are the pool's endpoints, found ones too where its scheduler tells.
func (g *Gateway) targets(p *catalogue.Pool) []scheduler.Target {
	s, _ := g.deps.Pools.Scheduler(p.Name)
	if known, ok := s.(interface{ State() scheduler.State }); ok {
		var out []scheduler.Target
		for _, e := range known.State().Endpoints {
			if !e.Draining {
				out = append(out, scheduler.Target{Endpoint: e.ID, URL: e.URL})
			}
		}
		return out
	}
	out := make([]scheduler.Target, len(p.Endpoints))
	for i, e := range p.Endpoints {
		out[i] = scheduler.Target{Endpoint: e.ID, URL: e.URL}
	}
	return out
}

// tellable is the receipt that its tenant may see: of an endpoint that doesn't
// keep tenants apart, without what came from its cache.
func (x *exchange) tellable(r billing.Receipt) billing.Receipt {
	r.Usage = x.billed(r.Usage)
	if x.hideCache {
		r.CachedTiers = nil
	}
	return r
}

// billed is the usage by which the tenant pays: what it can't see cached is not
// sold as such.
func (x *exchange) billed(u billing.Usage) billing.Usage {
	if x.hideCache {
		u.InputUncached, u.InputCached = u.InputUncached+u.InputCached, 0
	}
	return u
}

// Isolation is what is known of a pool that claims to be verified.
type Isolation struct {
	Holds     bool                         `json:"holds"` // every endpoint has proven it
	Endpoints map[string]EndpointIsolation `json:"endpoints"`
}

// EndpointIsolation is what the probes of one endpoint have found.
type EndpointIsolation struct {
	ProvenAt time.Time `json:"proven_at,omitzero"`
	Fault    string    `json:"fault,omitempty"` // what is wrong, or why nothing is known
}

// Isolation tells of each pool that claims to be verified.
func (g *Gateway) Isolation() map[string]Isolation {
	out := make(map[string]Isolation)
	snap := g.deps.Catalogue.Snapshot()
	for _, p := range snap.Pools() {
		if p.Isolation != tenants.IsolationVerified {
			continue
		}
		all := Isolation{Holds: g.allIsolate(snap, p), Endpoints: make(map[string]EndpointIsolation)}
		for _, t := range g.targets(p) {
			var found EndpointIsolation
			for i, by := range probesOf(snap, p) {
				if i == 0 || found.Fault == "" { // the first thing that is wrong
					found = g.isolation.of(by.spot(t))
				}
			}
			all.Endpoints[t.Endpoint] = found
		}
		out[p.Name] = all
	}
	return out
}

func (i *isolation) of(s spot) EndpointIsolation {
	i.mu.Lock()
	defer i.mu.Unlock()
	p, way := i.proofs[s], ""
	if s.native {
		way = Responses.Path() + ": "
	}
	switch {
	case p == nil:
		return EndpointIsolation{Fault: way + "not probed yet"}
	case p.fault != "":
		return EndpointIsolation{ProvenAt: p.at, Fault: way + p.fault}
	default:
		return EndpointIsolation{ProvenAt: p.at}
	}
}

// CheckIsolation says which pools don't keep the claim that they are verified,
// in words for operators.
func (g *Gateway) CheckIsolation(context.Context) error {
	var faults []string
	pools := g.Isolation()
	for _, name := range slices.Sorted(maps.Keys(pools)) {
		if pools[name].Holds {
			continue
		}
		for _, id := range slices.Sorted(maps.Keys(pools[name].Endpoints)) {
			if e := pools[name].Endpoints[id]; e.Fault != "" {
				faults = append(faults, fmt.Sprintf("pool %s: endpoint %s: %s", name, id, e.Fault))
			}
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return errors.New("not verified, so that cached tokens are hidden and plans that want isolation are refused: " + strings.Join(faults, "; "))
}

// IsolationProbed is closed once every endpoint of the first catalogue has been
// probed, or could not be.
func (g *Gateway) IsolationProbed() <-chan struct{} { return g.isolation.first }

// WatchIsolation probes the endpoints of pools that claim to be verified, at
// once and daily, until ctx ends. It returns nil.
func (g *Gateway) WatchIsolation(ctx context.Context) error {
	look := time.NewTicker(proveLook)
	defer look.Stop()
	for {
		g.proveDue(ctx)
		g.isolation.once.Do(func() { close(g.isolation.first) })
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
	}
}

// proveDue probes the endpoints whose time has come, some at once, and forgets
// those that are gone.
func (g *Gateway) proveDue(ctx context.Context) {
	snap, now := g.deps.Catalogue.Snapshot(), time.Now()
	var probes sync.WaitGroup
	slots := make(chan struct{}, proveAtOnce)
	present := make(map[spot]bool)
	for _, p := range snap.Pools() {
		if p.Isolation != tenants.IsolationVerified {
			continue
		}
		for _, by := range probesOf(snap, p) {
			for _, t := range g.targets(p) {
				s := by.spot(t)
				present[s] = true
				older, due := g.isolation.due(s, now)
				if !due {
					continue
				}
				slots <- struct{}{}
				probes.Go(func() {
					defer func() { <-slots }()
					prompt, err := g.proveEndpoint(ctx, by, t, older)
					g.isolation.found(s, prompt, err, time.Now())
				})
			}
		}
	}
	probes.Wait()
	holds := make(map[string]bool)
	for _, p := range snap.Pools() {
		holds[p.Name] = p.Isolation == tenants.IsolationVerified && g.allIsolate(snap, p)
	}
	g.isolation.keep(present, holds)
}

// due reports whether it is time to probe, and a prompt of an earlier probe.
func (i *isolation) due(s spot, now time.Time) (older string, due bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.proofs[s]
	if p == nil {
		return "", true
	}
	return p.older, !now.Before(p.next)
}

// found takes in a probe's result. What was proven stays so for its time when
// a later probe can't tell; a probe that refutes it ends it.
func (i *isolation) found(s spot, prompt string, err error, now time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.proofs[s]
	if p == nil {
		p = &proof{}
		i.proofs[s] = p
	}
	p.older = cmp.Or(prompt, p.older)
	if err == nil {
		*p = proof{at: now, next: now.Add(proveEvery), older: p.older}
		return
	}
	if errors.Is(err, conformance.ErrShared) {
		p.at = time.Time{}
	}
	p.fault = err.Error()
	p.next = now.Add(min(proveRetry<<min(p.fails, 10), proveWait))
	p.fails++
}

func (i *isolation) keep(present map[spot]bool, holds map[string]bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.holds = holds
	maps.DeleteFunc(i.proofs, func(s spot, _ *proof) bool { return !present[s] })
}
