package catalogue_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/gateway/catalogue"
	"weir/migrations/pgtest"
	"weir/scheduler"
)

// picker is a catalogue with a pool whose scheduler is a document.
const picker = `apiVersion: weir/v1
bands:
  - {name: standard, priority: 0}
  - {name: batch, priority: -10}
pools:
  - name: gpu
    endpoints: [{id: a, url: "http://10.0.0.1:8000"}]
    scheduler:
      apiVersion: llm-d.ai/v1
      kind: EndpointPickerConfig
      featureGates: [flowControl]
      plugins:
        - {type: concurrency-detector, parameters: {maxConcurrency: 8, headroom: 0.50}}
        - {type: round-robin-fairness-policy}
        - {type: queue-scorer}
        - {type: max-score-picker, name: best}
      schedulingProfiles:
        - name: default
          plugins: [{pluginRef: queue-scorer, weight: 2.0}, {pluginRef: best}]
      flowControl:
        maxRequests: "1k"
        saturationDetector: {pluginRef: concurrency-detector}
        priorityBands:
          - {priority: 0, maxRequests: 500, fairnessPolicyRef: round-robin-fairness-policy}
          - {priority: -10, maxRequests: "100"}
      requestHandler: {propagatePriority: true}
`

func TestAPoolMayHaveADocument(t *testing.T) {
	t.Parallel()
	doc := parse(t, picker)
	if err := doc.Validate(); err != nil {
		t.Fatal(err)
	}
	got := doc.Snapshot(nil).Scheduler("gpu")
	if c := got.Config; c.MaxConcurrency != 8 || c.MaxQueued != 1000 || len(c.Bands) != 2 || !got.PropagatePriority {
		t.Errorf("%+v", got)
	}
}

// Bands that a document doesn't list take its defaults, and count where ranks
// do.
func TestBandsAreThoseOfTheCatalogue(t *testing.T) {
	t.Parallel()
	const bands = "    - {priority: 0, maxRequests: 500, fairnessPolicyRef: round-robin-fairness-policy}\n          - {priority: -10, maxRequests: \"100\"}\n"
	text := strings.Replace(picker, "priorityBands:\n      "+bands,
		"defaultPriorityBand: {maxRequests: 7, fairnessPolicyRef: round-robin-fairness-policy}\n        defaultNegativePriorityBand: {maxRequests: 3}\n", 1)
	if text == picker {
		t.Fatal("nothing was replaced")
	}
	doc := parse(t, text)
	if err := doc.Validate(); err != nil {
		t.Fatal(err)
	}
	var got [][2]int
	for _, b := range doc.Snapshot(nil).Scheduler("gpu").Config.Bands {
		if want := map[bool]scheduler.FairnessPolicy{true: scheduler.GlobalStrict, false: scheduler.RoundRobin}; b.Fairness.Policy != want[b.Priority < 0] {
			t.Errorf("band %d has the fairness policy %q", b.Priority, b.Fairness.Policy)
		}
		got = append(got, [2]int{b.Priority, b.MaxQueued})
	}
	if d := cmp.Diff([][2]int{{0, 7}, {-10, 3}}, got); d != "" {
		t.Error(d)
	}
}

func TestAWrongDocumentIsNamedByItsLine(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ old, fresh, want string }{
		"an unknown plugin":       {"type: queue-scorer", "type: fancy-scorer", "line 15: plugins[fancy-scorer]: unknown plugin type"},
		"an unknown parameter":    {"headroom", "headrooom", `line 13: plugins[concurrency-detector]: unknown field "headrooom"; supported: maxConcurrency`},
		"an unknown field":        {"saturationDetector:", "saturation:", `line 22: flowControl: unknown field "saturation"`},
		"a band of the catalogue": {"  - {name: batch, priority: -10}\n", "  - {name: batch, priority: -20}\n", "priorityBands has the priority -10, which no band"},
		"and of the document":     {"  - {name: batch, priority: -10}\n", "  - {name: batch, priority: -20}\n", "lacks the priority -20 of the band batch"},
		"a field of the short form": {
			picker[strings.Index(picker, "      apiVersion: llm-d"):], "      max_concurency: 3\n", "line 9: scheduler has no field max_concurency: write max_concurrency",
		},
		"a file that nobody read": {
			picker[strings.Index(picker, "      apiVersion: llm-d"):], "      config_file: epp.yaml\n", "config_file epp.yaml was not read",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doc, _, err := catalogue.Parse([]byte(strings.Replace(picker, test.old, test.fresh, 1)))
			if err == nil {
				err = doc.Validate()
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestWarningsOfADocumentAreTold(t *testing.T) {
	t.Parallel()
	_, warnings, err := catalogue.Parse([]byte(strings.Replace(picker, "llm-d.ai/v1", "llm-d.ai/v1alpha1", 1)))
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "pool gpu: line 9: apiVersion: llm-d.ai/v1alpha1 is old") {
		t.Errorf("warnings %q, %v", warnings, err)
	}
}

func TestADocumentMayBeAFile(t *testing.T) {
	t.Parallel()
	inline := picker[strings.Index(picker, "      apiVersion: llm-d"):]
	files := map[string]string{
		"epp.yaml":   strings.ReplaceAll("\n"+inline, "\n      ", "\n"),
		"wrong.yaml": "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: nope}]\n",
	}
	read := func(name string) ([]byte, error) {
		if text, ok := files[name]; ok {
			return []byte(text), nil
		}
		return nil, os.ErrNotExist
	}
	doc := parse(t, strings.Replace(picker, inline, "      config_file: epp.yaml\n", 1))
	if warnings, err := doc.Include(read); err != nil || len(warnings) != 0 {
		t.Fatalf("%q, %v", warnings, err)
	}
	if d := cmp.Diff(parse(t, picker).Pools, doc.Pools); d != "" {
		t.Errorf("inline -, by file +:\n%s", d)
	}
	for name, want := range map[string]string{"wrong.yaml": "wrong.yaml: line 3", "nowhere.yaml": "file does not exist"} {
		doc := parse(t, strings.Replace(picker, inline, "      config_file: "+name+"\n", 1))
		if _, err := doc.Include(read); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if _, err := parse(t, picker).Include(func(string) ([]byte, error) { return nil, errors.New("asked") }); err != nil {
		t.Errorf("a pool without a file: %v", err)
	}
}

// A document comes back from the database as the same one, and a change of it
// is told by its fields.
func TestADocumentIsStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mustApply(t, db, picker, catalogue.Options{})
	if again := mustApply(t, db, picker, catalogue.Options{}); again != "no changes\n" {
		t.Errorf("the second time: %s", again)
	}
	snap, err := catalogue.Load(t.Context(), db.App)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(parse(t, picker).Pools, snap.Document().Pools); d != "" {
		t.Errorf("written -, stored +:\n%s", d)
	}
	if !snap.Scheduler("gpu").Same(parse(t, picker).Snapshot(nil).Scheduler("gpu")) {
		t.Error("the stored document means another scheduler")
	}
	golden(t, "document", mustApply(t, db, strings.NewReplacer(
		"maxConcurrency: 8", "maxConcurrency: 9",
		`"1k"`, `"2k"`,
		"{pluginRef: queue-scorer, weight: 2.0}, {pluginRef: best}", "{pluginRef: best}, {pluginRef: queue-scorer, weight: 2.5}",
		`{priority: -10, maxRequests: "100"}`, `{priority: -10, maxRequests: "50"}`,
		"        - {type: max-score-picker, name: best}\n", "        - {type: random-picker, name: best}\n        - {type: inflight-load-producer}\n",
	).Replace(picker), catalogue.Options{}))
	golden(t, "short", mustApply(t, db, strings.Replace(picker, picker[strings.Index(picker, "      apiVersion: llm-d"):], "      max_queued: 3\n", 1), catalogue.Options{}))
}

// What the page shows is what may be written.
func TestTheDocumentedExamplesAreRead(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/scheduling-config.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(page), "```yaml\n")[1:]
	for _, block := range blocks {
		text, _, _ := strings.Cut(block, "```")
		if doc, warnings, err := catalogue.Parse([]byte("apiVersion: weir/v1\n" + text)); err != nil || len(warnings) > 0 || len(doc.Pools)+len(doc.Models) == 0 {
			t.Errorf("%v, warnings %q, in\n%s", err, warnings, text)
		}
	}
	if len(blocks) < 3 {
		t.Errorf("%d examples", len(blocks))
	}
}

func TestRoutesThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	for routes, want := range map[string]string{
		"{pool: gpu, weight: 1, canary: 0.1}":                         "one of weight, canary and overflow",
		"{pool: gpu, canary: 0.1}":                                    "at least one needs a weight",
		"{pool: gpu}, {pool: b, canary: 1.5}":                         "canary is 1.5",
		"{pool: gpu}, {pool: b, canary: 0.5}, {pool: c, canary: 0.5}": "leave some to the others",
		"{pool: gpu}, {pool: b, overflow: true}":                      "no route has spill_when",
		"{pool: gpu, spill_when: {}}":                                 "name saturation, wait or both",
		"{pool: gpu, spill_when: {wait: -1s}}":                        "can't be negative",
		"{pool: gpu}, {pool: gpu, canary: 0.1}":                       "two routes go to the pool",
	} {
		doc := parse(t, "apiVersion: weir/v1\npools: [{name: gpu, endpoints: []}, {name: b, endpoints: []}, {name: c, endpoints: []}]\n"+
			"models: [{name: m, operations: [chat], routes: ["+routes+"]}]\n")
		if err := doc.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", routes, err, want)
		}
	}
	shared := parse(t, "apiVersion: weir/v1\npools: [{name: gpu, isolation: single-tenant, tenants: [ten_a, ten_b], endpoints: []}]\n")
	if err := shared.Validate(); err == nil || !strings.Contains(err.Error(), "2 tenants are named") {
		t.Errorf("two tenants of a single-tenant pool: %v", err)
	}
}
