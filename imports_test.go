package main

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// allowedImports is the structure of the house: which of our packages each may
// import. Arrows point down only; a missing arrow means that code stands in
// the wrong room. Tests may use more (see testOnly).
func allowedImports() map[string][]string {
	return map[string][]string{
		"weir": {
			"api", "gateway", "gateway/admission", "gateway/catalogue", "gateway/conformance", "gateway/media", "gateway/replica", "gateway/replay", "billing", "tenants", "tenants/notify", "responses",
			"scheduler", "scheduler/epp", "scheduler/pickerconfig", "scheduler/pool", "scheduler/pool/keda", "scheduler/primary", "scheduler/enginesim", "migrations", "migrations/pgserver",
			"responses/eventlog",
		},
		"api":                     {"api/inference", "gateway/replay", "responses", "gateway", "gateway/catalogue", "gateway/media", "billing", "tenants", "scheduler"},
		"api/inference":           {"api/inference/jsonscan", "gateway", "gateway/catalogue", "gateway/media", "tenants"},
		"api/inference/jsonscan":  {},
		"gateway":                 {"gateway/admission", "gateway/catalogue", "gateway/conformance", "gateway/upstream", "billing", "tenants", "scheduler", "scheduler/extproc", "scheduler/llmd", "scheduler/pool", "scheduler/kvevents"},
		"gateway/admission":       {},
		"gateway/upstream":        {},
		"gateway/conformance":     {"scheduler", "scheduler/pool"},
		"gateway/media":           {"tenants", "tenants/notify"},
		"gateway/replica":         {},
		"gateway/replay":          {"tenants"},
		"gateway/catalogue":       {"billing", "tenants", "scheduler", "scheduler/pickerconfig"},
		"responses":               {"gateway", "gateway/catalogue", "gateway/media", "billing", "tenants", "responses/eventlog"},
		"responses/eventlog":      {},
		"billing":                 {"tenants"},
		"tenants":                 {},
		"tenants/notify":          {},
		"scheduler":               {},
		"scheduler/pool":          {"scheduler"},
		"scheduler/primary":       {},
		"scheduler/extproc":       {"scheduler"},
		"scheduler/llmd":          {"scheduler", "scheduler/extproc"},
		"scheduler/llmd/eppsim":   {"scheduler/extproc"},
		"scheduler/llmd/kubestub": {},
		"scheduler/llmd/eppreal":  {"scheduler/llmd/kubestub"},
		"scheduler/epp":           {"scheduler", "scheduler/extproc", "scheduler/pool"},
		"scheduler/pool/keda":     {"scheduler/pool", "scheduler/pool/keda/externalscaler"},
		"scheduler/pickerconfig":  {"scheduler"},
		"scheduler/kvevents":      {"scheduler", "scheduler/kvevents/zmtp"},
		"scheduler/kvevents/zmtp": {},
		"scheduler/enginesim":     {"scheduler/kvevents/zmtp"},
		"migrations":              {},
		"migrations/pgserver":     {},
		"migrations/pgtest":       {"migrations", "migrations/pgserver"},
		"scheduler/schedulertest": {"scheduler"},
		"gateway/admission/admissiontest": {
			"gateway/admission",
		},
		"scheduler/pool/keda/externalscaler": {
			// generated
		},
		"bench/proc":                 {},
		"bench/section":              {},
		"bench":                      {"bench/proc", "bench/section", "migrations", "migrations/pgserver"},
		"bench/replay":               {"bench/section", "scheduler"},
		"bench/epp":                  {"bench/section", "scheduler", "scheduler/enginesim", "scheduler/epp", "scheduler/llmd", "scheduler/llmd/eppreal"},
		"bench/money":                {"bench/proc", "bench/section", "billing", "gateway/admission", "migrations", "migrations/pgserver"},
		"deploy/realmodel/tinymodel": {},
	}
}

// onlyIn names libraries that one room alone may know.
func onlyIn() map[string][]string {
	return map[string][]string{
		"github.com/labstack/echo/v4":                  {"api"},
		"github.com/stripe/stripe-go/v79":              {"billing/stripesync"},
		"github.com/redis/go-redis/v9":                 {"weir", "gateway/admission", "gateway/admission/admissiontest", "responses/eventlog"},
		"github.com/riverqueue/river":                  {"weir", "migrations"},
		"google.golang.org/grpc":                       {"weir", "scheduler/pool/keda", "scheduler/pool/keda/externalscaler", "scheduler/extproc", "scheduler/llmd", "scheduler/llmd/eppsim", "scheduler/llmd/eppreal", "scheduler/epp", "bench/epp"},
		"github.com/envoyproxy/go-control-plane/envoy": {"scheduler/extproc", "scheduler/llmd", "scheduler/llmd/eppsim", "scheduler/epp"},
		"github.com/spf13/cobra":                       {"weir"},
		"github.com/pressly/goose/v3":                  {"migrations"},
		"github.com/jackc/pgx/v5":                      {"weir", "api", "gateway", "gateway/catalogue", "gateway/replica", "gateway/replay", "scheduler/primary", "billing", "tenants", "responses", "migrations", "migrations/pgserver", "migrations/pgtest", "bench", "bench/money"},
	}
}

type listedPackage struct {
	ImportPath string   `json:"ImportPath"` // as go list writes them
	Imports    []string `json:"Imports"`
}

func listPackages(t *testing.T) []listedPackage {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listedPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listedPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		all = append(all, p)
	}
}

func TestArrowsPointDown(t *testing.T) {
	t.Parallel()
	allowed, libraries := allowedImports(), onlyIn()
	for _, p := range listPackages(t) {
		room := strings.TrimPrefix(p.ImportPath, "weir/")
		may, known := allowed[room]
		if !known {
			t.Errorf("%s is not in the table of allowedImports: give it a place in the house", room)
		}
		for _, imp := range p.Imports {
			if ours, ok := strings.CutPrefix(imp, "weir/"); ok && !slices.Contains(may, ours) {
				t.Errorf("%s imports %s: that arrow is not in the house; move the code, or the type", room, ours)
			}
			for library, rooms := range libraries {
				if (imp == library || strings.HasPrefix(imp, library+"/")) && !slices.Contains(rooms, room) {
					t.Errorf("%s imports %s, which only %v may know", room, imp, rooms)
				}
			}
		}
	}
}
