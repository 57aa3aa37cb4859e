package kubestub

import (
	"bufio"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// feed reads the events of a watch.
type feed struct {
	t   *testing.T
	dec *json.Decoder
}

func watch(t *testing.T, base, path string) feed {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("watch: %s", resp.Status)
	}
	return feed{t, json.NewDecoder(bufio.NewReader(resp.Body))}
}

// next is an event's type and what it is about.
func (f feed) next() string {
	f.t.Helper()
	var e struct {
		Type   string `json:"type"`
		Object struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Name        string            `json:"name"`
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
		} `json:"object"`
	}
	if err := f.dec.Decode(&e); err != nil {
		f.t.Fatal(err)
	}
	if e.Object.Metadata.Annotations["k8s.io/initial-events-end"] == "true" {
		return "END"
	}
	return e.Type + " " + e.Object.Kind + " " + e.Object.Metadata.Name
}

func TestAWatchTellsWhatIsThereAndWhatChanges(t *testing.T) {
	t.Parallel()
	s := New("p", 8000)
	server := httptest.NewServer(s)
	t.Cleanup(server.CloseClientConnections)
	s.SetObjectives(map[string]int{"gold": 100})
	f := watch(t, server.URL, "/apis/llm-d.ai/v1alpha2/namespaces/pool/inferenceobjectives?watch=true&sendInitialEvents=true")
	pods := watch(t, server.URL, "/api/v1/pods?watch=true&sendInitialEvents=true")
	for _, want := range []string{"ADDED InferenceObjective gold", "END"} {
		if got := f.next(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := pods.next(); got != "END" {
		t.Errorf("of pods: %q", got)
	}
	s.SetObjectives(map[string]int{"gold": 50, "batch": -10})
	s.SetObjectives(map[string]int{"gold": 50, "batch": -10}) // which changes nothing
	s.SetObjectives(map[string]int{"batch": -10})
	s.SetPods([]Pod{{Name: "a", IP: "127.0.0.1"}})
	for _, want := range []string{"ADDED InferenceObjective batch", "MODIFIED InferenceObjective gold", "DELETED InferenceObjective gold"} {
		if got := f.next(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := pods.next(); got != "ADDED Pod a" {
		t.Errorf("of pods: %q", got)
	}
}

func TestAWatchGoesOnWhereAListEnded(t *testing.T) {
	t.Parallel()
	s := New("p", 8000)
	server := httptest.NewServer(s)
	t.Cleanup(server.CloseClientConnections)
	s.SetPods([]Pod{{Name: "a", IP: "127.0.0.1"}})
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/namespaces/pool/pods", http.NoBody))
	var list struct {
		Kind     string `json:"kind"`
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []struct {
			Status struct {
				PodIP string `json:"podIP"`
			} `json:"status"`
		} `json:"items"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || list.Kind != "PodList" || len(list.Items) != 1 || list.Items[0].Status.PodIP != "127.0.0.1" {
		t.Fatalf("list %s: %v", w.Body, err)
	}
	s.SetPods(nil)
	f := watch(t, server.URL, "/api/v1/namespaces/pool/pods?watch=true&resourceVersion="+list.Metadata.ResourceVersion)
	if got := f.next(); got != "DELETED Pod a" {
		t.Errorf("after the list came %q", got)
	}
	for range keptEvents + 1 {
		s.SetPods([]Pod{{Name: "b", IP: "127.0.0.2"}})
		s.SetPods(nil)
	}
	w = httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/pods?watch=true&resourceVersion=1", http.NoBody))
	if w.Code != http.StatusGone {
		t.Errorf("a version that is forgotten: %d", w.Code)
	}
}

func TestItIsReadOnlyAndSaysWhatItHas(t *testing.T) {
	t.Parallel()
	s := New("p", 8000)
	for _, tt := range []struct {
		method, path string
		status       int
		has          string
	}{
		{http.MethodGet, "/version", 200, "gitVersion"},
		{http.MethodGet, "/api", 200, `"v1"`},
		{http.MethodGet, "/apis", 200, "inference.networking.k8s.io/v1"},
		{http.MethodGet, "/apis/llm-d.ai/v1alpha2", 200, "inferenceobjectives"},
		{http.MethodGet, "/apis/inference.networking.k8s.io/v1/namespaces/pool/inferencepools/p", 200, `"number":8000`},
		{http.MethodGet, "/apis/inference.networking.k8s.io/v1/namespaces/pool/inferencepools/q", 404, "NotFound"},
		{http.MethodGet, "/api/v1/secrets", 404, "NotFound"},
		{http.MethodPost, "/api/v1/namespaces/pool/pods", 405, "Failure"},
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(tt.method, tt.path, http.NoBody))
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.has) {
			t.Errorf("%s %s: %d %s", tt.method, tt.path, w.Code, w.Body)
		}
	}
}
