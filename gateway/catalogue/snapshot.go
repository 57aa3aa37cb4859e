package catalogue

import (
	"cmp"
	"maps"
	"slices"

	"weir/billing"
	"weir/tenants"
)

// Snapshot is the catalogue at one moment. It does not change, and its parts
// must not be changed.
type Snapshot struct {
	Prices *billing.Book

	doc    *Document
	models []*Model // by name
	byName map[string]*Model
	pools  map[string]*Pool
	bands  map[string]int
	queues map[string]Scheduler // by pool
}

func newSnapshot(doc *Document, prices *billing.Book) *Snapshot {
	s := &Snapshot{
		Prices: prices, doc: doc,
		byName: make(map[string]*Model), pools: make(map[string]*Pool), bands: make(map[string]int),
		queues: make(map[string]Scheduler),
	}
	for i := range doc.Models {
		m := &doc.Models[i]
		s.models = append(s.models, m)
		s.byName[m.Name] = m
		for _, alias := range m.Aliases {
			s.byName[alias] = m
		}
	}
	slices.SortFunc(s.models, func(a, b *Model) int { return cmp.Compare(a.Name, b.Name) })
	for i := range doc.Pools {
		p := &doc.Pools[i]
		s.pools[p.Name] = p
		s.queues[p.Name] = p.Scheduler.scheduler(doc.Bands)
	}
	for _, b := range doc.Bands {
		s.bands[b.Name] = b.Priority
	}
	return s
}

// equal reports whether two snapshots say the same.
func (s *Snapshot) equal(other *Snapshot) bool {
	if s.Prices == nil || len(other.Prices.Since(s.Prices)) > 0 {
		return false
	}
	changes, err := diff(s.doc, other.doc)
	return err == nil && len(changes) == 0
}

// Lookup finds a model by its name or an alias.
func (s *Snapshot) Lookup(name string) (*Model, bool) {
	m, ok := s.byName[name]
	return m, ok
}

// Models lists all models in the order of their names.
func (s *Snapshot) Models() []*Model { return s.models }

// Offers reports whether some pool of the model may serve the caller.
func (s *Snapshot) Offers(m *Model, who *tenants.Principal) bool {
	return slices.ContainsFunc(m.Routes, func(r Route) bool {
		p, ok := s.Pool(r.Pool)
		return ok && p.Serves(who)
	})
}

// Pool finds a pool.
func (s *Snapshot) Pool(name string) (*Pool, bool) {
	p, ok := s.pools[name]
	return p, ok
}

// Scheduler is what the pool's scheduler is to be told.
func (s *Snapshot) Scheduler(pool string) Scheduler { return s.queues[pool] }

// Pools lists all pools in the order of their names.
func (s *Snapshot) Pools() []*Pool {
	return slices.SortedFunc(maps.Values(s.pools), func(a, b *Pool) int { return cmp.Compare(a.Name, b.Name) })
}

// Band returns a band's priority.
func (s *Snapshot) Band(name string) (priority int, ok bool) {
	priority, ok = s.bands[name]
	return priority, ok
}

// BandName returns the name of the band with a priority.
func (s *Snapshot) BandName(priority int) (name string, ok bool) {
	for _, b := range s.doc.Bands {
		if b.Priority == priority {
			return b.Name, true
		}
	}
	return "", false
}

// Plan finds a plan.
func (s *Snapshot) Plan(name string) (tenants.Plan, bool) {
	p, ok := s.doc.Plans[name]
	return p, ok
}
