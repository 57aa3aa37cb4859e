package llmd_test

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/scheduler/llmd"
)

const objectiveList = `{"kind":"InferenceObjectiveList","items":[
	{"metadata":{"name":"gold"},"spec":{"priority":100,"poolRef":{"name":"pool"}}},
	{"metadata":{"name":"plain"},"spec":{"poolRef":{"name":"pool"}}},
	{"metadata":{"name":"low"},"spec":{"priority":-5}}]}`

const pickerMetrics = `# HELP llm_d_epp_flow_control_capacity_utilization_requests x
llm_d_epp_flow_control_capacity_utilization_requests{inference_pool="pool",priority="100"} 0
llm_d_epp_flow_control_capacity_utilization_requests{inference_pool="pool",priority="0"} 0
llm_d_epp_request_total{priority="7"} 3
inference_extension_flow_control_queue_size{fairness_id="priority=\"9\"",priority="-10"} 0
`

// cluster is the folder of a service account, and a server with a certificate
// that its CA signed.
func cluster(t *testing.T, handler http.HandlerFunc) (server *httptest.Server, account string) {
	t.Helper()
	server = httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	account = t.TempDir()
	for name, text := range map[string]string{
		"token": "of-the-account\n", "namespace": "weir",
		"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
	} {
		if err := os.WriteFile(filepath.Join(account, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return server, account
}

func TestKubernetesTellsTheObjectives(t *testing.T) {
	t.Parallel()
	server, account := cluster(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer of-the-account" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte(objectiveList))
	})
	found, err := llmd.ObjectiveSource{ListURL: server.URL + "/list", Account: account}.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		wanted map[int]string
		want   []string // parts of the faults
	}{
		"all are there":                      {map[int]string{100: "gold", -5: "low", 0: "plain"}, nil},
		"one is missing":                     {map[int]string{100: "gold", 50: "silver"}, []string{"no InferenceObjective silver"}},
		"one has another priority":           {map[int]string{10: "gold"}, []string{"gold has the priority 100, not 10"}},
		"what counts as 0 anyway needs none": {map[int]string{0: "standard"}, nil},
		"but none of another priority":       {map[int]string{0: "gold"}, []string{"gold has the priority 100, not 0"}},
	} {
		faults := found.Missing(test.wanted)
		if len(faults) != len(test.want) {
			t.Errorf("%s: %q", name, faults)
			continue
		}
		for i, part := range test.want {
			if !strings.Contains(faults[i], part) {
				t.Errorf("%s: %q, want %q", name, faults[i], part)
			}
		}
	}
}

func TestTheAccountsTokenStaysInItsCluster(t *testing.T) {
	t.Parallel()
	_, account := cluster(t, func(http.ResponseWriter, *http.Request) {})
	saw := make(chan string, 1)
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		saw <- r.Header.Get("Authorization")
		_, _ = w.Write([]byte(`{"items":[]}`))
	}))
	t.Cleanup(plain.Close)
	if _, err := (llmd.ObjectiveSource{ListURL: plain.URL, Account: account}).Find(t.Context()); err != nil {
		t.Error(err)
	}
	if got := <-saw; got != "" {
		t.Errorf("a server without TLS was sent %q", got)
	}
	other, _ := cluster(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("a foreign server was sent %v", r.Header) })
	// Both have the same test certificate but for this account's CA, which is none.
	if err := os.WriteFile(filepath.Join(account, "ca.crt"), []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (llmd.ObjectiveSource{ListURL: other.URL, Account: account}).Find(t.Context()); err == nil {
		t.Error("a certificate that the cluster's CA didn't sign was taken")
	}
}

func TestMetricsTellThePrioritiesAtLeast(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = w.Write([]byte(pickerMetrics))
		}
	}))
	t.Cleanup(server.Close)
	source := llmd.ObjectiveSource{MetricsURL: server.URL + "/metrics", Account: t.TempDir()}
	found, err := source.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[int]bool{100: true, 0: true, -10: true}, found.Known); d != "" {
		t.Errorf("priorities (-want +got):\n%s", d)
	}
	if faults := found.Missing(map[int]string{100: "gold", 50: "silver", -10: "low"}); len(faults) != 1 || !strings.Contains(faults[0], "priority 50") {
		t.Errorf("%q", faults)
	}
	for name, s := range map[string]llmd.ObjectiveSource{
		"nobody to ask":             {Account: t.TempDir()},
		"a page that shows nothing": {MetricsURL: server.URL + "/other", Account: t.TempDir()},
	} {
		if _, err := s.Find(t.Context()); !errors.Is(err, llmd.ErrObjectivesUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
