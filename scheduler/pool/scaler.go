package pool

import (
	"maps"
	"slices"
	"time"

	"weir/scheduler"
)

const (
	scaleEvery = time.Second
	// freshLoad is how old a load may be that still says how full a cache is.
	freshLoad = 10 * time.Second
)

// scaler keeps what deciding on a pool's size needs from one look to the next.
// It is under the pool's mu.
type scaler struct {
	first  recent
	roles  map[string]*calm
	scales []Scale // by role; replaced as a whole
}

// Scales is how many endpoints the pool should have, by role, as of the last
// second. Empty where nobody scales the pool, or Run isn't running.
func (p *Pool) Scales() []Scale {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.scaler.scales
}

// rescale looks at the pool and decides anew.
func (p *Pool) rescale() {
	p.mu.Lock()
	wanted := p.settings.Scaling.Max > 0
	p.mu.Unlock()
	var demand scheduler.Demand
	if wanted {
		demand = p.feed.Demand()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settings.Scaling.Max == 0 {
		p.scaler = scaler{}
		return
	}
	p.scaler.scales = p.decide(demand, time.Now())
}

func (p *Pool) decide(d scheduler.Demand, now time.Time) []Scale {
	settings := p.settings.Scaling.withDefaults()
	base := Signal{
		Queued: d.Queued, QueuedTokens: d.QueuedTokens,
		TTFT: max(p.scaler.first.quantile(now, d.FirstTokens), d.Oldest),
	}
	known := map[string]*calm{}
	var scales []Scale
	for _, role := range p.roles(settings) {
		c := p.scaler.roles[role]
		if c == nil {
			c = &calm{}
		}
		known[role] = c
		g := p.signal(base, d.Endpoints, role, now)
		n, why := settings.want(role, g)
		scales = append(scales, Scale{
			Role: role, Signal: g, Wanted: n, Why: why,
			Desired: min(max(c.settle(n, now, settings.DownAfter), settings.Min), settings.Max),
		})
	}
	p.scaler.roles = known
	return scales
}

// maxRoles bounds the roles that are taken from endpoints' labels.
const maxRoles = 16

// roles are those to decide on, in order.
func (p *Pool) roles(s Scaling) []string {
	if len(s.Roles) > 0 {
		return s.Roles
	}
	seen := map[string]bool{}
	for _, w := range p.watched {
		if len(seen) < maxRoles {
			seen[w.role] = true
		}
	}
	switch {
	case len(seen) > 0:
		return slices.Sorted(maps.Keys(seen))
	case len(p.scaler.roles) > 0:
		return slices.Sorted(maps.Keys(p.scaler.roles))
	default:
		return []string{""}
	}
}

// signal adds what the endpoints of a role show.
func (p *Pool) signal(g Signal, endpoints []scheduler.EndpointState, role string, now time.Time) Signal {
	usage, told := 0.0, 0
	for _, e := range endpoints {
		w := p.watched[e.ID]
		if w == nil || w.url != e.URL || w.role != role || e.Draining {
			continue
		}
		if e.MaxConcurrency > 0 {
			g.Busy += float64(e.Live) / float64(e.MaxConcurrency)
		}
		if e.Health == scheduler.Unhealthy || e.Circuit == scheduler.CircuitOpen {
			continue
		}
		g.Ready++
		if e.Load.At.After(now.Add(-freshLoad)) {
			usage, told = usage+e.Load.KVUsage, told+1
		}
	}
	g.KVUsage = -1
	if told > 0 {
		g.KVUsage = usage / float64(told)
	}
	return g
}
