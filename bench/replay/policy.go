package main

import (
	"context"
	"strconv"

	"weir/scheduler"
)

// policy decides which engine takes a request.
type policy struct {
	name    string
	prompts bool                                   // it reads prompts
	loads   bool                                   // it reads what engines say of themselves
	secret  bool                                   // engines don't say how large their caches are
	tokens  func(r *request) *scheduler.TokenChain // what it is told of a prompt; nil: nothing
	build   func(m *sim) (s scheduler.Scheduler, closing func())
}

// told is what an engine says of its cache's size.
func (p *policy) told(blocks int) int {
	if p.secret {
		return 0
	}
	return blocks
}

// unlimited has no caps that matter.
const unlimited = 1 << 30

// policies are those that can be asked for by name, in the order of tables.
func policies() []policy {
	return []policy{roundRobin(), leastLoaded(), greedy(), llmd(), ours()}
}

// ours is Weir as it is without a document.
func ours() policy {
	return embedded("ours", scheduler.Config{MaxQueued: unlimited, MaxBandQueued: unlimited, MaxFlowQueued: unlimited, TTL: -1}, 0)
}

// llmd is what llm-d's endpoint picker does without a document: no flow
// control, three scorers with their default weights, and the best score wins.
func llmd() policy {
	return embedded("llm-d", scheduler.Config{
		TTL: -1,
		Profile: scheduler.Profile{
			Scorers: []scheduler.Scorer{
				{Kind: "queue-scorer", Weight: 2},
				{Kind: "kv-cache-utilization-scorer", Weight: 2},
				{Kind: "prefix-cache-scorer", Weight: 3},
			},
			Picker:    scheduler.Picker{Kind: scheduler.MaxScore},
			SlowStart: -1,
		},
	}, unlimited)
}

// embedded is a policy of Weir's own scheduler, with so many places at each
// engine; 0 leaves that to the engine or the scheduler.
func embedded(name string, cfg scheduler.Config, maxConcurrency int) policy {
	return policy{name: name, prompts: true, loads: true, build: func(m *sim) (scheduler.Scheduler, func()) {
		e := scheduler.New(cfg, nil)
		all := make([]scheduler.Endpoint, 0, len(m.engines))
		for i, v := range m.setup.engines {
			p := v.endpoint
			p.URL = "http://" + p.ID
			if maxConcurrency > 0 {
				p.MaxConcurrency = maxConcurrency
			}
			p.CacheBlocks = m.engines[i].blocks
			all = append(all, p)
		}
		e.SetEndpoints(all)
		for _, p := range all {
			e.SetHealth(p.ID, scheduler.Healthy)
		}
		return e, e.Close
	}}
}

// plain is a policy that sends each request on at once: what waits, waits at
// an engine.
type plain struct {
	sim  *sim
	pick func(id int) int
	live []int
}

// plainLease is its lease.
type plainLease struct {
	plain *plain
	at    int
}

func plainPolicy(name string, pick func(p *plain) func(id int) int) policy {
	return policy{name: name, build: func(m *sim) (scheduler.Scheduler, func()) {
		p := &plain{sim: m, live: make([]int, len(m.engines))}
		p.pick = pick(p)
		return p, func() {}
	}}
}

// Schedule never waits. The simulation asks for one request at a time.
func (p *plain) Schedule(_ context.Context, r scheduler.Request) (scheduler.Lease, error) {
	id, err := strconv.Atoi(r.ID)
	if err != nil {
		return nil, err
	}
	at := p.pick(id)
	p.live[at]++
	return plainLease{p, at}, nil
}

// Targets is the one engine.
func (l plainLease) Targets() []scheduler.Target {
	return []scheduler.Target{{Endpoint: l.plain.sim.setup.engines[l.at].endpoint.ID}}
}

// Body is nothing.
func (l plainLease) Body() []byte { return nil }

// Evicted never happens.
func (l plainLease) Evicted() <-chan struct{} { return nil }

// Observe is of no interest.
func (l plainLease) Observe(scheduler.Progress) {}

// End gives the engine back.
func (l plainLease) End(scheduler.Outcome) { l.plain.live[l.at]-- }

// roundRobin is what a plain Kubernetes Service comes to.
func roundRobin() policy {
	return plainPolicy("round-robin", func(p *plain) func(int) int {
		next := -1
		return func(int) int {
			next = (next + 1) % len(p.live)
			return next
		}
	})
}

// leastLoaded sends to the engine with the fewest requests; ties take turns.
func leastLoaded() policy {
	return plainPolicy("least-loaded", func(p *plain) func(int) int {
		next := -1
		return func(int) int {
			best := -1
			for i := range p.live {
				at := (next + 1 + i) % len(p.live)
				if best < 0 || p.live[at] < p.live[best] {
					best = at
				}
			}
			next = best
			return best
		}
	})
}

// greedy knows what is in each cache and sends a request to where most of its
// prompt is, if that is over a quarter of it; else to the engine that computed
// the least so far.
func greedy() policy {
	return plainPolicy("prefix-greedy", func(p *plain) func(int) int {
		sent := make([]int, len(p.live)) // blocks to compute
		return func(id int) int {
			r := p.sim.requests[id]
			best, most := 0, -1
			least := 0
			for i, e := range p.sim.engines {
				hits := e.kv.match(r.blocks)
				if hits > most || hits == most && sent[i] < sent[best] {
					best, most = i, hits
				}
				if sent[i] < sent[least] {
					least = i
				}
			}
			if 4*most <= len(r.blocks) {
				best = least
			}
			sent[best] += len(r.blocks) - p.sim.engines[best].kv.match(r.blocks)
			return best
		}
	})
}
