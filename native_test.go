package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// findNative is find for the input of a response: a turn of the assistant is
// what stands between two items of others.
func findNative(input gjson.Result) (name string, number int) {
	turn := false
	for _, it := range input.Array() {
		assistant := it.Get("role").Str == "assistant" || it.Get("type").Str == "function_call" || it.Get("type").Str == "reasoning"
		if assistant && !turn {
			number++
		}
		turn = assistant
		if it.Get("role").Str != "user" {
			continue
		}
		if all := playMark.FindAllStringSubmatch(it.Get("content").Raw, -1); all != nil {
			name, number = all[len(all)-1][1], 0
		}
	}
	return name, number
}

// streamNative tells a turn as events of a response, and no better than engines
// were seen to: nothing is ever done, the ids change, and the end has no output.
func streamNative(w http.ResponseWriter, body gjson.Result, now turn, breaks bool) {
	w.Header().Set("Content-Type", "text/event-stream")
	seq := 0
	event := func(kind, members string) {
		seq++
		fmt.Fprintf(w, "event: response.%s\ndata: "+`{"type":"response.%s","sequence_number":%d,%s}`+"\n\n", kind, kind, seq, members)
		_ = http.NewResponseController(w).Flush()
	}
	event("created", `"response":{"id":"resp_scripted","status":"in_progress"}`)
	at := func(index int64) string { return fmt.Sprintf(`"output_index":%d,"item_id":"x%d"`, index, seq) }
	for _, d := range now.deltas {
		d := gjson.Parse(d)
		for name, kind := range map[string]string{"content": "output_text", "reasoning_content": "reasoning_text", "refusal": "refusal"} {
			if v := d.Get(name); v.Exists() {
				event(kind+".delta", at(0)+`,"content_index":`+fmt.Sprint(seq)+`,"delta":`+v.Raw)
			}
		}
		for _, call := range d.Get("tool_calls").Array() {
			index := 1 + call.Get("index").Int()
			if name := call.Get("function.name"); name.Exists() {
				event("output_item.added", fmt.Sprintf(`"output_index":%d,"item":{"type":"function_call","id":"fc_%d","call_id":%s,"name":%s,"arguments":""}`,
					index, index, call.Get("id").Raw, name.Raw))
			}
			event("function_call_arguments.delta", at(index)+`,"delta":`+call.Get("function.arguments").Raw)
		}
	}
	switch {
	case breaks:
		panic(http.ErrAbortHandler)
	case now.fault != "":
		fmt.Fprintf(w, "data: %s\n\n", now.fault)
		return
	}
	status := "completed"
	if now.finish == "length" {
		status = "incomplete"
	}
	event(status, fmt.Sprintf(`"response":{"id":"resp_other","status":%q,"output":[],"usage":{"input_tokens":%d,"output_tokens":%d}}`, status, len(body.Raw)/4, len(now.deltas)))
}

// The clients can't tell how an engine was asked.
func TestClientsOfAnEnginesOwnResponses(t *testing.T) {
	t.Parallel()
	r := startRigWith(t, strings.ReplaceAll(clientsCatalogue, "operations: [chat]", "operations: [chat], upstream: responses"))
	for _, name := range []string{"openai-node", "openai-go"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := clients()[name]
			answers := c.tell(t, r, c.features)
			for _, feature := range c.features {
				t.Run(feature, func(t *testing.T) {
					if !answers[feature].Exists() {
						t.Fatal("not told")
					}
					promises()[feature].check(t, answers[feature])
				})
			}
		})
	}
	for _, body := range r.engine.requests("text") {
		if !body.Get("input").Exists() || body.Get("store").Raw != "false" {
			t.Errorf("the engine was asked %s", body.Raw)
		}
	}
}

const nativeCatalogue = `apiVersion: weir/v1
bands: [{name: standard, priority: 0}]
plans:
  basic: {bands: {default: standard, background: standard}, weight: 1, retention_days: 30}
pools:
  - {name: sound, isolation: verified, endpoints: [{id: a, url: "ENGINE", engine: sim}]}
models:
  - {name: native, engine_model: sim-chat, operations: [chat], upstream: responses, routes: [{pool: sound}]}
prices:
  - {model: native, input: "0.10", cached_input: "0.02", output: "0.40"}
`

func TestAnEnginesOwnResponsesAreOurs(t *testing.T) {
	t.Parallel()
	w := &whole{sound: startEngine(t)}
	w.installation = installWith(t, strings.ReplaceAll(nativeCatalogue, "ENGINE", w.sound))
	w.url, _ = w.serve(t)

	long := strings.Repeat("a long question about rivers ", 40)
	one := w.send(t, w.key, "/v1/responses", `{"model":"native","instructions":"be brief","input":"`+long+`","max_output_tokens":16,"cache_salt":"theirs","prompt_cache_key":"k"}`)
	first := gjson.Parse(one.text)
	if one.status != http.StatusOK || first.Get("model").Str != "native" || first.Get("output.0.content.0.text").Str == "" {
		t.Fatalf("%d %s", one.status, one.text)
	}
	two := w.send(t, w.key, "/v1/responses", `{"model":"native","instructions":"be brief","input":"and then?","max_output_tokens":16,"store":true,"previous_response_id":"`+first.Get("id").Str+`"}`)
	second := gjson.Parse(two.text)
	before, cached := first.Get("usage.input_tokens").Int(), second.Get("usage.input_tokens_details.cached_tokens").Int()
	if cached < before-16 {
		t.Errorf("%d tokens of the earlier prompt's %d were cached: %s", cached, before, two.text)
	}
	sent := arrivedAt(t, w.sound, two.id)
	for name, want := range map[string]string{"model": `"sim-chat"`, "store": "false", "stream": "true", "previous_response_id": "", "prompt_cache_key": "", "max_output_tokens": "16"} {
		if got := string(sent.fields[name]); got != want {
			t.Errorf("%s arrived as %s, want %s", name, got, want)
		}
	}
	salt := string(sent.fields["cache_salt"])
	if earlier := arrivedAt(t, w.sound, one.id); len(salt) < 20 || string(earlier.fields["cache_salt"]) != salt || !strings.HasPrefix(string(sent.fields["input"]), strings.TrimSuffix(string(earlier.fields["input"]), "]")) {
		t.Errorf("the first turn arrived as %s, the second as %s", earlier.Body, sent.Body)
	}
	if r := w.receipt(t, two.id); r.Operation != "responses" || r.Usage.InputCached != cached || r.CostNano == 0 {
		t.Errorf("receipt %+v", r)
	}
	if _, kept := call(t, http.MethodGet, w.url+"/v1/responses/"+second.Get("id").Str, w.key); kept.Get("output").Raw != second.Get("output").Raw {
		t.Errorf("kept as %s", kept.Raw)
	}
	if chat := w.chat(t, "native", `"max_tokens":1`); chat.status != http.StatusOK {
		t.Errorf("a chat: %s", chat.text)
	} else if body := arrivedAt(t, w.sound, chat.id); body.fields["messages"] == nil {
		t.Errorf("a chat arrived as %s", body.Body)
	}
	nativeFaults(t, w)
}

// nativeFaults plays each fault once; the answer has to be the one without it.
func nativeFaults(t *testing.T, w *whole) {
	t.Helper()
	const body = `{"model":"native","input":"What is the weather?","stream":true,"reasoning":{"effort":"low"},"seed":1,` +
		`"tools":[{"type":"function","name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}}]}`
	sound, end := nativeEvents(t, w, body)
	if end != "response.completed" || len(sound.Get("output").Array()) != 2 {
		t.Fatalf("without a fault it ends with %s: %s", end, sound.Raw)
	}
	for fault, want := range map[string]string{
		"no-item-done": "response.completed", "wrong-sequence": "response.completed", "same-ids": "response.completed", "foreign-ids": "response.completed",
		"items-out-of-order": "response.completed", "no-usage": "response.completed", "empty-output": "response.completed", "odd-parts": "response.completed",
		"no-done": "response.failed", "die-mid-stream=8": "response.failed",
	} {
		if status, got := ask(t, http.MethodPost, w.sound+"/admin/faults", "", `{"fault":"`+fault+`","requests":1}`); status != http.StatusOK {
			t.Fatal(got.Raw)
		}
		got, end := nativeEvents(t, w, body)
		if end != want {
			t.Errorf("%s: it ends with %s: %s", fault, end, got.Raw)
			continue
		}
		if want == "response.failed" {
			continue
		}
		if got.Get("output.#.type").Raw != sound.Get("output.#.type").Raw || got.Get("output.0.content.0.text").Str != sound.Get("output.0.content.0.text").Str ||
			got.Get("output.1.arguments").Str != sound.Get("output.1.arguments").Str {
			t.Errorf("%s: the answer is %s\nand without the fault %s", fault, got.Get("output").Raw, sound.Get("output").Raw)
		}
	}
}

// nativeEvents streams a response and returns its last object and the name of
// the only event that ends it.
func nativeEvents(t *testing.T, w *whole, body string) (last gjson.Result, end string) {
	t.Helper()
	res, err := post(t.Context(), w.url+"/v1/responses", w.key, body)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(io.LimitReader(res.Body, 4<<20))
	lines.Buffer(nil, 1<<20)
	next := int64(0)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: {")
		if !ok {
			continue
		}
		e := gjson.Parse("{" + data)
		if e.Get("sequence_number").Int() != next {
			t.Errorf("event %d has the number %s", next, e.Get("sequence_number").Raw)
		}
		next++
		if r := e.Get("response"); r.Exists() {
			last = r
		}
		switch kind := e.Get("type").Str; kind {
		case "response.completed", "response.incomplete", "response.failed":
			if end != "" {
				t.Errorf("%s after %s", kind, end)
			}
			end = kind
		}
	}
	return last, end
}

// A model may say that its servers have what they haven't: doctor looks.
func TestDoctorMissesAnEnginesOwnResponses(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(plain.Close)
	in := installWith(t, strings.NewReplacer("ENGINE", startEngine(t), "pools:\n", "pools:\n  - {name: plain, endpoints: [{id: b, url: \""+plain.URL+"\", engine: vllm}]}\n",
		"models:\n", "models:\n  - {name: mistaken, operations: [chat], upstream: responses, routes: [{pool: plain}]}\n").Replace(nativeCatalogue))
	out := runWeir(t, in.dir, append(in.environment, "WEIR_STATE_DIR="+t.TempDir()), "doctor")
	said := map[string]bool{}
	for line := range strings.Lines(out) {
		for _, about := range []string{"model native, /v1/responses of endpoint a", "model mistaken, /v1/responses of endpoint b"} {
			if strings.Contains(line, about) {
				said[about] = strings.Contains(line, "the model server has none")
			}
		}
	}
	if wrong, asked := said["model native, /v1/responses of endpoint a"]; wrong || !asked || !said["model mistaken, /v1/responses of endpoint b"] {
		t.Errorf("doctor says\n%s", out)
	}
}
