package pickerconfig

import (
	"cmp"
	"slices"
	"strings"

	"weir/scheduler"
)

// role is what a plugin may be named as. One type can have several.
type role uint

const (
	fairness role = 1 << iota
	ordering
	detector
	usageLimit
	filter
	scorer
	picker
	producer // remembers or counts what others read
	admitter // refuses requests, by being there
	handler  // says which profiles are run
	decider  // says for which requests a stage is done apart
	screener // leaves out endpoints before any profile, by being there
	builtIn  // what Weir does without being told
)

func (r role) String() string {
	var all []string
	for i, name := range []string{
		"fairness policy", "ordering policy", "saturation detector", "usage-limit policy",
		"filter", "scorer", "picker", "producer", "admitter", "profile handler", "decider", "screener", "built in",
	} {
		if r&(1<<i) != 0 {
			all = append(all, name)
		}
	}
	return strings.Join(all, ", ")
}

// kind is a type of plugins.
type kind struct {
	name   string
	role   role
	auto   bool   // there under its type's name without being listed
	note   string // what a user should know; a warning where it is built in
	params func(d *document, p *plugin) []param
}

// param is a parameter of a plugin.
type param struct {
	name   string
	normal string // the default, for people
	read   func(at)
}

// plugin is one instance of a kind, and what its parameters say. Which of the
// fields mean something depends on the kind.
type plugin struct {
	at   at
	name string
	kind *kind
	used bool

	maxConcurrency int
	detector       scheduler.Detector
	fairness       scheduler.Fairness
	ordering       scheduler.Ordering
	limit          scheduler.UsageLimit
	shed           scheduler.Shed
	filters        []scheduler.Filter
	scorer         scheduler.Scorer
	picker         scheduler.Picker
	prefix         scheduler.PrefixCache
	precise        scheduler.PreciseCache
	session        scheduler.SessionAffinity
	split          splitting
	decider        scheduler.Decider
	rollout        scheduler.Rollout
	idle           bool // does nothing, as its parameters are

	producers []ref // instances whose data it reads
}

// reference is a ref that has to lead to a plugin of a role.
type reference struct {
	ref  ref
	role role
	use  func(*plugin) // may be nil
}

func newDocument() *document {
	d := &document{reader: &reader{}, byName: map[string]*plugin{}, kinds: map[string]*kind{}}
	for _, k := range kinds() {
		d.kinds[k.name] = k
	}
	return d
}

// refer notes a reference, to be resolved when all plugins are known.
func (d *document) refer(r ref, as role, use func(*plugin)) {
	if r.name != "" {
		d.refs = append(d.refs, reference{r, as, use})
	}
}

func (d *document) readPlugin(a at) {
	var typ, name string
	var parameters at
	there := d.object(a,
		field{"type", d.text(&typ)},
		field{"name", d.text(&name)},
		field{"parameters", func(a at) { parameters = a }},
	)
	switch {
	case there == nil:
		return
	case typ == "":
		d.fail(a, "type is missing")
		return
	}
	name = cmp.Or(name, typ)
	a.path = "plugins[" + name + "]"
	if d.byName[name] != nil {
		d.fail(a, "two plugins have the name %q: give one of them another", name)
		return
	}
	k := d.kinds[typ]
	if k == nil {
		if why := refused()[typ]; why != "" {
			d.fail(a, "%s is not supported: %s", typ, why)
		} else {
			d.fail(a, "unknown plugin type %.60q; supported: %s", typ, strings.Join(d.supported(), ", "))
		}
		k = &kind{name: typ, role: ^role(0)} // known from here on, so that its references are no complaints too
		parameters.node = nil
	}
	p := d.instance(k, name)
	p.at = a
	if parameters.node != nil && k.role != builtIn {
		d.object(at{path: a.path, node: parameters.node}, p.fields(d)...)
	}
	if k.role == builtIn && k.note != "" {
		d.warn(a, "%s", k.note)
	}
}

// instance adds a plugin with its kind's defaults.
func (d *document) instance(k *kind, name string) *plugin {
	p := &plugin{name: name, kind: k}
	d.plugins = append(d.plugins, p)
	d.byName[name] = p
	p.fields(d) // sets the defaults
	return p
}

func (p *plugin) fields(d *document) []field {
	if p.kind.params == nil {
		return nil
	}
	var fields []field
	for _, each := range p.kind.params(d, p) {
		fields = append(fields, field{each.name, each.read})
	}
	return fields
}

func (d *document) supported() []string {
	var all []string
	for name, k := range d.kinds {
		if k.role != builtIn {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// resolve finds the plugin of each reference.
func (d *document) resolve() {
	d.referProfiles()
	d.refer(d.flow.usageLimit, usageLimit, nil)
	d.refer(d.flow.detector, detector, nil)
	d.refer(d.detector, detector, nil)
	for _, p := range slices.Clone(d.plugins) {
		for _, r := range p.producers {
			d.refer(r, producer, nil)
		}
	}
	for _, r := range d.refs {
		p := d.byName[r.ref.name]
		if k := d.kinds[r.ref.name]; p == nil && k != nil && k.auto {
			p = d.instance(k, k.name)
		}
		switch {
		case p == nil:
			d.fail(r.ref.at, "no plugin has the name %.60q; plugins: has %s", r.ref.name, d.defined())
		case p.kind.role&r.role == 0:
			d.fail(r.ref.at, "%s is a %s, not a %s", r.ref.name, p.kind.role, r.role)
		default:
			p.used = true
			if r.use != nil {
				r.use(p)
			}
		}
	}
}

func (d *document) defined() string {
	if len(d.plugins) == 0 {
		return "none"
	}
	var all []string
	for _, p := range d.plugins {
		all = append(all, p.name)
	}
	return strings.Join(all, ", ")
}
