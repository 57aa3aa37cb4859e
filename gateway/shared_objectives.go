package gateway

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"weir/gateway/catalogue"
	"weir/scheduler/llmd"
)

// objectivesEvery is the time between two looks at a pool's InferenceObjectives.
const objectivesEvery = time.Minute

// objectives is what is known of a pool's InferenceObjectives. The zero value
// knows nothing and looks nowhere.
type objectives struct {
	source *llmd.ObjectiveSource // nil: they don't matter
	wanted map[int]string

	mu      sync.Mutex
	missing []string
	unknown string // why nothing is known
}

func newObjectives(p *catalogue.Pool, wanted map[int]string) *objectives {
	if p.Scheduler.Kind == catalogue.KindWeir { // which knows bands by their numbers
		return &objectives{}
	}
	return &objectives{
		source: &llmd.ObjectiveSource{ListURL: p.Scheduler.ObjectivesURL, MetricsURL: p.Scheduler.MetricsURL},
		wanted: wanted,
	}
}

// watch looks again and again until ctx ends.
func (o *objectives) watch(ctx context.Context) {
	if o.source == nil {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		o.look(ctx)
		timer.Reset(objectivesEvery)
	}
}

func (o *objectives) look(ctx context.Context) {
	found, err := o.source.Find(ctx)
	if ctx.Err() != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil { // what was known may have changed meanwhile
		o.missing, o.unknown = nil, err.Error()
		return
	}
	o.missing, o.unknown = found.Missing(o.wanted), ""
}

func (o *objectives) state() (missing []string, unknown string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.missing), o.unknown
}

// CheckObjectives says which InferenceObjectives are missing where a pool's
// scheduler knows priorities by their names. Serving goes on: requests of such a
// band count as priority 0.
func (f *Fleet) CheckObjectives(context.Context) error {
	return f.objectiveFaults(func(s SharedState) string { return strings.Join(s.ObjectivesMissing, "; ") })
}

// CheckObjectivesKnown says of which pools nobody tells the InferenceObjectives.
func (f *Fleet) CheckObjectivesKnown(context.Context) error {
	return f.objectiveFaults(func(s SharedState) string { return s.ObjectivesUnknown })
}

func (f *Fleet) objectiveFaults(of func(SharedState) string) error {
	var faults []string
	all := f.Shared()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if fault := of(all[name]); fault != "" {
			faults = append(faults, "pool "+name+": "+fault)
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(faults, "; "))
}

// SharedLook is what one look at a pool's shared scheduler finds.
type SharedLook struct {
	Schedulers        []llmd.EPPState
	ObjectivesMissing []string
	ObjectivesUnknown string
}

// LookAtShared looks once at the shared scheduler of a pool of the snapshot: for
// people who ask before it serves. The error says why it can't be used at all.
func LookAtShared(ctx context.Context, snap *catalogue.Snapshot, p *catalogue.Pool) (found SharedLook, err error) {
	o := newObjectives(p, snap.Scheduler(p.Name).Objectives)
	if o.source != nil {
		o.look(ctx)
		found.ObjectivesMissing, found.ObjectivesUnknown = o.state()
	}
	if len(p.Scheduler.EPP) == 0 {
		return found, nil
	}
	list, err := standbyOf(slog.New(slog.DiscardHandler), p.Scheduler.Shared)
	if err != nil {
		return found, err
	}
	defer list.Close()
	list.Look(ctx)
	found.Schedulers = list.State().EPPs
	return found, nil
}
