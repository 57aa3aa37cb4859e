package kubestub

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Kubeconfig is the file that leads a client to the API at a URL.
func Kubeconfig(url string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: stub
clusters: [{name: stub, cluster: {server: %q}}]
users: [{name: stub, user: {}}]
contexts: [{name: stub, context: {cluster: stub, user: stub, namespace: %q}}]
`, url, Namespace)
}

// ServeHTTP answers what clients of Kubernetes ask before and while they watch.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		refuse(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
		return
	}
	switch path := strings.Trim(r.URL.Path, "/"); path {
	case "version":
		reply(w, object{"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
	case "api":
		reply(w, object{"kind": "APIVersions", "versions": []string{"v1"}})
	case "apis":
		reply(w, object{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups()})
	default:
		s.resource(w, r, path)
	}
}

func groups() (all []object) {
	for _, r := range resources() {
		if r.group == "" || slices.ContainsFunc(all, func(o object) bool { return o["name"] == r.group }) {
			continue
		}
		version := object{"groupVersion": r.apiVersion(), "version": r.version}
		all = append(all, object{"name": r.group, "versions": []object{version}, "preferredVersion": version})
	}
	return all
}

// resource serves "api/v1" and "apis/group/version" with what is below them.
func (s *Server) resource(w http.ResponseWriter, r *http.Request, path string) {
	for _, of := range resources() {
		root := "apis/" + of.apiVersion()
		if of.group == "" {
			root = "api/" + of.version
		}
		rest, below := strings.CutPrefix(path, root)
		if !below {
			continue
		}
		if rest == "" {
			reply(w, discovery(of.apiVersion()))
			return
		}
		rest = strings.TrimPrefix(strings.Trim(rest, "/"), "namespaces/"+Namespace+"/")
		plural, name, one := strings.Cut(rest, "/")
		switch {
		case plural != of.plural: // of the same group
		case one:
			s.get(w, plural, name)
			return
		case r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1":
			s.watch(w, r, of)
			return
		default:
			s.list(w, of)
			return
		}
	}
	refuse(w, http.StatusNotFound, "NotFound")
}

func discovery(apiVersion string) object {
	var list []object
	for _, r := range resources() {
		if r.apiVersion() == apiVersion {
			list = append(list, object{"name": r.plural, "singularName": strings.ToLower(r.kind), "kind": r.kind, "namespaced": true, "verbs": []string{"get", "list", "watch"}})
		}
	}
	return object{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": apiVersion, "resources": list}
}

func (s *Server) get(w http.ResponseWriter, plural, name string) {
	s.mu.Lock()
	o, ok := s.objects[plural][name]
	s.mu.Unlock()
	if !ok {
		refuse(w, http.StatusNotFound, "NotFound")
		return
	}
	reply(w, o)
}

// present is all of a kind, and its version.
func (s *Server) present(plural string) (items []object, version string) {
	items = []object{}
	for _, o := range s.objects[plural] {
		items = append(items, o)
	}
	return items, strconv.Itoa(s.version)
}

func (s *Server) list(w http.ResponseWriter, of resource) {
	s.mu.Lock()
	items, version := s.present(of.plural)
	s.mu.Unlock()
	reply(w, object{
		"kind": of.kind + "List", "apiVersion": of.apiVersion(),
		"metadata": object{"resourceVersion": version}, "items": items,
	})
}

// watch streams changes: all after the version that is asked for, or with
// sendInitialEvents all that there is, a bookmark, and what follows.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, of resource) {
	first, changes, ok := s.join(of, r.URL.Query().Get("resourceVersion"), r.URL.Query().Get("sendInitialEvents") == "true")
	if !ok {
		refuse(w, http.StatusGone, "Expired")
		return
	}
	defer s.leave(changes)
	w.Header().Set("Content-Type", "application/json")
	out, rc := json.NewEncoder(w), http.NewResponseController(w)
	for _, e := range first {
		if out.Encode(e) != nil {
			return
		}
	}
	if rc.Flush() != nil {
		return
	}
	s.watched(of.plural)
	for {
		select {
		case <-r.Context().Done():
			return
		case e, open := <-changes:
			if !open || out.Encode(e) != nil || rc.Flush() != nil {
				return
			}
		}
	}
}

// join begins a watch: what to send first, and where the rest comes.
func (s *Server) join(of resource, since string, initial bool) (first []event, changes chan event, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, err := strconv.Atoi(since)
	switch {
	case initial:
		items, version := s.present(of.plural)
		for _, o := range items {
			first = append(first, event{Type: "ADDED", Object: o})
		}
		first = append(first, event{Type: "BOOKMARK", Object: object{
			"kind": of.kind, "apiVersion": of.apiVersion(),
			"metadata": object{"resourceVersion": version, "annotations": object{"k8s.io/initial-events-end": "true"}},
		}})
	case err == nil && from < s.version-len(s.events):
		return nil, nil, false
	case err == nil:
		for _, e := range s.events {
			if e.version > from && e.plural == of.plural {
				first = append(first, e)
			}
		}
	}
	changes = make(chan event, watchBacklog)
	s.watchers[changes] = of.plural
	return first, changes, true
}

func (s *Server) leave(changes chan event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers, changes)
}

func (s *Server) watched(plural string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced[plural] = true
	close(s.changed)
	s.changed = make(chan struct{})
}

func reply(w http.ResponseWriter, o object) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(o) // the reader has left: nothing to be done
}

func refuse(w http.ResponseWriter, status int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": status})
}
