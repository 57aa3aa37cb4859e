package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"weir/gateway/catalogue"
	"weir/scheduler/llmd"
	"weir/scheduler/pool"
)

// SharedState is how a pool's shared scheduler stands, for people.
type SharedState struct {
	Kind     string             `json:"kind"`
	Standby  *llmd.StandbyState `json:"schedulers,omitempty"` // nil for a pool behind gateways of llm-d
	Requests *llmd.Counts       `json:"requests,omitempty"`   // of this replica, likewise
	Fault    string             `json:"fault,omitempty"`      // why it can't be used at all

	Refused    uint64    `json:"refused"`              // requests that came while none answered
	StoodIn    uint64    `json:"stood_in"`             // that this replica placed by itself then
	Queued     uint64    `json:"queued"`               // answers from behind a gateway, that went through its scheduler
	Bypassed   uint64    `json:"bypassed"`             // that didn't
	BypassedAt time.Time `json:"bypassed_at,omitzero"` // the last of these

	ObjectivesMissing []string `json:"objectives_missing,omitempty"`
	ObjectivesUnknown string   `json:"objectives_unknown,omitempty"` // why nothing is known of them
}

// Shared tells of each pool whose scheduler replicas share.
func (f *Fleet) Shared() map[string]SharedState {
	f.mu.RLock()
	defer f.mu.RUnlock()
	all := make(map[string]SharedState)
	for name, w := range f.pools {
		if w.shared != nil {
			all[name] = w.shared.state(w.pool.Scheduler.Kind)
		}
	}
	return all
}

func (q *sharedQueue) state(kind string) SharedState {
	s := SharedState{Kind: kind, Refused: q.refused.Load(), StoodIn: q.stoodIn.Load()}
	s.ObjectivesMissing, s.ObjectivesUnknown = q.objectives.state()
	if q.fault != nil {
		s.Fault = q.fault.Error()
	}
	if q.list != nil {
		list := q.list.State()
		s.Standby = &list
	}
	if c, ok := q.remote.(interface{ Counts() llmd.Counts }); ok {
		counts := c.Counts()
		s.Requests = &counts
	}
	if g := q.gateway; g != nil {
		s.Queued, s.Bypassed = g.queued.Load(), g.bypassed.Load()
		if at := g.last.Load(); at != 0 {
			s.BypassedAt = time.Unix(0, at)
		}
	}
	return s
}

// wrong says what is the matter, in words for operators; empty: nothing.
func (s SharedState) wrong(now time.Time) string {
	switch {
	case s.Fault != "":
		return s.Fault
	case s.Standby != nil:
		return wrongWith(s.Standby.EPPs)
	case !s.BypassedAt.IsZero() && now.Sub(s.BypassedAt) < bypassShown:
		return fmt.Sprintf("its gateway lets requests pass without asking its scheduler (%d so far): nobody keeps an order among tenants", s.Bypassed)
	default:
		return ""
	}
}

// bypassShown is how long after a request that bypassed its scheduler a replica
// counts as degraded.
const bypassShown = time.Minute

func wrongWith(list []llmd.EPPState) string {
	var down []string
	used := ""
	for _, e := range list {
		if e.InUse {
			used = e.Address
		}
		if !e.Up && !e.Waits {
			down = append(down, e.Address+" is down: "+e.Fault)
		}
	}
	switch {
	case used == "" && len(down) == 0:
		return "no scheduler serves: each waits for another one"
	case used == "":
		return "no scheduler serves: " + strings.Join(down, "; ")
	case len(down) == 0:
		return ""
	default:
		return strings.Join(down, "; ") + "; in use is " + used
	}
}

// CheckShared says which pools' shared schedulers don't work as they should.
func (f *Fleet) CheckShared(context.Context) error {
	var faults []string
	now, all := time.Now(), f.Shared()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if wrong := all[name].wrong(now); wrong != "" {
			faults = append(faults, "pool "+name+": "+wrong)
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(faults, "; "))
}

// Undivided lists the pools that have one queue for all replicas, and how many
// others there are.
func (f *Fleet) Undivided() (shared []string, own int) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	for name, w := range f.pools {
		if w.shared != nil {
			shared = append(shared, name)
		} else {
			own++
		}
	}
	slices.Sort(shared)
	return shared, own
}

// AllowPlaintext lets schedulers on other machines be reached without TLS where
// the catalogue says so: for development.
func (f *Fleet) AllowPlaintext() {
	f.mu.Lock()
	f.plaintext = true
	for _, w := range f.pools {
		if w.shared != nil && errors.Is(w.shared.fault, errPlaintext) {
			f.share(w, w.pool)
		}
	}
	f.mu.Unlock()
}

// ownPools are the snapshots that the metrics of queues and endpoints show. A
// pool without endpoints of which a shared scheduler knows all has nothing to
// show: its empty queue here would look like an empty pool.
func (f *Fleet) ownPools() map[string]pool.Snapshot {
	all := f.Pools()
	f.mu.RLock()
	defer f.mu.RUnlock()
	for name, w := range f.pools {
		if w.shared != nil && w.shared.standIn == nil {
			delete(all, name)
		}
	}
	return all
}

// probeElsewhere asks a server that the pool doesn't watch. A gateway of llm-d
// lives if it answers anything, since what stands behind it is not its health.
func (f *Fleet) probeElsewhere(ctx context.Context, p *catalogue.Pool, id string) error {
	e := p.Endpoint(id)
	base, fromGateway := e.URL, p.Scheduler.Kind == catalogue.KindLLMDHTTP
	if base == "" {
		f.mu.RLock()
		w, known := f.pools[p.Name]
		f.mu.RUnlock()
		if !known {
			return fmt.Errorf("no pool %s", p.Name)
		}
		target, allowed := newDestinations(p, &w.feed).find(id)
		if !allowed {
			return fmt.Errorf("probe %s: %w", id, pool.ErrUnknownEndpoint)
		}
		base = target.URL
	}
	client := f.clients.get(f.log, trustOf(e))
	if client == nil {
		client = f.clients.plain()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/health", http.NoBody)
	if err != nil {
		return fmt.Errorf("probe %s: %w", id, err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("probe %s: %w", id, err)
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // to use the connection again
	if !fromGateway && (resp.StatusCode < 200 || resp.StatusCode > 299) {
		return fmt.Errorf("probe %s: GET /health answers %s", id, resp.Status)
	}
	return nil
}

// plain is the client for servers whom the system's roots vouch for.
func (c *clients) plain() *http.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.system == nil {
		c.system = pool.NewClient(&tls.Config{MinVersion: tls.VersionTLS12})
	}
	return c.system
}

// warnBypass tells once a minute that a gateway lets requests pass.
func warnBypass(log *slog.Logger, before, now int64) {
	if before == 0 || now-before > int64(bypassShown) {
		log.Warn("a gateway of llm-d lets requests pass without its scheduler: nobody keeps an order among tenants")
	}
}
