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
	if len(d.profiles) > 1 {
		d.fail(d.profiles[1].at, "is a second profile: one is supported, because prefill and decode run on the same endpoint")
	}
	for _, one := range d.profiles[0].plugins {
		d.refer(one.ref, filter|scorer|picker, nil)
	}
}

// inProfile reports whether the profile names the plugin.
func (d *document) inProfile(p *plugin) bool {
	return slices.ContainsFunc(d.profiles[0].plugins, func(one profilePlugin) bool { return one.ref.name == p.name })
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

// profile is how an endpoint is picked.
func (d *document) profile() scheduler.Profile {
	out := scheduler.Profile{Picker: scheduler.Picker{Kind: scheduler.MaxScore, MaxEndpoints: 1}}
	var chosen *plugin
	for _, one := range d.profiles[0].plugins {
		p := d.byName[one.ref.name]
		switch role := p.kind.role; {
		case role&detector != 0:
			out.Filters = append(out.Filters, scheduler.Filter{Kind: p.kind.name, Detector: p.detector})
		case role&filter != 0 && p.idle:
			d.warn(one.ref.at, "has no effect: its threshold is 0")
		case role&filter != 0:
			out.Filters = append(out.Filters, p.filters...)
		case role&scorer != 0 && one.weight == 0:
			d.warn(one.ref.at, "has no effect: its weight is 0")
		case role&scorer != 0:
			p.scorer.Weight = one.weight
			out.Scorers = append(out.Scorers, p.scorer)
		case chosen != nil && chosen != p:
			d.fail(one.ref.at, "is a second picker: a profile has one")
		default:
			chosen, out.Picker = p, p.picker
		}
		if p.session.TTL != 0 {
			out.Session = p.session
		}
	}
	if p := d.first(prefixProducer); p != nil {
		out.Prefix = p.prefix
	}
	return out
}
