package billing

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"weir/tenants"
)

// PriceChange is a price that is new and what it takes the place of.
type PriceChange struct {
	Price
	Before *Price // what held until then, be it the list's price; nil: nothing
}

// Changes lists what publishing the specs adds to the book at the moment now,
// for the list or for a tenant, by model and time. The error is ErrPrice.
func (b *Book) Changes(tenant tenants.ID, specs []PriceSpec, now time.Time) ([]PriceChange, error) {
	fresh, err := b.changes(tenant, specs, now)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(fresh, func(p, q Price) int { return cmp.Or(cmp.Compare(p.Model, q.Model), older(&p, &q)) })
	after := b.With(fresh)
	all := make([]PriceChange, len(fresh))
	for i, p := range fresh {
		all[i].Price = p
		if before, ok := after.Rate(p.Model, tenant, p.EffectiveFrom.Add(-time.Microsecond)); ok {
			all[i].Before = &before
		}
	}
	return all, nil
}

// String is the change on one line.
func (c PriceChange) String() string {
	sign, terms := "~", c.differences()
	switch {
	case c.Lapsed:
		terms = []string{"as the list"}
	case c.Before == nil:
		sign = "+"
	case len(terms) == 0:
		terms = []string{"as before"}
	}
	name := c.Model
	if c.Tenant != "" {
		name += " of " + string(c.Tenant)
	}
	return fmt.Sprintf("%s price %s (USD per million tokens, from %s): %s",
		sign, name, c.EffectiveFrom.UTC().Format("2006-01-02T15:04:05Z"), strings.Join(terms, ", "))
}

// term is one line of a price, such as "output" and "0.40".
type term struct{ name, value string }

func (p *Price) terms() []term {
	all := p.Rates.terms("")
	for _, s := range p.Long {
		all = append(all, s.terms(fmt.Sprintf("from %d input tokens on ", s.MinInput))...)
	}
	return append(all,
		term{"flex", formatMultiplier(p.Tiers.Flex)}, term{"priority", formatMultiplier(p.Tiers.Priority)},
		term{"batch", formatMultiplier(p.Tiers.Batch)}, term{"background", formatMultiplier(p.Tiers.Background)})
}

func formatMultiplier(basisPoints int64) string {
	if basisPoints == 0 {
		return notSold
	}
	return "x" + formatTier(basisPoints)
}

func (r *Rates) terms(when string) []term {
	return []term{
		{when + "input", FormatUSD(r.Input)},
		{when + "cached input", FormatUSD(r.CachedInput)},
		{when + "output", FormatUSD(r.Output)},
		{when + "reasoning", FormatUSD(r.Reasoning)},
	}
}

// differences lists what differs from before; all terms, where nothing was
// before. A term that is new or gone is "-" on the other side.
func (c *PriceChange) differences() (out []string) {
	before := make(map[string]string)
	if c.Before != nil {
		for _, t := range c.Before.terms() {
			before[t.name] = t.value
		}
	}
	for _, t := range c.terms() {
		switch was := cmp.Or(before[t.name], "-"); {
		case c.Before == nil:
			out = append(out, t.name+" "+t.value)
		case was != t.value:
			out = append(out, t.name+" "+was+" -> "+t.value)
		}
		delete(before, t.name)
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		out = append(out, name+" "+before[name]+" -> -")
	}
	return out
}

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
// The past is open only to a timeline that has no price yet; for a tenant, which
// paid the list's until now, only where the spec says so.
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
	if published && len(spec.Tiers) == 0 {
		p.Tiers = old.Tiers // what is left out repeats what was published then, before there were tiers too
	}
	switch {
	case published && old.sameTerms(&p):
		return *old, false, nil
	case published, p.EffectiveFrom.Before(now) && (current != nil || tenant != "" && !spec.Backdated):
		return Price{}, false, fmt.Errorf("%w: %s: what it costs from %s is settled; leave effective_from out, or name a time to come",
			ErrPrice, p.Model, p.EffectiveFrom.UTC().Format(time.RFC3339))
	default:
		return p, true, nil
	}
}
