package responses

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"
)

func itemsOf(t *testing.T, input string) []Item {
	t.Helper()
	items, err := ParseInput("input", gjson.Parse(input))
	if err != nil {
		t.Fatal(err)
	}
	return items
}

func normal(t *testing.T, raw string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(raw), &v); err != nil {
		t.Fatalf("%v: %s", err, raw)
	}
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestItemsBecomeMessages(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, instructions, input, want string
		dialect                         Dialect
	}{
		{
			name:  "one turn of the assistant is one message",
			input: `[{"role":"user","content":"q"},{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"r"}]},{"type":"message","role":"assistant","content":"ok"},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call","call_id":"b","name":"g","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"1"},{"type":"function_call_output","call_id":"b","output":""}]`,
			want: `[{"role":"user","content":"q"},{"role":"assistant","content":"ok","reasoning":"r","reasoning_content":"r","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}},{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]},
				{"role":"tool","tool_call_id":"a","content":"1"},{"role":"tool","tool_call_id":"b","content":""}]`,
		},
		{
			name:  "a call that was cut off is shown if it was run all the same",
			input: `[{"role":"user","content":"q"},{"type":"function_call","status":"incomplete","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call","status":"incomplete","call_id":"b","name":"g","arguments":"{"},{"type":"function_call_output","call_id":"a","output":"1"}]`,
			want:  `[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","content":"1"}]`,
		},
		{
			name:  "a turn of calls alone says null",
			input: `[{"role":"user","content":"q"},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"1"}]`,
			want:  `[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","content":"1"}]`,
		},
		{
			name:         "systems and developers are one first message",
			instructions: `"I"`,
			input:        `[{"role":"developer","content":"D"},{"role":"user","content":"q"},{"role":"system","content":[{"type":"input_text","text":"S"}]},{"role":"user","content":"r"}]`,
			want:         `[{"role":"system","content":"I\n\nD\n\nS"},{"role":"user","content":"q"},{"role":"user","content":"r"}]`,
		},
		{
			name:    "a template that knows them keeps them where they stand",
			dialect: Dialect{Developer: true, Systems: true},
			input:   `[{"role":"system","content":"S"},{"role":"user","content":"q"},{"role":"developer","content":"D"},{"role":"system","content":"T"}]`,
			want:    `[{"role":"system","content":"S"},{"role":"user","content":"q"},{"role":"developer","content":"D"},{"role":"system","content":"T"}]`,
		},
		{
			name:  "reasoning of earlier turns is not shown",
			input: `[{"role":"user","content":"q"},{"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}]},{"role":"assistant","content":"a"},{"role":"user","content":"p"}]`,
			want:  `[{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"p"}]`,
		},
		{
			name:    "unless it was asked for",
			dialect: Dialect{AllTurns: true},
			input:   `[{"role":"user","content":"q"},{"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}]},{"role":"assistant","content":"a"},{"role":"user","content":"p"}]`,
			want:    `[{"role":"user","content":"q"},{"role":"assistant","content":"a","reasoning":"r","reasoning_content":"r"},{"role":"user","content":"p"}]`,
		},
		{
			name:    "sealed reasoning is opened; a foreign seal is dropped, and a shell too",
			dialect: Dialect{Open: func(s string) (string, bool) { return "ours", s == "x" }},
			input:   `[{"role":"user","content":"q"},{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"},{"type":"reasoning","summary":[],"encrypted_content":"y"},{"type":"reasoning","summary":[],"encrypted_content":null},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"1"}]`,
			want:    `[{"role":"user","content":"q"},{"role":"assistant","content":null,"reasoning":"ours","reasoning_content":"ours","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","content":"1"}]`,
		},
		{
			name:  "reasoning alone is no turn",
			input: `[{"role":"user","content":"q"},{"type":"reasoning","content":[{"type":"reasoning_text","text":"r"}]},{"role":"user","content":"p"}]`,
			want:  `[{"role":"user","content":"q"},{"role":"user","content":"p"}]`,
		},
		{
			name:  "an empty turn of the assistant is kept",
			input: `[{"role":"user","content":"q"},{"role":"assistant","content":""},{"role":"user","content":"p"}]`,
			want:  `[{"role":"user","content":"q"},{"role":"assistant","content":""},{"role":"user","content":"p"}]`,
		},
		{
			name:  "texts of a message are joined, images are parts",
			input: `[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"text","text":"b"}]},{"role":"user","content":[{"type":"input_text","text":"see"},{"type":"input_image","image_url":"data:image/png;base64,AA","detail":"low"}]}]`,
			want:  `[{"role":"user","content":"a\nb"},{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA","detail":"low"}}]}]`,
		},
		{
			name:  "the image of a tool's output is shown as the user's",
			input: `[{"role":"user","content":"q"},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":[{"type":"input_text","text":"x"},{"type":"input_image","image_url":"data:image/png;base64,AA"}]}]`,
			want: `[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","content":"x"},
				{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}}]}]`,
		},
		{
			name:  "custom calls and namespaces are functions",
			input: `[{"role":"user","content":"q"},{"type":"custom_tool_call","call_id":"a","name":"c","input":"say \"x\""},{"type":"function_call","namespace":"ns","call_id":"b","name":"f","arguments":"{}"},{"type":"custom_tool_call_output","call_id":"a","output":"1"},{"type":"function_call_output","call_id":"b","output":"2"}]`,
			want: `[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"c","arguments":"{\"input\":\"say \\\"x\\\"\"}"}},{"id":"b","type":"function","function":{"name":"ns__f","arguments":"{}"}}]},
				{"role":"tool","tool_call_id":"a","content":"1"},{"role":"tool","tool_call_id":"b","content":"2"}]`,
		},
		{
			name:  "items of tools that others ran are left out",
			input: `[{"role":"user","content":"q"},{"type":"web_search_call","id":"ws_1","status":"completed"},{"role":"user","content":"p"}]`,
			want:  `[{"role":"user","content":"q"},{"role":"user","content":"p"}]`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := Messages(tt.instructions, itemsOf(t, tt.input), tt.dialect)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(normal(t, tt.want), normal(t, string(got))); diff != "" {
				t.Error(diff)
			}
			remembered := itemsOf(t, tt.input)
			for i := range remembered {
				remembered[i].findPlain()
			}
			if again, err := Messages(tt.instructions, remembered, tt.dialect); err != nil || string(again) != string(got) {
				t.Errorf("from memory %s (%v), else %s", again, err, got)
			}
		})
	}
}

func TestALaterTurnBeginsWithTheBytesOfTheEarlierOne(t *testing.T) {
	t.Parallel()
	input := `[{"role":"user","content":"über \u00fc"},{"role":"assistant","content":"a"}`
	first := itemsOf(t, input[:len(input)-len(`,{"role":"assistant","content":"a"}`)]+"]")
	for turn := range 5 {
		before, err := Messages("", first, Dialect{})
		if err != nil {
			t.Fatal(err)
		}
		next := append(first, itemsOf(t, `[{"role":"assistant","content":"a"},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"1"},{"role":"user","content":"more"}]`)...)
		after, err := Messages("", next, Dialect{})
		if err != nil {
			t.Fatal(err)
		}
		if head := string(before[:len(before)-1]); string(after[:len(head)]) != head {
			t.Fatalf("turn %d: %s\ndoes not begin with\n%s", turn, after, head)
		}
		first = next
	}
}

func TestHistoriesThatNoEngineCouldAnswer(t *testing.T) {
	t.Parallel()
	for name, input := range map[string]string{
		"a call without an output before the user": `[{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"role":"user","content":"q"}]`,
		"a call without an output at the end":      `[{"role":"user","content":"q"},{"type":"function_call","call_id":"a","name":"f","arguments":"{}"}]`,
		"an output without a call":                 `[{"type":"function_call_output","call_id":"a","output":"1"}]`,
		"an output twice":                          `[{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"a","output":"1"},{"type":"function_call_output","call_id":"a","output":"1"}]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Messages("", itemsOf(t, input), Dialect{})
			if _, ok := errors.AsType[*Problem](err); !ok {
				t.Errorf("error %v, want a *Problem", err)
			}
		})
	}
}
