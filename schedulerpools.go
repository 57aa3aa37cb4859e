package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"weir/gateway"
	"weir/gateway/catalogue"
	"weir/scheduler"
	"weir/scheduler/pickerconfig"
)

// ownPools is a catalogue as `weir scheduler` sees it: the pools that it serves
// to others, each as one that is scheduled here.
type ownPools struct {
	gateway.Source

	serves   func(*catalogue.Pool) bool
	policies map[string]string // documents in llm-d's form, by pool

	mu   sync.Mutex
	from *catalogue.Snapshot
	as   *catalogue.Snapshot
}

// Snapshot is the present catalogue, with these pools alone.
func (o *ownPools) Snapshot() *catalogue.Snapshot {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.Source.Snapshot()
	if o.from == now {
		return o.as
	}
	doc := *now.Document()
	doc.Pools = nil
	for _, p := range now.Pools() {
		if !o.serves(p) {
			continue
		}
		own := *p
		own.Scheduler.Kind, own.Scheduler.Shared = "", catalogue.Shared{}
		if text := o.policies[p.Name]; text != "" {
			own.Scheduler = catalogue.Scheduling{Picker: text}
		}
		doc.Pools = append(doc.Pools, own)
	}
	o.from, o.as = now, doc.Snapshot(now.Prices)
	return o.as
}

// served is a fleet as the ext_proc server wants it.
type served struct {
	*gateway.Fleet

	pools *ownPools
}

// Pools names all.
func (s served) Pools() (names []string) {
	for _, p := range s.pools.Snapshot().Pools() {
		names = append(names, p.Name)
	}
	return names
}

// Endpoints lists a pool's, found ones too.
func (s served) Endpoints(pool string) (all []scheduler.Endpoint) {
	found, _ := s.Scheduler(pool)
	embedded, ok := found.(*scheduler.Embedded)
	if !ok {
		return nil
	}
	for _, e := range embedded.State().Endpoints {
		all = append(all, scheduler.Endpoint{ID: e.ID, URL: e.URL})
	}
	return all
}

// Band is a priority by its name.
func (s served) Band(name string) (int, bool) { return s.pools.Snapshot().Band(name) }

// fixedPools is a catalogue that doesn't change.
type fixedPools struct{ snapshot *catalogue.Snapshot }

// Snapshot is the catalogue.
func (f fixedPools) Snapshot() *catalogue.Snapshot { return f.snapshot }

// Changed never is.
func (f fixedPools) Changed() <-chan struct{} { return nil }

// readPools reads a catalogue from a file, for a scheduler without a database.
func readPools(path string, warn func(string)) (*catalogue.Snapshot, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read catalogue: %w", err)
	}
	doc, warnings, err := catalogue.Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	included, err := doc.Include(func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return os.ReadFile(name)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, w := range append(warnings, included...) {
		warn(w)
	}
	if err := doc.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return doc.Snapshot(nil), nil
}

// readPolicies reads documents that are given as POOL=FILE.
func readPolicies(given []string, warn func(string)) (map[string]string, error) {
	policies := make(map[string]string, len(given))
	var errs []error
	for _, g := range given {
		pool, path, ok := strings.Cut(g, "=")
		if !ok || pool == "" || path == "" {
			errs = append(errs, fmt.Errorf("--policy %s: write POOL=FILE", g))
			continue
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("--policy %s: %w", pool, err))
			continue
		}
		doc, err := pickerconfig.Parse(raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("--policy %s: %s: %w", pool, path, err))
			continue
		}
		for _, w := range doc.Warnings {
			warn(path + ": " + w)
		}
		policies[pool] = string(raw)
	}
	return policies, errors.Join(errs...)
}
