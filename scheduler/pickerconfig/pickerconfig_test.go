package pickerconfig_test

import (
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"weir/scheduler"
	"weir/scheduler/pickerconfig"
)

const head = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nfeatureGates: [flowControl]\n"

// A mistake is named with its line, its place and what would be right.
func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		document string
		want     []string
	}{
		"unknown field":                     {head + "flowControl: {maxRequest: 1}\n", []string{"line 4", "flowControl", `"maxRequest"`, "maxRequests", "priorityBands"}},
		"unknown plugin":                    {head + "plugins: [{type: fancy-scorer}]\n", []string{"line 4", `"fancy-scorer"`, "queue-scorer", "weir-work-scorer"}},
		"unknown parameter":                 {head + "plugins: [{type: concurrency-detector, parameters: {max: 4}}]\n", []string{"line 4", "concurrency-detector", `"max"`, "maxConcurrency"}},
		"parameter of none":                 {head + "plugins: [{type: queue-scorer, parameters: {x: 4}}]\n", []string{"queue-scorer", "supported: none"}},
		"refused plugin":                    {head + "plugins: [{type: always-disagg-multimodal-decider}]\n", []string{"always-disagg-multimodal-decider is not supported", "where its prompt is computed"}},
		"wrong type":                        {head + "plugins: [{type: concurrency-detector, parameters: {maxConcurrency: many}}]\n", []string{"maxConcurrency", "a whole number", `"many"`}},
		"text for a number":                 {head + "plugins: [{type: concurrency-detector, parameters: {maxConcurrency: \"4\"}}]\n", []string{"a whole number"}},
		"out of range":                      {head + "plugins: [{type: concurrency-detector, parameters: {maxConcurrency: 0}}]\n", []string{"at least 1"}},
		"reference to nothing":              {head + "flowControl: {usageLimitPolicyPluginRef: holdback}\n", []string{"line 4", `"holdback"`, "plugins: has none"}},
		"reference to another":              {head + "plugins: [{type: queue-scorer}]\nflowControl: {usageLimitPolicyPluginRef: queue-scorer}\n", []string{"is a scorer", "not a usage-limit policy"}},
		"two of a name":                     {head + "plugins: [{type: queue-scorer}, {type: queue-scorer}]\n", []string{"two plugins"}},
		"two bands":                         {head + "flowControl: {priorityBands: [{priority: 3}, {priority: 3}]}\n", []string{"priority 3"}},
		"shares of all":                     {head + "flowControl: {priorityBands: [{priority: 3, weirMinShare: 0.5}, {priority: 2, weirMinShare: 0.5}]}\n", []string{"weirMinShare come to 1", "less than 1"}},
		"share of a template":               {head + "flowControl: {defaultPriorityBand: {weirMinShare: 0.5}}\n", []string{"weirMinShare", "priorityBands"}},
		"two profiles":                      {head + "schedulingProfiles: [{name: a, plugins: []}, {name: b, plugins: []}]\n", []string{"second profile", "disagg-profile-handler"}},
		"no profile to answer":              {head + "plugins: [{type: disagg-profile-handler}]\nschedulingProfiles: [{name: prefill, plugins: []}]\n", []string{"lacks \"decode\""}},
		"no profile to prefill":             {head + "plugins: [{type: always-disagg-pd-decider}, {type: disagg-profile-handler, parameters: {deciders: {prefill: always-disagg-pd-decider}}}]\nschedulingProfiles: [{name: decode, plugins: []}]\n", []string{"lacks \"prefill\""}},
		"a third profile":                   {head + "plugins: [{type: disagg-profile-handler}]\nschedulingProfiles: [{name: decode, plugins: []}, {name: other, plugins: []}]\n", []string{"neither \"decode\" nor \"prefill\""}},
		"a decider of encode":               {head + "plugins: [{type: disagg-profile-handler, parameters: {deciders: {encode: x}}}]\nschedulingProfiles: [{name: decode, plugins: []}]\n", []string{"deciders.encode", "is not supported"}},
		"a decider that isn't one":          {head + "plugins: [{type: queue-scorer}, {type: disagg-profile-handler, parameters: {deciders: {prefill: queue-scorer}}}]\nschedulingProfiles: [{name: decode, plugins: []}]\n", []string{"queue-scorer is a scorer, not a decider"}},
		"prefill before decode":             {head + "plugins: [{type: disagg-profile-handler, parameters: {stageOrder: prefill-first}}]\nschedulingProfiles: [{name: decode, plugins: []}]\n", []string{"only decode-first"}},
		"a rollout of nothing":              {head + "plugins: [{type: disaggregatedset-rollout-screener, parameters: {scope: {labelSelector: a=b}}}]\n", []string{"revisionGating is missing"}},
		"a rollout of everything":           {head + "plugins: [{type: disaggregatedset-rollout-screener, parameters: {revisionGating: {mode: disabled}}}]\n", []string{"scope.labelSelector is missing"}},
		"a rollout without roles":           {head + "plugins: [{type: disaggregatedset-rollout-screener, parameters: {scope: {labelSelector: a=b}, revisionGating: {mode: sum}}}]\n", []string{"requireRoles.values is missing"}},
		"a selector that isn't an equality": {head + "plugins: [{type: disaggregatedset-rollout-screener, parameters: {scope: {labelSelector: a in (b)}, revisionGating: {mode: disabled}}}]\n", []string{"label=value"}},
		"strict on a slice":                 {head + "plugins: [{type: disaggregatedset-rollout-screener, parameters: {scope: {labelSelector: a=b}, revisionGating: {mode: disabled}, headerSelectors: [{name: s, headerName: x-disagg-slice, labelKey: disaggregatedset.x-k8s.io/slice, mode: strict}]}}]\n", []string{"only a revision can be asked for"}},
		"two pickers":                       {head + "plugins: [{type: random-picker}, {type: max-score-picker}]\n", []string{"second picker"}},
		"profile without name":              {head + "schedulingProfiles: [{plugins: []}]\n", []string{"name is missing"}},
		"holdback without ceiling":          {head + "plugins: [{type: priority-holdback-policy}]\nflowControl: {usageLimitPolicyPluginRef: priority-holdback-policy}\n", []string{"minCeiling is missing"}},
		"holdback of everything":            {head + "plugins: [{type: priority-holdback-policy, parameters: {minCeiling: 0}}]\nflowControl: {usageLimitPolicyPluginRef: priority-holdback-policy}\n", []string{"minCeiling is 0", "never be dispatched"}},
		"negative quantity":                 {head + "flowControl: {maxBytes: \"-1\"}\n", []string{"maxBytes", "quantity"}},
		"bad duration":                      {head + "flowControl: {defaultRequestTTL: 30}\n", []string{"defaultRequestTTL", "duration"}},
		"negative duration":                 {head + "flowControl: {defaultRequestTTL: -1s}\n", []string{"defaultRequestTTL", "duration"}},
		"wrong gate":                        {strings.Replace(head, "[flowControl]", "[flowControls]", 1), []string{"feature gate", "flowControls"}},
		"wrong version":                     {strings.Replace(head, "/v1", "/v3", 1), []string{"llm-d.ai/v3", "llm-d.ai/v1"}},
		"wrong kind":                        {strings.Replace(head, "EndpointPickerConfig", "Pod", 1), []string{"EndpointPickerConfig"}},
		"no kind":                           {"apiVersion: llm-d.ai/v1\n", []string{"kind is missing"}},
		"two documents":                     {head + "---\n" + head, []string{"one YAML document"}},
		"no document":                       {"", []string{"empty"}},
		"a list":                            {"[]", []string{"want a mapping"}},
		"twice":                             {head + "weir: {}\nweir: {}\n", []string{"twice"}},
		"old field in v1":                   {head + "saturationDetector: {pluginRef: utilization-detector}\n", []string{"flowControl.saturationDetector"}},
		"old discovery in v1":               {head + "dataLayer: {discovery: {pluginRef: x}}\n", []string{`"pluginRef"`, "endpoints"}},
		"two limits": {
			head + "plugins: [{type: concurrency-detector}, {type: concurrency-detector, name: other, parameters: {maxConcurrency: 7}}]\n" +
				"schedulingProfiles: [{name: d, plugins: [{pluginRef: other}]}]\nflowControl: {saturationDetector: {pluginRef: concurrency-detector}}\n",
			[]string{"another limit"},
		},
		"everything at once": {head + "plugins: [{type: nope}, {type: nor-this}]\nflowControl: {maxBytes: lots}\n", []string{"nope", "nor-this", "lots"}},
		"unsupported gate":   {head + "flowControl: {endpointGatePluginRef: x}\n", []string{"max_concurrency"}},
		"selector operator": {
			head + "plugins: [{type: label-selector-filter, parameters: {matchExpressions: [{key: a, operator: NotIn, values: [b]}]}}]\n",
			[]string{"operator", "NotIn", "In"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := pickerconfig.Parse([]byte(test.document))
			if (err == nil) != (test.want == nil) {
				t.Fatalf("error %v", err)
			}
			for _, w := range test.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %v, want it to name %q", err, w)
				}
			}
		})
	}
}

// Where llm-d's fields surprise, they do so here too.
func TestTraps(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		document string
		ok       func(*pickerconfig.Document) bool
	}{
		"a band's maxRequests of 0 is the default": {
			head + `flowControl: {priorityBands: [{priority: 0, maxRequests: "0", maxBytes: "0"}]}`,
			func(d *pickerconfig.Document) bool {
				return d.Config.Bands[0].MaxQueued == 0 && d.Config.Bands[0].MaxBytes == 0
			},
		},
		"the pool's of 0 is no bound": {
			head + `flowControl: {maxRequests: "0"}`,
			func(d *pickerconfig.Document) bool { return d.Config.MaxQueued == 1<<30 && d.Config.MaxBytes == 0 },
		},
		"G is a power of ten and Gi of two": {
			head + `flowControl: {maxBytes: 1G, priorityBands: [{priority: 0, maxBytes: 1Gi}]}`,
			func(d *pickerconfig.Document) bool {
				return d.Config.MaxBytes == 1e9 && d.Config.Bands[0].MaxBytes == 1<<30
			},
		},
		"a TTL of 0s is none, also without endpoints": {
			head + `flowControl: {defaultRequestTTL: 0s}`,
			func(d *pickerconfig.Document) bool { return d.Config.TTL < 0 && d.Config.NoEndpointTTL > 24*time.Hour },
		},
		"without endpoints the other TTL counts": {
			head + `flowControl: {defaultRequestTTL: 7s}`,
			func(d *pickerconfig.Document) bool {
				return d.Config.TTL == 7*time.Second && d.Config.NoEndpointTTL == 7*time.Second
			},
		},
		"a band's TTL of 0s is none": {
			head + `flowControl: {priorityBands: [{priority: 0, defaultRequestTTL: 0s}]}`,
			func(d *pickerconfig.Document) bool { return d.Config.Bands[0].TTL < 0 },
		},
		"references name instances, not types": {
			head + "plugins: [{type: round-robin-fairness-policy, name: fair}]\nflowControl: {defaultPriorityBand: {fairnessPolicyRef: fair}}",
			func(d *pickerconfig.Document) bool {
				return d.Config.DefaultBand.Fairness.Policy == scheduler.RoundRobin
			},
		},
		"an instance under another type's name is meant": {
			head + "plugins: [{type: edf-ordering-policy, name: fcfs-ordering-policy}]\nflowControl: {defaultPriorityBand: {orderingPolicyRef: fcfs-ordering-policy}}",
			func(d *pickerconfig.Document) bool { return d.Config.DefaultBand.Ordering == scheduler.Earliest },
		},
		"defaults need no listing": {
			head + "flowControl: {saturationDetector: {pluginRef: utilization-detector}, defaultPriorityBand: {fairnessPolicyRef: global-strict-fairness-policy}}",
			func(d *pickerconfig.Document) bool { return d.Config.Detector.Kind == scheduler.UtilizationDetector },
		},
		"parameters of the profile handler do nothing": {
			head + "plugins: [{type: single-profile-handler, parameters: {scorers: [x]}}, {type: queue-scorer}]",
			func(d *pickerconfig.Document) bool { return len(d.Config.Profile.Scorers) == 1 },
		},
		"without profiles all that fits is in one": {
			head + "plugins: [{type: queue-scorer}, {type: concurrency-detector}, {type: random-picker}]",
			func(d *pickerconfig.Document) bool {
				p := d.Config.Profile
				return len(p.Scorers) == 1 && p.Scorers[0].Weight == 1 && len(p.Filters) == 1 && p.Picker.Kind == scheduler.Random
			},
		},
		"a gate may be switched off": {
			strings.Replace(head, "[flowControl]", "[\"flowControl=false\"]", 1) + "flowControl: {priorityBands: [{priority: 4}]}",
			func(d *pickerconfig.Document) bool { return d.Config.MaxConcurrency == 1<<30 && d.Priorities == nil },
		},
		"tokens alone bound no number of requests": {
			head + "plugins: [{type: concurrency-detector, parameters: {concurrencyMode: tokens, maxTokenConcurrency: 5}}]\nflowControl: {saturationDetector: {pluginRef: concurrency-detector}}",
			func(d *pickerconfig.Document) bool {
				return d.Config.MaxConcurrency == 1<<30 && d.Config.Detector.Mode == scheduler.CountTokens && d.Config.Detector.MaxTokens == 5
			},
		},
		"the producer's output estimate is the detector's": {
			head + "plugins: [{type: inflight-load-producer, parameters: {addEstimatedOutputTokens: true, maxEstimatedOutputTokens: 9}}, {type: concurrency-detector}]\nflowControl: {saturationDetector: {pluginRef: concurrency-detector}}",
			func(d *pickerconfig.Document) bool {
				c := d.Config.Detector
				return c.OutputTokens && c.OutputRatio == 1.5 && c.MaxOutput == 9
			},
		},
		"staleness is full only where the document says so": {
			head + "plugins: [{type: utilization-detector, parameters: {stalenessPolicy: saturated}}]",
			func(d *pickerconfig.Document) bool { return d.Config.Detector.StaleIsFull },
		},
		"a fixed ceiling holds for all": {
			head + "plugins: [{type: static-usage-limit-policy, parameters: {threshold: 0.7}}]\nflowControl: {usageLimitPolicyPluginRef: static-usage-limit-policy}",
			func(d *pickerconfig.Document) bool {
				return d.Config.UsageLimit.MinCeiling == 0.7 && d.Config.UsageLimit.MaxCeiling == 0.7
			},
		},
		"labels are filters one by one": {
			head + "plugins: [{type: label-selector-filter, parameters: {matchLabels: {a: x, b: y}, matchExpressions: [{key: c, operator: In, values: [u, v]}]}}]",
			func(d *pickerconfig.Document) bool {
				f := d.Config.Profile.Filters
				return len(f) == 3 && f[0].Label == "a" && f[1].Values[0] == "y" && len(f[2].Values) == 2
			},
		},
		"the prefix index without tuning": {
			head + "plugins: [{type: approx-prefix-cache-producer, parameters: {autoTune: false, blockSizeTokens: 128, maxPrefixTokensToMatch: 0, maxPrefixBlocksToMatch: 10}}]",
			func(d *pickerconfig.Document) bool {
				return d.Config.Profile.Prefix == scheduler.PrefixCache{BlockTokens: 128, MaxTokens: 1280, EndpointBlocks: 31250}
			},
		},
		"no slow start": {
			head + "weir: {slowStart: 0s}",
			func(d *pickerconfig.Document) bool { return d.Config.Profile.SlowStart < 0 },
		},
		"null is absent": {
			head + "flowControl:\nschedulingProfiles: null",
			func(d *pickerconfig.Document) bool { return d.Config.TTL == time.Minute },
		},
		"anchors may be used": {
			head + "flowControl: {priorityBands: [&b {priority: 1, maxRequests: 7}], defaultPriorityBand: *b}",
			func(d *pickerconfig.Document) bool { return d.Config.DefaultBand.MaxQueued == 7 },
		},
		"Weir's own words": {
			head + "plugins: [{type: weir-token-fairness-policy, parameters: {ignoreTurns: true}}, {type: weir-work-scorer}]\n" +
				"flowControl: {priorityBands: [{priority: 1, fairnessPolicyRef: weir-token-fairness-policy, weirMinShare: 0.1, weirMaxFlowRequests: 3}]}\n" +
				"weir: {maxConcurrency: 5, maxFlowRequests: 6, outputTokenCost: 3, slowStart: 4s, overloadPause: 1s, breaker: {faults: 9, backoff: 2s, maxBackoff: 8s}}",
			func(d *pickerconfig.Document) bool {
				c, b := d.Config, d.Config.Bands[0]
				return c.MaxConcurrency == 5 && c.MaxFlowQueued == 6 && c.OutputCost == 3 && c.Profile.SlowStart == 4*time.Second &&
					c.OverloadPause == time.Second && c.Breaker == scheduler.Breaker{Faults: 9, Backoff: 2 * time.Second, MaxBackoff: 8 * time.Second} &&
					b.MinShare == 0.1 && b.MaxFlowQueued == 3 && b.Fairness.IgnoreTurns && c.Profile.Scorers[0].Kind == scheduler.WorkScorer
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := pickerconfig.Parse([]byte(test.document))
			if err != nil {
				t.Fatal(err)
			}
			if !test.ok(d) {
				t.Errorf("%+v", *d)
			}
		})
	}
}

func TestQuantities(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "500": 500, "1k": 1000, "1.5k": 1500, "2Gi": 2 << 30, "1G": 1e9, "1e3": 1000, "1E3": 1000, "1E": 1e18,
		"1500m": 2, "1n": 1, "9Ei": 1<<63 - 1, "+5": 5, // rounded up; too large is the largest
	} {
		d, err := pickerconfig.Parse([]byte(head + `flowControl: {maxBytes: "` + text + `"}`))
		if err != nil || d.Config.MaxBytes != want {
			t.Errorf("%s: %v, want %d (%v)", text, d, want, err)
		}
	}
	for _, text := range []string{"", "k", "1kk", "1K", "1ki", "Gi", "0x1", "1/2", "1_0", "1e999999999", "Inf", "1 k", "i", "1i"} {
		if d, err := pickerconfig.Parse([]byte(head + `flowControl: {maxBytes: "` + text + `"}`)); err == nil {
			t.Errorf("%q is %d", text, d.Config.MaxBytes)
		}
	}
}

var update = flag.Bool("update", false, "write the table of docs/scheduling-config.md")

// The table that people read is what the parser does.
func TestTheDocumentedTableIsTheParsers(t *testing.T) {
	t.Parallel()
	const file, begin, end = "../../docs/scheduling-config.md", "<!-- plugins: made from the code -->\n", "<!-- end of plugins -->\n"
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(raw), begin)
	was, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no place for the table", file)
	}
	want := pickerconfig.Supported()
	if *update {
		if err := os.WriteFile(file, []byte(before+begin+want+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if was != want {
		t.Errorf("%s: go test ./scheduler/pickerconfig -update", file)
	}
}

// Whatever it is given, the parser answers, with a document or an error.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		raw, err := os.ReadFile("testdata/" + name + ".yaml")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte("a: &a [*a]\nplugins: *a"))
	f.Add([]byte(head + "plugins: &a [{type: random-picker, parameters: *a}]"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		d, err := pickerconfig.Parse(raw)
		if (d == nil) == (err == nil) {
			t.Errorf("document %v, error %v", d, err)
		}
	})
}

// Each filter and scorer that a document may name is one that the scheduler
// has: none is read and then left out.
func TestWhatIsSupportedIsThere(t *testing.T) {
	t.Parallel()
	for line := range strings.Lines(pickerconfig.Supported()) {
		cells := strings.Split(line, "|")
		if len(cells) < 5 || !strings.Contains(cells[2], "filter") && !strings.Contains(cells[2], "scorer") {
			continue
		}
		name := strings.Trim(cells[1], " `")
		parameters := map[string]string{
			"by-label":              "label: zone, validValues: [a]",
			"label-selector-filter": "matchLabels: {zone: a}", "by-label-selector": "matchLabels: {zone: a}",
			"context-length-aware": "enableFiltering: true",
		}[name]
		d, err := pickerconfig.Parse([]byte(head + "plugins: [{type: " + name + ", parameters: {" + parameters + "}}]"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		p := d.Config.Profile
		if len(p.Filters)+len(p.Scorers) == 0 || len(p.Unsupported()) > 0 {
			t.Errorf("%s: %+v; the scheduler lacks %v", name, p, p.Unsupported())
		}
	}
}
