package main

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/tidwall/gjson"
)

// compliance are the cases of the Open Responses compliance suite, by its own
// names, as `weir dev` answers them with each way to ask an engine. Each is what the suite asks, and what it
// asserts beyond the schemas.
func compliance(t *testing.T) map[string]struct {
	body string
	then string // a second request, in which ID and CALL are of the first's answer
	call bool   // the answer has to call a function
} {
	t.Helper()
	const weather = `"tools":[{"type":"function","name":"get_weather","description":"Get the current weather for a location",
		"parameters":{"type":"object","properties":{"location":{"type":"string","description":"A city and a state"}},"required":["location"]}}]`
	const pixel = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
	pdf, err := os.ReadFile("testdata/page.pdf")
	if err != nil {
		t.Fatal(err)
	}
	says := func(role, text string) string {
		return `{"type":"message","role":"` + role + `","content":"` + text + `"}`
	}
	return map[string]struct {
		body string
		then string
		call bool
	}{
		"basic-response":     {body: `"input":[` + says("user", "Say hello in exactly 3 words.") + `]`},
		"streaming-response": {body: `"stream":true,"input":[` + says("user", "Count from 1 to 5.") + `]`},
		"system-prompt":      {body: `"input":[` + says("system", "You are a pirate. Always respond in pirate speak.") + `,` + says("user", "Say hello.") + `]`},
		"tool-calling":       {body: weather + `,"input":[` + says("user", "What's the weather like in San Francisco?") + `]`, call: true},
		"tool-calling-streaming": {
			body: `"stream":true,` + weather + `,"input":[` + says("user", "What's the weather like in San Francisco?") + `]`, call: true,
		},
		"image-input": {body: `"input":[{"type":"message","role":"user","content":[
			{"type":"input_text","text":"What do you see in this image? Answer in one sentence."},{"type":"input_image","image_url":"` + pixel + `"}]}]`},
		"file-input": {body: `"input":[{"type":"message","role":"user","content":[
			{"type":"input_text","text":"Summarize the file."},
			{"type":"input_file","filename":"page.pdf","file_data":"data:application/pdf;base64,` + base64.StdEncoding.EncodeToString(pdf) + `"}]}]`},
		"multi-turn": {body: `"input":[` + says("user", "My name is Alice.") + `,` + says("assistant", "Hello Alice! How can I help you?") + `,` + says("user", "What is my name?") + `]`},
		"function-call-roundtrip": {
			body: weather + `,"tool_choice":{"type":"function","name":"get_weather"},"input":"What is the weather in Paris?"`, call: true,
			then: `"previous_response_id":"ID","input":[{"type":"function_call_output","call_id":"CALL","output":"{\"celsius\":21}"}]`,
		},
		"previous-response-id": {
			body: `"input":"My name is Alice. Answer in one word."`,
			then: `"previous_response_id":"ID","input":"What is my name?"`,
		},
	}
}

func TestOpenResponsesCompliance(t *testing.T) {
	t.Parallel()
	d := startDev(t, t.TempDir())
	schemas := vendorNeutral(t)
	for _, model := range []string{"sim-chat", "sim-responses"} {
		for name, c := range compliance(t) {
			t.Run(model+"/"+name, func(t *testing.T) {
				t.Parallel()
				got := comply(t, d, schemas, model, c.body)
				call := got.Get(`output.#(type=="function_call")`)
				if c.call && (call.Get("name").Str != "get_weather" || !gjson.Valid(call.Get("arguments").Str)) {
					t.Errorf("no call in %s", got.Raw)
				}
				if c.then != "" {
					comply(t, d, schemas, model, strings.NewReplacer("ID", got.Get("id").Str, "CALL", call.Get("call_id").Str).Replace(c.then))
				}
			})
		}
	}
}

// comply asks and holds the answer to what the suite asserts of each.
func comply(t *testing.T, d *dev, schemas *openResponses, model, members string) gjson.Result {
	t.Helper()
	streams := strings.Contains(members, `"stream":true`)
	if !streams { // the suite says so in each request
		members = `"stream":false,` + members
	}
	res, err := post(t.Context(), d.url+"/v1/responses", d.key, `{"model":"`+model+`",`+members+`}`)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%d %s: %v", res.StatusCode, raw, err)
	}
	got, kinds := gjson.ParseBytes(raw), map[string]bool{}
	if streams {
		for line := range strings.Lines(string(raw)) {
			data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: {")
			if !ok {
				continue
			}
			event := gjson.Parse("{" + data)
			schemas.event(t, event)
			kinds[event.Get("type").Str] = true
			kinds[event.Get("type").Str+" of a "+event.Get("item.type").Str] = true
			got = event.Get("response")
		}
		if strings.Contains(members, `"tools"`) {
			for _, kind := range []string{
				"response.output_item.added of a function_call", "response.function_call_arguments.delta",
				"response.function_call_arguments.done", "response.output_item.done of a function_call",
			} {
				if !kinds[kind] {
					t.Errorf("no %s", kind)
				}
			}
		}
	}
	schemas.object(t, got)
	if got.Get("status").Str != "completed" || len(got.Get("output").Array()) == 0 {
		t.Errorf("status and output of %s", got.Raw)
	}
	return got
}

// openResponses is what answers have to look like: by our own description, and
// by the vendor-neutral one where that is at hand.
type openResponses struct {
	resources []*openapi3.Schema
	events    []map[string]*openapi3.Schema // by type
}

func vendorNeutral(t *testing.T) *openResponses {
	t.Helper()
	own := loadSchemas(t, "api/inference/openapi.yaml")
	all := &openResponses{resources: []*openapi3.Schema{own["Response"].Value}, events: []map[string]*openapi3.Schema{eventsOf(own, "Event")}}
	const theirs = "../shared/spec/openresponses.openapi.json"
	if _, err := os.Stat(theirs); err != nil {
		t.Logf("without %s: what answers look like is checked against our own description alone", theirs)
		return all
	}
	schemas := loadSchemas(t, theirs)
	all.resources = append(all.resources, schemas["ResponseResource"].Value)
	all.events = append(all.events, eventsOf(schemas, "StreamingEvent"))
	for _, known := range all.events {
		if known["response.output_item.added"] == nil || known["response.completed"] == nil {
			t.Fatalf("a description lacks events: it has %d", len(known))
		}
	}
	return all
}

// eventsOf are the schemas of events, by type: those whose names end so.
func eventsOf(schemas openapi3.Schemas, suffix string) map[string]*openapi3.Schema {
	events := map[string]*openapi3.Schema{}
	for name, s := range schemas {
		if kind := s.Value.Properties["type"]; kind != nil && strings.HasSuffix(name, suffix) {
			for _, each := range kind.Value.Enum {
				events[fmt.Sprint(each)] = s.Value
			}
		}
	}
	return events
}

func loadSchemas(t *testing.T, path string) openapi3.Schemas {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(raw)
	if err != nil {
		t.Fatal(err)
	}
	return doc.Components.Schemas
}

func (o *openResponses) object(t *testing.T, v gjson.Result) {
	t.Helper()
	for _, s := range o.resources {
		if err := s.VisitJSON(v.Value(), openapi3.EnableJSONSchema2020()); err != nil {
			t.Errorf("%s: %v", v.Raw, err)
		}
	}
}

func (o *openResponses) event(t *testing.T, v gjson.Result) {
	t.Helper()
	for _, described := range o.events {
		s, known := described[v.Get("type").Str]
		if !known {
			t.Errorf("unknown event %s", v.Raw)
			continue
		}
		if err := s.VisitJSON(v.Value(), openapi3.EnableJSONSchema2020()); err != nil {
			t.Errorf("%s: %v", v.Raw, err)
		}
	}
}

// The table of docs/compatibility.md names the cases that are tested.
func TestTheTableOfComplianceIsWhatIsTested(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(raw), "## Open Responses")
	told := map[string]bool{}
	for line := range strings.Lines(section) {
		if row := regexp.MustCompile("^\\| `([a-z-]+)` \\|").FindStringSubmatch(line); row != nil {
			told[row[1]] = true
		}
	}
	for name := range compliance(t) {
		if !told[name] {
			t.Errorf("the table lacks %s", name)
		}
		delete(told, name)
	}
	if len(told) > 0 {
		t.Errorf("nobody tests %v", told)
	}
}
