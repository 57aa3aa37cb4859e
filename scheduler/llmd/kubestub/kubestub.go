// Package kubestub is as much of the Kubernetes API as an llm-d Endpoint Picker
// reads: one InferencePool, its pods and the InferenceObjectives that give
// requests their priority. With it a real picker runs in tests and benchmarks
// as it does in a cluster. It is read-only to whoever asks, and asks nobody for
// a password: serve it on loopback.
package kubestub

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"sync"
)

const (
	// Namespace is that of everything here.
	Namespace = "pool"

	poolGroup    = "inference.networking.k8s.io"
	llmdGroup    = "llm-d.ai"
	poolLabel    = "weir.test/pool"
	keptEvents   = 4096 // of changes, for those who watch from an older version
	watchBacklog = 256  // events that a slow watcher may be behind
)

// resource is one kind of object.
type resource struct{ group, version, plural, kind string }

func (r resource) apiVersion() string {
	if r.group == "" {
		return r.version
	}
	return r.group + "/" + r.version
}

func resources() []resource {
	return []resource{
		{"", "v1", "pods", "Pod"},
		{poolGroup, "v1", "inferencepools", "InferencePool"},
		{llmdGroup, "v1alpha2", "inferenceobjectives", "InferenceObjective"},
		{llmdGroup, "v1alpha2", "inferencemodelrewrites", "InferenceModelRewrite"},
	}
}

func named(plural string) resource {
	for _, r := range resources() {
		if r.plural == plural {
			return r
		}
	}
	return resource{}
}

// object is one in JSON's terms.
type object map[string]any

// Pod is a model server. All of a pool's listen at the pool's port.
type Pod struct {
	Name   string
	IP     string
	Labels map[string]string
}

// event is one change.
type event struct {
	Type   string `json:"type"`
	Object object `json:"object"`

	plural  string
	version int
}

// Server holds the objects and is the http.Handler of the API.
type Server struct {
	pool string

	mu       sync.Mutex
	version  int
	objects  map[string]map[string]object // plural -> name
	events   []event                      // the last ones
	watchers map[chan event]string        // -> plural
	synced   map[string]bool              // plural -> somebody has its list and watches
	changed  chan struct{}                // closed when synced changes
}

// New makes an API with a pool whose pods listen at the port.
func New(pool string, port int) *Server {
	s := &Server{
		pool: pool, objects: make(map[string]map[string]object), watchers: make(map[chan event]string),
		synced: make(map[string]bool), changed: make(chan struct{}),
	}
	s.replace("inferencepools", map[string]object{pool: {
		"selector":          object{"matchLabels": object{poolLabel: pool}},
		"targetPorts":       []object{{"number": port}},
		"endpointPickerRef": object{"name": "epp", "port": object{"number": 9002}},
	}}, nil)
	return s
}

// SetPods makes these the pool's pods, all of them ready.
func (s *Server) SetPods(pods []Pod) {
	specs, more := make(map[string]object, len(pods)), make(map[string]object, len(pods))
	for _, p := range pods {
		labels := object{poolLabel: s.pool}
		for k, v := range p.Labels {
			labels[k] = v
		}
		specs[p.Name] = object{"containers": []object{{"name": "engine", "image": "none"}}}
		more[p.Name] = object{"labels": labels, "status": object{
			"phase": "Running", "podIP": p.IP, "podIPs": []object{{"ip": p.IP}},
			"conditions": []object{{"type": "Ready", "status": "True"}},
		}}
	}
	s.replace("pods", specs, more)
}

// SetObjectives makes these the names by which requests get priorities.
func (s *Server) SetObjectives(priorities map[string]int) {
	specs := make(map[string]object, len(priorities))
	for name, priority := range priorities {
		specs[name] = object{
			"priority": priority,
			"poolRef":  object{"name": s.pool, "group": poolGroup, "kind": "InferencePool"},
		}
	}
	s.replace("inferenceobjectives", specs, nil)
}

// replace makes the specs, by name, all that there is of a kind. More may have
// labels and a status.
func (s *Server) replace(plural string, specs, more map[string]object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.objects[plural]
	if have == nil {
		have = make(map[string]object)
		s.objects[plural] = have
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, wanted := specs[name]; !wanted {
			gone := s.stamp(plural, name, have[name])
			delete(have, name)
			s.tell(event{Type: "DELETED", Object: gone, plural: plural})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		o := object{"spec": specs[name], "metadata": object{"labels": more[name]["labels"]}}
		if status, ok := more[name]["status"]; ok {
			o["status"] = status
		}
		kind := "ADDED"
		if old, known := have[name]; known {
			if same(old, o) {
				continue
			}
			kind = "MODIFIED"
		}
		have[name] = s.stamp(plural, name, o)
		s.tell(event{Type: kind, Object: have[name], plural: plural})
	}
}

// same reports whether nothing changes that anybody could see.
func same(old, o object) bool {
	was, _ := old["metadata"].(object)
	is, _ := o["metadata"].(object)
	return reflect.DeepEqual(old["spec"], o["spec"]) && reflect.DeepEqual(old["status"], o["status"]) && reflect.DeepEqual(was["labels"], is["labels"])
}

// stamp is the object with what every object has, at a new version. Holds mu.
func (s *Server) stamp(plural, name string, o object) object {
	s.version++
	r := named(plural)
	old, _ := o["metadata"].(object)
	out := maps.Clone(o)
	out["apiVersion"], out["kind"] = r.apiVersion(), r.kind
	out["metadata"] = object{
		"name": name, "namespace": Namespace, "uid": plural + "-" + name, "labels": old["labels"],
		"resourceVersion": strconv.Itoa(s.version), "creationTimestamp": "2026-01-01T00:00:00Z",
	}
	return out
}

// tell sends a change to who watches. One who doesn't keep up is cut off, and
// lists again. Holds mu.
func (s *Server) tell(e event) {
	e.version = s.version
	s.events = append(s.events, e)
	if len(s.events) > keptEvents {
		s.events = slices.Delete(s.events, 0, len(s.events)-keptEvents)
	}
	for w, plural := range s.watchers {
		if plural != e.plural {
			continue
		}
		select {
		case w <- e:
		default:
			delete(s.watchers, w)
			close(w)
		}
	}
}

// Synced is closed when somebody watches pods, pools and objectives and has
// been sent all that there was.
func (s *Server) Synced() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			s.mu.Lock()
			all, changed := s.synced["pods"] && s.synced["inferencepools"] && s.synced["inferenceobjectives"], s.changed
			s.mu.Unlock()
			if all {
				return
			}
			<-changed
		}
	}()
	return done
}
