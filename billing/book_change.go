package billing

import (
	"fmt"
	"time"

	"weir/tenants"
)

// changes lists the versions that the specs add to a timeline each of the book,
// at the moment now.
func (b *Book) changes(tenant tenants.ID, specs []PriceSpec, now time.Time) ([]Price, error) {
	type start struct {
		model string
		micro int64
	}
	var fresh []Price
	seen := make(map[start]bool, len(specs))
	for i := range specs {
		p, isNew, err := b.resolve(tenant, &specs[i], now)
		if err != nil {
			return nil, err
		}
		at := start{p.Model, p.EffectiveFrom.UnixMicro()}
		if seen[at] {
			return nil, fmt.Errorf("%w: %s has two prices from the same time", ErrPrice, p.Model)
		}
		seen[at] = true
		if isNew {
			fresh = append(fresh, p)
		}
	}
	return fresh, nil
}

// resolve finds the published version that a spec means, or makes a new one.
// The past is open only to a timeline that has no price yet.
func (b *Book) resolve(tenant tenants.ID, spec *PriceSpec, now time.Time) (p Price, isNew bool, err error) {
	if p, err = spec.Price(); err != nil {
		return Price{}, false, err
	}
	p.Tenant = tenant
	if err := p.Validate(); err != nil {
		return Price{}, false, err
	}
	known := b.timeline(p.Model, tenant)
	current := inEffect(known, now)
	if p.EffectiveFrom.IsZero() {
		if current != nil && current.sameTerms(&p) || current == nil && p.Lapsed {
			return p, false, nil
		}
		p.EffectiveFrom = now
	}
	old := inEffect(known, p.EffectiveFrom)
	published := old != nil && old.EffectiveFrom.Equal(p.EffectiveFrom)
	switch {
	case published && old.sameTerms(&p):
		return *old, false, nil
	case published, current != nil && p.EffectiveFrom.Before(now):
		return Price{}, false, fmt.Errorf("%w: %s: what it costs from %s is published; leave effective_from out, or name a time to come",
			ErrPrice, p.Model, p.EffectiveFrom.UTC().Format(time.RFC3339))
	default:
		return p, true, nil
	}
}
