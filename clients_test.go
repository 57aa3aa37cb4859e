package main

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// The judges of a wire format are the programs that people use. Each plays the
// same features against a whole replica, whose model says exactly what a script
// tells it to, and each must come to the same result.

const clientsCatalogue = `apiVersion: weir/v1
bands:
  - {name: standard, priority: 0}
plans:
  basic: {bands: {default: standard}, weight: 1, retention_days: 30}
pools:
  - {name: scripted, endpoints: [{id: a, url: "ENGINE", engine: vllm}]}
  - {name: flaky, endpoints: [{id: a, url: "ENGINE/1", engine: vllm}, {id: b, url: "ENGINE/2", engine: vllm}, {id: c, url: "ENGINE/3", engine: vllm}, {id: d, url: "ENGINE/4", engine: vllm}]}
  - {name: busy, endpoints: [{id: a, url: "ENGINE/busy", engine: vllm}]}
models:
  - {name: scripted, operations: [chat], routes: [{pool: scripted}]}
  - {name: flaky, operations: [chat], routes: [{pool: flaky}]}
  - {name: busy, operations: [chat], routes: [{pool: busy}]}
prices:
  - {model: scripted, input: "0.10", output: "0.40"}
`

// scripts is what the model says for each feature.
func scripts() map[string][]turn {
	const always = 1 << 20
	answered := turn{deltas: say("It is ", "done."), finish: "stop"}
	return map[string][]turn{
		"text":      {{deltas: say("Hello, ", "weir. ", "水門 \U0001f30a"), finish: "stop"}},
		"reasoning": {{deltas: append(think("First, ", "think."), say("So it is.")...), finish: "stop"}},
		"mixed": {{
			deltas: slices.Concat(think("Where?"), say("I look. ", "\n\n"), callDelta(0, "call_1", "weather", `{"city":"Paris"}`)),
			finish: "tool_calls",
		}},
		"loop": {
			{deltas: callDelta(0, "call_1", "weather", `{"city":"Paris"}`), finish: "tool_calls"},
			{deltas: callDelta(0, "call_2", "weather", `{"city":"Rome"}`), finish: "tool_calls"},
			{deltas: say("Paris is sunny, ", "Rome is wet."), finish: "stop"},
		},
		"parallel": {
			{deltas: interleave(callDelta(0, "call_1", "weather", `{"city":"Paris"}`), callDelta(1, "call_2", "weather", `{"city":"Rome"}`)), finish: "tool_calls"},
			answered,
		},
		"custom":    {{deltas: callDelta(0, "call_1", "patch", `{"input":"a \"line\"\n水"}`), finish: "tool_calls"}, answered},
		"namespace": {{deltas: callDelta(0, "call_1", "files__read", `{"city":"Paris"}`), finish: "tool_calls"}},
		"json":      {{deltas: say(`{"answer"`, `:42}`), finish: "stop"}},
		"refusal":   {{deltas: []string{`{"refusal":"I can't "}`, `{"refusal":"say that."}`}, finish: "stop"}},
		"length":    {{deltas: say("Cut o"), finish: "length"}},
		"nothing":   {{finish: "stop"}},
		"broken":    {{deltas: say("Half of "), breaks: always}},
		"fault":     {{deltas: say("Half of "), fault: `{"error":{"message":"CUDA out of memory","type":"InternalServerError","code":500}}`}},
		"busy":      {{status: 503}},
		"twice":     {{deltas: say("One."), finish: "stop"}, {deltas: say("Two."), finish: "stop"}},
	}
}

func interleave(a, b []string) (both []string) {
	for i := range a {
		both = append(both, a[i], b[i])
	}
	return both
}

// promised is what every client must make of a feature. An empty member isn't
// looked at.
type promised struct {
	text, reasoning, refusal, outcome, code string
	message                                 string // a part of it
	calls                                   []string
	status                                  int64
}

func promises() map[string]promised {
	const hello = "Hello, weir. 水門 \U0001f30a"
	const paris, rome = `weather {"city":"Paris"}`, `weather {"city":"Rome"}`
	const completed, incomplete, failed = "completed", "incomplete", "error"
	return map[string]promised{
		"streamed text":        {text: hello, outcome: completed},
		"text in one document": {text: hello, outcome: completed},
		"reasoning":            {reasoning: "First, think.", text: "So it is.", outcome: completed},
		"reasoning, text and a call in one turn": {
			reasoning: "Where?", text: "I look. \n\n", calls: []string{paris}, outcome: completed,
		},
		"a tool loop":                      {calls: []string{paris, rome}, text: "Paris is sunny, Rome is wet.", outcome: completed},
		"parallel calls":                   {calls: []string{paris, rome}, text: "It is done.", outcome: completed},
		"custom tools":                     {calls: []string{"patch a \"line\"\n水"}, text: "It is done.", outcome: completed},
		"tools in namespaces":              {calls: []string{`files/read {"city":"Paris"}`}, outcome: completed},
		"structured output":                {text: `{"answer":42}`, outcome: completed},
		"refusals":                         {refusal: "I can't say that.", outcome: completed},
		"an answer that is cut off":        {text: "Cut o", outcome: incomplete},
		"an answer without a word":         {outcome: completed},
		"an engine that breaks off":        {outcome: failed, message: "The model server"},
		"an engine that reports an error":  {outcome: failed, message: "The model server"},
		"a rate limit":                     {outcome: failed, status: 429, code: "rate_limit_exceeded"},
		"no credit left":                   {outcome: failed, status: 402, code: "insufficient_quota"},
		"a model at capacity":              {outcome: failed, status: 503, code: "server_is_overloaded"},
		"going on from a response":         {text: "Two.", outcome: completed},
		"a conversation":                   {text: "Two.", outcome: completed},
		"a task with edits of files":       {text: "The notes are corrected.", outcome: completed},
		"going on after an engine's death": {text: "The notes are corrected.", outcome: completed, message: "broke off its answer"},
	}
}

// check compares what a client told with what was promised.
func (p promised) check(t *testing.T, got gjson.Result) {
	t.Helper()
	var calls []string
	for _, c := range got.Get("calls").Array() {
		calls = append(calls, c.Str)
	}
	for _, row := range [][3]string{
		{"text", got.Get("text").Str, p.text},
		{"reasoning", got.Get("reasoning").Str, p.reasoning},
		{"refusal", got.Get("refusal").Str, p.refusal},
		{"outcome", got.Get("outcome").Str, p.outcome},
		{"code", got.Get("code").Str, p.code},
	} {
		if row[2] != "" && row[1] != row[2] {
			t.Errorf("%s is %q, want %q; told %s", row[0], row[1], row[2], got.Raw)
		}
	}
	if !strings.Contains(got.Get("message").Str, p.message) || strings.Contains(got.Raw, "CUDA") {
		t.Errorf("message %q, want %q", got.Get("message").Str, p.message)
	}
	if p.calls != nil && !slices.Equal(calls, p.calls) {
		t.Errorf("calls %q, want %q", calls, p.calls)
	}
	if status := got.Get("status").Int(); p.status != 0 && status != p.status {
		t.Errorf("status %d, want %d; told %s", status, p.status, got.Raw)
	}
}

// rig is a replica whose model is scripted.
type rig struct {
	*installation
	engine *scripted
	url    string
	paid   string // of a replica that serves nobody without credit
}

func startRig(t *testing.T) *rig {
	t.Helper()
	return startRigWith(t, clientsCatalogue)
}

func startRigWith(t *testing.T, catalogue string) *rig {
	t.Helper()
	all := scripts()
	maps.Copy(all, codexScripts())
	r := &rig{engine: newScripted(t, all)}
	r.installation = installWith(t, strings.ReplaceAll(catalogue, "ENGINE", r.engine.url))
	r.url, _ = r.serve(t)
	r.paid, _ = r.serve(t, "WEIR_BILLING_MODE=enforce")
	return r
}

func (r *rig) newKey(t *testing.T, flags ...string) string {
	t.Helper()
	return lastWord(runWeir(t, r.dir, r.environment, append([]string{"key", "create", "--tenant", r.tenant, "--quiet"}, flags...)...))
}

// client is one of them, and what of the features it is held to.
type client struct {
	features []string
	heavy    bool // `make test-clients` alone installs it
	tell     func(t *testing.T, r *rig, features []string) map[string]gjson.Result
	own      map[string]promised // where the client itself ends otherwise
}

// clients are named as in docs/compatibility.md.
func clients() map[string]client {
	notShown := promised{text: "So it is.", outcome: "completed"} // the client has no place for raw reasoning
	return map[string]client{
		"openai-node": {tell: clientProgram("testdata/sdk/node", "node", "responses.mjs"), features: []string{
			"streamed text", "text in one document", "reasoning", "reasoning, text and a call in one turn", "a tool loop", "parallel calls",
			"custom tools", "tools in namespaces", "structured output", "refusals", "an answer that is cut off", "an answer without a word",
			"an engine that breaks off", "an engine that reports an error", "a rate limit", "no credit left", "a model at capacity",
			"going on from a response", "a conversation",
		}},
		"openai-go": {tell: openaiGo, features: []string{
			"streamed text", "text in one document", "reasoning", "a tool loop", "parallel calls", "refusals", "an answer that is cut off",
			"an engine that breaks off", "an engine that reports an error", "a rate limit", "no credit left", "a model at capacity",
			"going on from a response", "a conversation",
		}},
		"openai-python": {tell: clientProgram("testdata/clients/python", ".venv/bin/python", "main.py"), heavy: true, features: []string{
			"streamed text", "text in one document", "reasoning", "reasoning, text and a call in one turn", "a tool loop", "parallel calls",
			"custom tools", "refusals", "an answer that is cut off", "an answer without a word",
			"an engine that breaks off", "an engine that reports an error", "a rate limit", "no credit left", "a model at capacity",
			"going on from a response", "a conversation",
		}},
		"AI SDK": {tell: clientProgram("testdata/clients/node", "node", "aisdk.mjs", "openai"), heavy: true, features: []string{
			"streamed text", "text in one document", "reasoning", "a tool loop", "parallel calls", "structured output", "an answer that is cut off",
			"an engine that breaks off", "an engine that reports an error", "a rate limit", "no credit left", "a model at capacity", "going on from a response",
		}, own: map[string]promised{"reasoning": notShown}},
		"AI SDK, Open Responses": {tell: clientProgram("testdata/clients/node", "node", "aisdk.mjs", "open-responses"), heavy: true, features: []string{
			"streamed text", "text in one document", "reasoning", "a tool loop", "parallel calls", "structured output", "an answer that is cut off",
			"an engine that breaks off", "an engine that reports an error", "a rate limit", "no credit left", "a model at capacity",
		}, own: map[string]promised{ // it reads no error whose param is null, as OpenAI's are
			"a rate limit":        {outcome: "error", status: 429},
			"no credit left":      {outcome: "error", status: 402},
			"a model at capacity": {outcome: "error", status: 503},
		}},
		"Agents SDK": {tell: clientProgram("testdata/clients/node", "node", "agents.mjs"), heavy: true, features: []string{
			"streamed text", "text in one document", "reasoning", "a tool loop", "parallel calls",
			"an engine that breaks off", "an engine that reports an error", "a rate limit", "no credit left", "a model at capacity",
			"going on from a response", "a conversation",
		}, own: map[string]promised{"reasoning": notShown}},
		"LangChain": {tell: clientProgram("testdata/clients/node", "node", "langchain.mjs"), heavy: true, features: []string{
			"streamed text", "text in one document", "reasoning", "a tool loop", "parallel calls", "structured output", "refusals",
			"an answer that is cut off", "an engine that breaks off", "an engine that reports an error", "a rate limit", "no credit left", "a model at capacity",
			"going on from a response",
		}},
		"Codex CLI": {tell: codex, heavy: true, features: []string{
			"streamed text", "reasoning", "a task with edits of files", "going on after an engine's death", "an answer that is cut off",
			"an engine that breaks off", "an engine that reports an error", "a rate limit", "no credit left", "a model at capacity",
		}, own: map[string]promised{ // it shows no status and no code
			"reasoning":                 notShown,
			"an answer that is cut off": {outcome: "error", message: "Incomplete response returned, reason: max_output_tokens"},
			"a rate limit":              {outcome: "completed", message: "429 Too Many Requests"}, // it waits as long as it is told to
			"no credit left":            {outcome: "error", message: "The credit of this organization"},
			"a model at capacity":       {outcome: "error", message: "Selected model is at capacity"},
		}},
	}
}

func TestClients(t *testing.T) {
	t.Parallel()
	r := startRig(t)
	for name, c := range clients() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.heavy && os.Getenv("WEIR_TEST_CLIENTS") == "" {
				t.Skip("make test-clients runs it")
			}
			answers := c.tell(t, r, c.features)
			for _, feature := range c.features {
				t.Run(feature, func(t *testing.T) {
					promise, known := promises()[feature]
					if own, differs := c.own[feature]; differs {
						promise = own
					}
					if !known || !answers[feature].Exists() {
						t.Fatalf("promised: %v, told: %v", known, answers[feature].Exists())
					}
					promise.check(t, answers[feature])
				})
			}
		})
	}
}

// clientProgram is a client that is a program of its own: it is given the features'
// names and prints a line of JSON for each.
func clientProgram(dir, name string, args ...string) func(*testing.T, *rig, []string) map[string]gjson.Result {
	return func(t *testing.T, r *rig, features []string) map[string]gjson.Result {
		t.Helper()
		if _, err := os.Stat(filepath.Join(dir, "node_modules")); err != nil && name == "node" && os.Getenv("WEIR_TEST_CLIENTS") == "" {
			t.Skipf("needs `npm ci --ignore-scripts` in %s (make test does it)", dir)
		}
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil && name != "node" {
			t.Skipf("%s isn't there: make test-clients installs it where PyPI is reached", filepath.Join(dir, name))
		}
		wall := newPaywall(t, r)
		cmd := exec.CommandContext(t.Context(), name, slices.Concat(args, features)...)
		cmd.Dir = dir
		cmd.Env = append(cleanEnvironment(), "WEIR_URL="+r.url, "WEIR_API_KEY="+r.key, "WEIR_LIMITED_KEY="+r.newKey(t, "--rpm", "1"),
			"WEIR_POOR_URL="+wall.url, "WEIR_POOR_KEY="+r.key)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("%s %v: %v\n%s\n%s", name, args, err, out.Bytes(), errs.Bytes())
		}
		wall.askedOnce(t)
		answers := map[string]gjson.Result{}
		for line := range strings.Lines(out.String()) {
			if v := gjson.Parse(line); v.IsObject() {
				answers[v.Get("feature").Str] = v
			}
		}
		return answers
	}
}

// The table of docs/compatibility.md says "yes" where a test does, and nowhere
// else.
func TestTheTableOfClientsIsWhatIsTested(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	said, names := map[string][]string{}, []string(nil)
	for line := range strings.Lines(string(raw)) {
		var cells []string
		for cell := range strings.SplitSeq(strings.Trim(strings.TrimSpace(line), "|"), "|") {
			cells = append(cells, strings.TrimSpace(cell))
		}
		switch {
		case len(cells) > 1 && cells[0] == "feature":
			names = cells
		case names == nil || len(cells) < 2 || strings.HasPrefix(cells[0], "-"):
		case len(cells) != len(names):
			t.Fatalf("%d cells in %q", len(cells), line)
		default:
			if _, promised := promises()[cells[0]]; !promised {
				t.Errorf("%q is no feature", cells[0])
			}
			for i, cell := range cells[1:] {
				if strings.HasPrefix(cell, "yes") {
					said[names[i+1]] = append(said[names[i+1]], cells[0])
				}
			}
		}
		if strings.TrimSpace(line) == "" && len(said) > 0 {
			break
		}
	}
	for name, c := range clients() {
		if got, want := slices.Sorted(slices.Values(said[name])), slices.Sorted(slices.Values(c.features)); !slices.Equal(got, want) {
			t.Errorf("%s: the table says %q, and tested are %q", name, got, want)
		}
		delete(said, name)
	}
	if len(said) > 0 {
		t.Errorf("nobody tests what the table says: %v", said)
	}
}
