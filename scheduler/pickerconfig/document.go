package pickerconfig

import (
	"slices"
	"strings"
	"time"

	"weir/scheduler"
)

// document is one that is being read. References between its parts are
// resolved once all of it has been read: they may point forward.
type document struct {
	*reader

	root      at
	alpha     bool // v1alpha1
	gate      bool // flowControl
	kinds     map[string]*kind
	plugins   []*plugin
	byName    map[string]*plugin
	refs      []reference
	profiles  []profile
	flow      flowControl
	ours      ours
	detector  ref // top-level saturationDetector of v1alpha1
	propagate bool
}

// ref is a reference to a plugin by the name of its instance.
type ref struct {
	at   at
	name string
}

// profile is one of schedulingProfiles.
type profile struct {
	at      at
	name    string
	plugins []profilePlugin
}

type profilePlugin struct {
	ref    ref
	weight float64
}

// ours is the section weir:, what llm-d has no word for. Zero takes Weir's
// default.
type ours struct {
	maxConcurrency, maxFlowRequests, outputTokenCost int
	slowStart, overloadPause                         time.Duration
	breaker                                          scheduler.Breaker
}

func (d *document) read(a at) {
	d.root = a
	d.readVersion()
	there := d.object(a,
		field{"apiVersion", d.text(new(string))},
		field{"kind", choice(d.reader, new(string), Kind)},
		field{"-metadata", func(at) {}}, // Kubernetes' own; llm-d doesn't look at it either
		field{"featureGates", d.list(d.readGate)},
		field{"plugins", d.list(d.readPlugin)},
		field{"schedulingProfiles", d.list(d.readProfile)},
		field{"flowControl", d.readFlowControl},
		field{"requestHandler", d.readRequestHandler},
		field{"dataLayer", d.readDataLayer},
		field{"-saturationDetector", d.old(d.readRef(&d.detector, "pluginRef"), "flowControl.saturationDetector")},
		field{"-parser", d.old(d.readBuiltIn, "requestHandler.parsers")},
		field{"weir", d.readOurs},
	)
	for _, must := range []string{"apiVersion", "kind"} {
		if there != nil && there[must].node == nil {
			d.fail(a, "%s is missing: write apiVersion: %s and kind: %s", must, version, Kind)
		}
	}
}

// readVersion settles which version's fields the document may have.
func (d *document) readVersion() {
	n := resolve(d.root.node)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value != "apiVersion" {
			continue
		}
		a := at{path: "apiVersion", node: resolve(n.Content[i+1])}
		switch v := a.node.Value; v {
		case version:
		case oldVersion, oldGroup:
			d.alpha = true
			d.warn(a, "%s is old: write %s", v, version)
		default:
			d.fail(a, "is %.60q: want %s", v, version)
		}
	}
}

// old reads a field that v1 doesn't have any more.
func (d *document) old(read func(at), now string) func(at) {
	return func(a at) {
		if !d.alpha {
			d.fail(a, "%s doesn't have it: write %s", version, now)
			return
		}
		d.warn(a, "is old: write %s", now)
		read(a)
	}
}

func (d *document) readGate(a at) {
	var gate string
	d.text(&gate)(a)
	if gate == "" {
		return
	}
	name, value, given := strings.Cut(gate, "=")
	if given && value != "true" && value != "false" {
		d.fail(a, "is %.60q: want a name, or name=true or name=false", gate)
		return
	}
	switch name {
	case "flowControl":
		d.gate = value != "false"
	case "haPopulateNonLeaderDatastore":
		d.warn(a, "has no effect: there are no non-leaders")
	default:
		d.fail(a, "unknown feature gate %.60q; supported: flowControl", name)
	}
}

func (d *document) readProfile(a at) {
	p := profile{at: a}
	d.object(a,
		field{"name", d.text(&p.name)},
		field{"plugins", d.list(func(a at) {
			one := profilePlugin{weight: 1}
			there := d.object(a, field{"pluginRef", d.text(&one.ref.name)}, field{"weight", d.number(&one.weight, 0, 1e9)})
			if one.ref.name == "" {
				d.fail(a, "pluginRef is missing")
				return
			}
			one.ref.at = there["pluginRef"]
			p.plugins = append(p.plugins, one)
		})},
	)
	if p.name == "" {
		d.fail(a, "name is missing")
	}
	if slices.ContainsFunc(d.profiles, func(o profile) bool { return o.name == p.name }) {
		d.fail(a, "there are two profiles with the name %q", p.name)
	}
	d.profiles = append(d.profiles, p)
}

func (d *document) readRequestHandler(a at) {
	d.object(a,
		field{"parsers", d.list(d.readBuiltIn)},
		field{"propagatePriority", d.boolean(&d.propagate)},
	)
}

// readBuiltIn reads a reference to what Weir does without being told.
func (d *document) readBuiltIn(a at) {
	var r ref
	d.readRef(&r, "pluginRef")(a)
	d.refer(r, builtIn, nil)
}

// readRef reads an object with one member, the name of a plugin.
func (d *document) readRef(to *ref, member string) func(at) {
	return func(a at) {
		there := d.object(a, field{member, d.text(&to.name)})
		if to.name == "" {
			d.fail(a, "%s is missing", member)
			return
		}
		to.at = there[member]
	}
}

// nameRef reads a member that is itself the name of a plugin.
func (d *document) nameRef(to *ref) func(at) {
	return func(a at) {
		d.text(&to.name)(a)
		to.at = a
	}
}

// readDataLayer accepts what says where endpoints and metrics come from: in
// Weir the pool says so.
func (d *document) readDataLayer(a at) {
	discovery := d.readBuiltIn
	if !d.alpha {
		discovery = func(a at) {
			d.object(a, field{"endpoints", d.readBuiltIn}, field{"-peers", d.notShared})
		}
	}
	d.object(a,
		field{"injectDefaults", d.boolean(new(bool))},
		field{"sources", d.list(func(a at) {
			var r ref
			d.object(a, field{"pluginRef", d.nameRef(&r)}, field{"extractors", d.list(d.readBuiltIn)})
			d.refer(r, builtIn, nil)
		})},
		field{"discovery", discovery},
		field{"-peerDiscovery", d.notShared},
		field{"-crossReplica", d.notShared},
		field{"-crossReplicaSyncerPluginRef", d.notShared},
		field{"-crossReplicaSyncInterval", d.notShared},
		field{"-crossReplicaPublishTimeout", d.notShared},
	)
}

func (d *document) notShared(a at) {
	d.fail(a, "is not supported: replicas of the gateway don't share the state of a pool")
}
