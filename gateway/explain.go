package gateway

import (
	"cmp"
	"slices"
	"strings"

	"weir/gateway/catalogue"
	"weir/scheduler"
)

// Decision is a scheduler's decision on one attempt, with the names that the
// catalogue has for what is in it.
type Decision struct {
	scheduler.Decision

	Pool     string   `json:"pool"`
	BandName string   `json:"band_name,omitempty"`
	Models   []string `json:"models,omitempty"` // public names of the engine's model in this pool
	Shared   *Told    `json:"shared,omitempty"` // of a decision that another process took; all else of how it came about stays there
}

// Decisions returns the latest n decisions of all pools, the newest first.
// Every pool remembers a bounded number of its own.
func (f *Fleet) Decisions(n int) []Decision {
	var all []Decision
	f.eachScheduler(func(pool string, s *scheduler.Embedded, shared *sharedQueue) {
		for _, d := range s.Decisions(n) {
			all = append(all, Decision{Decision: d, Pool: pool})
		}
		if shared != nil {
			all = append(all, shared.told.latest(pool, func(*Decision) bool { return true })...)
		}
	})
	slices.SortStableFunc(all, func(a, b Decision) int {
		return b.EnteredAt.Add(b.Waited).Compare(a.EnteredAt.Add(a.Waited))
	})
	return f.named(all[:min(n, len(all))])
}

// DecisionsOn returns the decisions on a request that are still remembered,
// its first attempt first. The id may also be that of one attempt.
func (f *Fleet) DecisionsOn(request string) []Decision {
	attempts := []string{request}
	if !strings.Contains(request, ".") {
		attempts = attempts[:0]
		for n := range maxAttempts {
			attempts = append(attempts, attemptID(request, n+1))
		}
	}
	var all []Decision
	f.eachScheduler(func(pool string, s *scheduler.Embedded, shared *sharedQueue) {
		if shared != nil {
			all = append(all, shared.told.latest(pool, func(d *Decision) bool { return d.isOf(request) })...)
		}
		for _, id := range attempts {
			if d, ok := s.Decision(id); ok {
				all = append(all, Decision{Decision: d, Pool: pool})
			}
		}
	})
	slices.SortFunc(all, func(a, b Decision) int { return cmp.Compare(a.Request, b.Request) })
	return f.named(all)
}

// eachScheduler calls get for every pool, outside the fleet's lock. Shared is nil
// for a pool that the replica schedules itself.
func (f *Fleet) eachScheduler(get func(pool string, s *scheduler.Embedded, shared *sharedQueue)) {
	f.mu.RLock()
	type queues struct {
		own    *scheduler.Embedded
		shared *sharedQueue
	}
	all := make(map[string]queues, len(f.pools))
	for name, p := range f.pools {
		all[name] = queues{p.scheduler, p.shared}
	}
	f.mu.RUnlock()
	for name, q := range all {
		get(name, q.own, q.shared)
	}
}

// named adds the catalogue's names.
func (f *Fleet) named(all []Decision) []Decision {
	snap := f.source.Snapshot()
	for i := range all {
		d := &all[i]
		d.BandName, _ = snap.BandName(d.Band)
		for _, m := range snap.Models() {
			if engineName(m) == d.Model && slices.ContainsFunc(m.Routes, func(r catalogue.Route) bool { return r.Pool == d.Pool }) {
				d.Models = append(d.Models, m.Name)
			}
		}
	}
	return all
}
