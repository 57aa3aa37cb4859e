package pickerconfig

import (
	"slices"

	"weir/scheduler"
)

// referProfiles notes what the profiles refer to. Without any, every plugin
// that can be in a profile is in the one there is.
func (d *document) referProfiles() {
	if len(d.profiles) == 0 {
		implied := profile{at: d.root, name: "default"}
		for _, p := range d.plugins {
			if p.kind.role&(filter|scorer|picker) != 0 {
				implied.plugins = append(implied.plugins, profilePlugin{ref: ref{p.at, p.name}, weight: 1})
			}
		}
		d.profiles = []profile{implied}
	}
	for _, p := range d.profiles {
		for _, one := range p.plugins {
			d.refer(one.ref, filter|scorer|picker, nil)
		}
	}
	for _, p := range d.plugins {
		d.refer(p.split.decider, decider, nil)
	}
}

// inProfile reports whether a profile names the plugin.
func (d *document) inProfile(p *plugin) bool {
	return slices.ContainsFunc(d.profiles, func(in profile) bool {
		return slices.ContainsFunc(in.plugins, func(one profilePlugin) bool { return one.ref.name == p.name })
	})
}

// first is the instance of a kind that there may be one of; nil: none.
func (d *document) first(kind string) *plugin {
	var found *plugin
	for _, p := range d.plugins {
		if p.kind.name != kind {
			continue
		}
		if found != nil {
			d.fail(p.at, "is a second %s: there can be one", kind)
		}
		found = p
	}
	return found
}

// picking is how endpoints are picked.
func (d *document) picking() scheduler.Profile {
	answer, prefill, decides := d.stages()
	follow := d.follow()
	out := d.profile(answer)
	if p := d.first(prefixProducer); p != nil {
		out.Prefix = p.prefix
	}
	out.Precise = follow
	if prefill != nil && decides != nil {
		out.Split = &scheduler.Split{Prefill: d.profile(prefill), Decider: decides.decider}
		if by := decides.decider; by.Kind == scheduler.PrefixDecider && by.NonCachedTokens == 0 {
			d.warn(decides.at, "nonCachedTokens is 0: no prompt is computed apart")
		}
	}
	out.Rollout = d.screen()
	return out
}

// profile is how one of the profiles picks.
func (d *document) profile(from *profile) scheduler.Profile {
	out := scheduler.Profile{Picker: scheduler.Picker{Kind: scheduler.MaxScore, MaxEndpoints: 1}}
	var chosen *plugin
	for _, one := range from.plugins {
		p := d.byName[one.ref.name]
		switch {
		case p.kind.role&detector != 0:
			out.Filters = append(out.Filters, scheduler.Filter{Kind: p.kind.name, Detector: p.detector})
		case p.kind.role&picker == 0:
			d.rate(&out, p, one)
		case chosen != nil && chosen != p:
			d.fail(one.ref.at, "is a second picker: a profile has one")
		default:
			chosen, out.Picker = p, p.picker
		}
		if p.session.TTL != 0 {
			out.Session = p.session
		}
	}
	if len(out.Scorers) == 0 { // all are as good, and the best of them is any
		out.Picker.Kind = scheduler.Random
	}
	return out
}

// rate adds a filter, a scorer, or what is both.
func (d *document) rate(to *scheduler.Profile, p *plugin, as profilePlugin) {
	if p.idle {
		d.warn(as.ref.at, "has no effect: its threshold is 0")
		return
	}
	to.Filters = append(to.Filters, p.filters...)
	switch {
	case p.scorer.Kind == "":
	case as.weight == 0:
		d.warn(as.ref.at, "rates nothing: its weight is 0")
	default:
		p.scorer.Weight = as.weight
		to.Scorers = append(to.Scorers, p.scorer)
	}
}
