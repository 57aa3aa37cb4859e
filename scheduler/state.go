package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// State is a snapshot of a scheduler, for operators and metrics. Nothing in it
// is shared with the scheduler.
type State struct {
	Queued           int             `json:"queued"`
	QueuedBytes      int64           `json:"queued_bytes"` // of their bodies
	MaxQueued        int             `json:"max_queued"`   // 0 or less: none may wait
	MaxBytes         int64           `json:"max_bytes"`    // 0: no bound
	Live             int             `json:"live"`         // leases
	Saturation       float64         `json:"saturation"`   // how full the detector finds the pool, 1 being full; it may be more
	DispatchedPerSec float64         `json:"dispatched_per_second"`
	Stages           []StageState    `json:"stages"`            // of which saturation is the fuller one
	Stale            int             `json:"stale"`             // endpoints that said nothing of themselves lately
	Detector         DetectorKind    `json:"detector"`          // that finds the saturation
	Cycles           Timing          `json:"cycles"`            // of looks for an endpoint
	ReclaimTarget    int             `json:"reclaim_target"`    // leases that were told to end in the last round of evictions
	ReclaimPending   int             `json:"reclaim_pending"`   // of them those that have not ended
	Reclaimed        Timing          `json:"reclaimed"`         // leases that ended when they were told to, and how long they took
	ReclaimTimedOut  uint64          `json:"reclaim_timed_out"` // leases that had not when others were told to
	Bands            []BandState     `json:"bands"`             // highest first
	Endpoints        []EndpointState `json:"endpoints"`         // in the pool's order, then removed ones that still run something
	Closed           bool            `json:"closed"`
	Populated        bool            `json:"populated"` // some endpoint is worth waiting for

	Splits    *Splits         `json:"splits,omitempty"`    // of a split pool
	Revisions []RevisionState `json:"revisions,omitempty"` // of a pool that goes by revisions
}

// StageState is how full the endpoints are that serve one stage of a request.
type StageState struct {
	Stage      string  `json:"stage"` // prefill, decode
	Saturation float64 `json:"saturation"`
}

// BandState is one band. Its totals count since the scheduler was built.
type BandState struct {
	Priority   int               `json:"priority"`
	Queued     int               `json:"queued"`
	Bytes      int64             `json:"bytes"` // of the bodies that wait
	MaxQueued  int               `json:"max_queued"`
	MaxBytes   int64             `json:"max_bytes"`
	Live       int               `json:"live"`
	Ceiling    float64           `json:"ceiling"`  // the saturation up to which it is dispatched, as of the last look
	Flows      []FlowState       `json:"flows"`    // those with something queued or live, by fairness ID
	Enqueued   Timing            `json:"enqueued"` // what it took to queue a request
	Dispatched uint64            `json:"dispatched"`
	Evictions  uint64            `json:"evictions"` // leases of lower bands that were told to end for this one
	Waited     time.Duration     `json:"waited_ns"` // in sum, by those dispatched
	Refused    map[Reason]uint64 `json:"refused"`
}

// FlowState is one flow of a band.
type FlowState struct {
	FairnessID string  `json:"fairness_id"`
	Weight     int     `json:"weight"`
	Queued     int     `json:"queued"`
	Live       int     `json:"live"`
	Served     float64 `json:"served"` // virtual token counter: comparable within the band; 0 where its policy has none
}

// EndpointState is one endpoint.
type EndpointState struct {
	ID             string  `json:"id"`
	URL            string  `json:"url"`
	MaxConcurrency int     `json:"max_concurrency"`
	Limit          int     `json:"limit"` // of leases, as it is now: less while it is new or unproven
	Live           int     `json:"live"`
	Tokens         int     `json:"tokens"` // that its leases count for in the detector
	Load           Load    `json:"load"`   // what it last said of itself; zero where it never did
	Health         Health  `json:"health"` // by probes
	Circuit        Circuit `json:"circuit"`
	Draining       bool    `json:"draining"`
	Paused         bool    `json:"paused"` // it said that it is full, a moment ago

	Ranks []RankState `json:"ranks,omitempty"` // where it has several; what stands above is of all of them

	Cache CacheState `json:"cache"` // what it reports of its prefix cache; of ranks, each one's
}

// Circuit says whether an endpoint's own outcomes keep it out.
type Circuit int

// The states of a circuit: requests flow; none do until the backoff ends; one
// request may try the endpoint or is trying it.
const (
	CircuitClosed Circuit = iota
	CircuitOpen
	CircuitHalfOpen
)

func (c Circuit) String() string {
	switch c {
	case CircuitClosed:
		return "closed"
	case CircuitOpen:
		return "open"
	case CircuitHalfOpen:
		return "half_open"
	default:
		return fmt.Sprintf("circuit(%d)", int(c))
	}
}

// MarshalText makes a Circuit readable in JSON.
func (c Circuit) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

func (c *condition) circuit(now time.Time) Circuit {
	switch {
	case !c.open():
		return CircuitClosed
	case c.trial != nil || !now.Before(c.retryAt):
		return CircuitHalfOpen
	default:
		return CircuitOpen
	}
}

// State takes a snapshot. It costs time in proportion to what waits and runs,
// under the scheduler's lock: for scrapes and people, not for every request.
func (e *Embedded) State() State {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	s := State{
		Queued:           e.queues.queued + len(e.queues.aside),
		QueuedBytes:      e.queues.bytes,
		MaxQueued:        e.cfg.MaxQueued,
		MaxBytes:         e.cfg.MaxBytes,
		Detector:         e.cfg.Detector.Kind,
		Cycles:           e.cycles,
		ReclaimTarget:    e.eviction.target,
		ReclaimPending:   e.eviction.pending,
		Reclaimed:        e.eviction.confirmed,
		ReclaimTimedOut:  e.eviction.timedOut,
		DispatchedPerSec: e.drain.perSecond(now),
		Closed:           e.closed,
		Populated:        e.populated,
	}
	s.Saturation, _ = e.gauge.saturation(now)
	sparing := e.fleet.sparing(now)
	s.Stages = e.gauge.stages()
	if e.fleet.apart != nil {
		s.Splits = new(e.fleet.splits)
	}
	if e.fleet.rollout.on {
		s.Revisions = e.fleet.rollout.states()
	}
	for _, p := range e.fleet.endpoints {
		if !p.known(e.cfg.Detector.Staleness, now) {
			s.Stale++
		}
	}
	live := map[*flow]int{}
	for _, p := range slices.Concat(e.fleet.endpoints, e.fleet.leaving) {
		for l := range p.live {
			if l.endpoint == p { // and not one whose prompt it computes
				live[l.charge.flow]++
				s.Live++
			}
		}
		state := p.state(now)
		state.Limit, _, _ = e.fleet.bar(p, sparing, now)
		s.Endpoints = together(s.Endpoints, p, state)
	}
	for _, b := range e.queues.bands {
		s.Bands = append(s.Bands, b.state(live))
	}
	return s
}

// known reports whether the endpoint said something of itself lately.
func (p *endpoint) known(staleness time.Duration, now time.Time) bool {
	return !p.load.At.IsZero() && now.Before(p.load.At.Add(staleness))
}

// stages lists the stages for which there are endpoints.
func (g *gauge) stages() (all []StageState) {
	if full, some := g.prefill.full(); some {
		all = append(all, StageState{Stage: "prefill", Saturation: full})
	}
	if full, some := g.decode.full(); some {
		all = append(all, StageState{Stage: "decode", Saturation: full})
	}
	return all
}

func (p *endpoint) state(now time.Time) EndpointState {
	return EndpointState{
		ID: p.ID, URL: p.URL, MaxConcurrency: p.MaxConcurrency, Draining: p.Draining,
		Live: len(p.live), Tokens: p.tokens, Load: p.load, Health: p.health, Circuit: p.circuit(now),
		Paused: now.Before(p.pausedUntil), Cache: p.cacheState(),
	}
}

func (b *band) state(live map[*flow]int) BandState {
	s := BandState{
		Priority: b.priority, Queued: b.queued + b.aside, Ceiling: b.ceiling,
		Bytes: b.bytes, MaxQueued: b.cfg.MaxQueued, MaxBytes: b.cfg.MaxBytes,
		Enqueued: b.enqueued, Evictions: b.evictions,
		Dispatched: b.dispatched, Waited: b.waited, Refused: maps.Clone(b.refused),
	}
	for _, f := range b.flows {
		n := live[f]
		if !f.busy() && n == 0 {
			continue
		}
		s.Live += n
		s.Flows = append(s.Flows, FlowState{
			FairnessID: f.id, Weight: f.weight, Queued: f.queued() + f.aside, Live: n, Served: f.served,
		})
	}
	slices.SortFunc(s.Flows, func(a, b FlowState) int { return cmp.Compare(a.FairnessID, b.FairnessID) })
	return s
}
