package responses

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/tidwall/gjson"
)

// description is what a document says of events, by their type.
type description map[string]*openapi3.Schema

// ours is the published description; every event of every stream of these
// tests is held to it.
var ours = sync.OnceValues(func() (description, error) { return describe("../api/inference/openapi.yaml") })

// theirs is the vendor-neutral one; empty where it isn't at hand.
var theirs = sync.OnceValues(func() (description, error) {
	const path = "../../shared/spec/openresponses.openapi.json"
	if _, err := os.Stat(path); err != nil {
		return description{}, nil
	}
	return describe(path)
})

func describe(path string) (description, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	doc, err := openapi3.NewLoader().LoadFromData(raw)
	if err != nil {
		return nil, err
	}
	d := description{}
	for name, s := range doc.Components.Schemas {
		if !strings.HasSuffix(name, "Event") || s.Value.Properties["type"] == nil {
			continue
		}
		for _, kind := range s.Value.Properties["type"].Value.Enum {
			d[fmt.Sprint(kind)] = s.Value
		}
	}
	return d, nil
}

// checkSchemas holds each event of a stream to both descriptions.
func checkSchemas(tb testing.TB, stream []byte) {
	tb.Helper()
	published, err := ours()
	if err != nil {
		tb.Fatal(err)
	}
	neutral, err := theirs()
	if err != nil {
		tb.Fatal(err)
	}
	for event := range bytes.SplitSeq(stream, []byte("\n\n")) {
		_, data, _ := bytes.Cut(event, []byte("data: "))
		v := gjson.ParseBytes(data)
		if !v.IsObject() {
			continue // [DONE]
		}
		schema := published[v.Get("type").Str]
		if schema == nil {
			tb.Fatalf("%s is described nowhere", data)
		}
		if err := schema.VisitJSON(v.Value(), openapi3.EnableJSONSchema2020()); err != nil {
			tb.Fatalf("%s: %v", data, err)
		}
		schema = neutral[v.Get("type").Str]
		if schema == nil || only(v) {
			continue
		}
		if err := schema.VisitJSON(v.Value(), openapi3.EnableJSONSchema2020()); err != nil {
			tb.Fatalf("%s: %v", data, err)
		}
	}
}

// only reports whether an event has what OpenAI's clients know and the neutral
// description doesn't: custom tools, a schema that is echoed, and its own names
// for some efforts.
func only(v gjson.Result) bool {
	return strings.Contains(v.Raw, `"custom_tool_call"`) || strings.Contains(v.Raw, `"type":"custom"`) ||
		strings.Contains(v.Raw, `"type":"namespace"`) || strings.Contains(v.Raw, `"json_schema"`)
}

func TestTheNeutralDescriptionIsAtHand(t *testing.T) {
	t.Parallel()
	d, err := theirs()
	if err != nil {
		t.Fatal(err)
	}
	if len(d) == 0 {
		t.Skip("the Open Responses description is not at hand: events are held to our own alone")
	}
	for _, kind := range []string{"response.created", "response.output_item.done", "response.function_call_arguments.delta", "error"} {
		if d[kind] == nil {
			t.Errorf("it describes no %s: nothing would be checked", kind)
		}
	}
}
