package catalogue_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/gateway/catalogue"
)

// remote is a catalogue with a pool that llm-d schedules.
const remote = `apiVersion: weir/v1
bands:
  - {name: interactive, priority: 100}
  - {name: standard, priority: 0}
plans:
  basic: {bands: {default: standard}, when_no_scheduler: refuse}
pools:
  - name: gpu
    endpoints: [{id: a, url: "http://10.0.0.1:8000"}]
    scheduler: {kind: llm-d, epp: ["grpcs://epp-0:9002", "grpcs://epp-1:9002"], objectives: {interactive: gold}}
models:
  - {name: m, operations: [chat], routes: [{pool: gpu}]}
`

func TestASharedScheduler(t *testing.T) {
	t.Parallel()
	doc := parse(t, remote)
	if err := doc.Validate(); err != nil {
		t.Fatal(err)
	}
	s := doc.Snapshot(nil).Scheduler("gpu")
	if d := cmp.Diff(map[int]string{100: "gold", 0: "standard"}, s.Objectives); d != "" {
		t.Errorf("objectives (-want +got):\n%s", d)
	}
	p := doc.Pools[0]
	if !p.StandsIn() || !p.Scheduler.IsShared() || p.Scheduler.Plaintext() {
		t.Errorf("%+v", p)
	}
	if plain := parse(t, strings.Replace(remote, "kind: llm-d, ", "kind: embedded, ", 1)); plain.Pools[0].Scheduler.IsShared() {
		t.Error("an embedded scheduler is shared")
	}
	for edit, same := range map[string]bool{"gold": true, "epp-2": false} {
		other := parse(t, strings.Replace(remote, "epp-1", strings.Replace(edit, "gold", "epp-1", 1), 1))
		if got := other.Snapshot(nil).Scheduler("gpu").Same(s); got != same {
			t.Errorf("with %s: the same is %v", edit, got)
		}
	}
}

func TestASharedSchedulerThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	const epp = `epp: ["grpcs://epp-0:9002", "grpcs://epp-1:9002"]`
	for name, test := range map[string]struct{ old, fresh, want string }{
		"a kind that nobody has":                {"kind: llm-d,", "kind: llmd,", `kind is "llmd": write embedded, llm-d, weir, llm-d-http`},
		"an EPP without a kind":                 {"kind: llm-d, ", "", "write kind: llm-d or kind: weir"},
		"no EPP":                                {epp, "epp: []", "write 1 to 8"},
		"an EPP without a port":                 {"grpcs://epp-0:9002", "grpcs://epp-0", "write grpcs://host:port"},
		"an EPP with more than a place":         {"grpcs://epp-0:9002", "grpcs://epp-0:9002/x", "write grpcs://host:port"},
		"an EPP with a secret":                  {"grpcs://epp-0:9002", "grpcs://me:pass@epp-0:9002", "write grpcs://host:port"},
		"an EPP by HTTP":                        {"grpcs://epp-0:9002", "https://epp-0:9002", "write grpcs://host:port"},
		"the same EPP twice":                    {"epp-1", "epp-0", "is there twice"},
		"plaintext over the network":            {"grpcs://epp-0", "grpc://epp-0", "readable on the way"},
		"no place to send to":                   {`endpoints: [{id: a, url: "http://10.0.0.1:8000"}]`, "endpoints: []", "it may send nowhere"},
		"every place to send to":                {epp, epp + `, allowed_destinations: ["0.0.0.0/0"]`, "is everywhere"},
		"a destination that is a URL":           {epp, epp + `, allowed_destinations: ["http://h:1"]`, "write a network"},
		"another scheme":                        {epp, epp + `, scheme: ftp`, "write http or https"},
		"an objective that Kubernetes refuses":  {"gold", "Gold_1", "InferenceObjective"},
		"an objective of no band":               {"interactive: gold", "fast: gold", `objectives names the band "fast"`},
		"one objective for two bands":           {"gold", "standard", "share the InferenceObjective standard"},
		"two CAs":                               {epp, epp + `, tls: {ca: x, ca_file: y}`, "ca and ca_file"},
		"a CA that is none":                     {epp, epp + `, tls: {ca: x}`, "no certificate"},
		"a certificate without its key":         {epp, epp + `, tls: {cert_file: x}`, "go together"},
		"a token in the clear":                  {epp, epp + `, objectives_url: "http://kube/x"`, "a token goes there"},
		"a document for somebody else":          {epp, epp + `, config_file: x.yaml`, "a shared one has its own"},
		"a wait that no replica waits":          {epp, epp + `, queue_ttl: 15m`, "10m0s at most"},
		"a scaler without a queue":              {"    scheduler: {", "    scaling: {max: 3}\n    scheduler: {", "leave scaling out"},
		"a spill that nobody can tell":          {"{pool: gpu}", "{pool: gpu, spill_when: {wait: 1s}}", "leave spill_when out"},
		"a scheduler of ours with objectives":   {"kind: llm-d,", "kind: weir,", "knows the bands"},
		"a gateway with EPPs":                   {"kind: llm-d,", "kind: llm-d-http,", "asks no EPP"},
		"a gateway with a queue of ours":        {"kind: llm-d, " + epp, "kind: llm-d-http, max_queued: 4", "queues nothing here"},
		"gateways that are found":               {"endpoints: [{id: a, url: \"http://10.0.0.1:8000\"}]\n    scheduler: {kind: llm-d, " + epp, "endpoints: []\n    discovery: {dns: {name: x, port: 1}}\n    scheduler: {kind: llm-d-http", "list the gateways"},
		"a verified pool behind a gateway":      {"    scheduler: {kind: llm-d, " + epp, "    isolation: verified\n    scheduler: {kind: llm-d-http", "can't be verified"},
		"a field that neither form has":         {"kind: llm-d,", "kind: llm-d, skip_verify: true,", "no field skip_verify"},
		"a plan that does what no scheduler is": {"when_no_scheduler: refuse", "when_no_scheduler: queue", "when_no_scheduler"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(remote, test.old, test.fresh, 1)
			if text == remote {
				t.Fatal("nothing was changed")
			}
			doc, _, err := catalogue.Parse([]byte(text))
			if err == nil {
				err = doc.Validate()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestPlaintextIsToldApart(t *testing.T) {
	t.Parallel()
	for address, plain := range map[string]bool{
		"grpc://127.0.0.1:9002": false, "grpc://localhost:9002": false, "grpc://[::1]:9002": false,
		"grpcs://epp:9002": false, "grpc://epp:9002": true, "grpc://10.0.0.1:9002": true,
	} {
		if got := (catalogue.Shared{EPP: []string{address}}).Plaintext(); got != plain {
			t.Errorf("%s: plaintext is %v", address, got)
		}
	}
}

// What the page shows is what may be written.
func TestTheExamplesOfSharedSchedulersAreRead(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/shared-scheduler.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```yaml\n")[1:]
	for _, block := range blocks {
		text, _, _ := strings.Cut(block, "```")
		doc, warnings, err := catalogue.Parse([]byte("apiVersion: weir/v1\nbands: [{name: standard, priority: 0}]\n" + text))
		if err == nil {
			err = doc.Validate()
		}
		if err != nil || len(warnings) > 0 || len(doc.Pools) != 1 {
			t.Errorf("%v, warnings %q, in\n%s", err, warnings, text)
		}
	}
	if len(blocks) != 2 {
		t.Errorf("%d examples", len(blocks))
	}
}
