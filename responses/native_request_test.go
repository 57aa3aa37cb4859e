package responses

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"weir/gateway"
)

func TestAChatRequestBecomesOneOfResponses(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, chat, want string }{
		{
			"a conversation is items, with their places as ids",
			`"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"h\u00e9"},{"role":"assistant","content":"ho"},{"role":"user","content":"more"}]`,
			`"store":false,"input":[{"type":"message","role":"system","content":"Be brief."},{"type":"message","role":"user","content":"h\u00e9"},` +
				`{"type":"message","id":"msg_3","role":"assistant","status":"completed","content":[{"type":"output_text","text":"ho","annotations":[]}]},{"type":"message","role":"user","content":"more"}]`,
		},
		{
			"a turn's reasoning, text and calls stay in their order",
			`"messages":[{"role":"user","content":"?"},{"role":"assistant","content":null,"reasoning":"hm","reasoning_content":"hm","tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"call_1","content":"42"}]`,
			`"store":false,"input":[{"type":"message","role":"user","content":"?"},{"type":"reasoning","id":"rs_2","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},` +
				`{"type":"function_call","id":"fc_3","call_id":"call_1","name":"f","arguments":"{\"a\":1}","status":"completed"},{"type":"function_call_output","id":"fco_4","call_id":"call_1","output":"42"}]`,
		},
		{
			"images and files are parts",
			`"messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"data:x","detail":"low"}},{"type":"file","file":{"filename":"a","file_data":"data:y"}}]}]`,
			`"store":false,"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"see"},{"type":"input_image","detail":"low","image_url":"data:x"},{"type":"input_file","filename":"a","file_data":"data:y"}]}]`,
		},
		{
			"tools are flat and say whether they are strict",
			`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}},{"type":"function","function":{"name":"g","strict":true}}],"tool_choice":{"type":"function","function":{"name":"f"}},"parallel_tool_calls":false,"messages":[]`,
			`"store":false,"tools":[{"type":"function","name":"f","parameters":{"type":"object"},"strict":false},{"type":"function","name":"g","strict":true}],"tool_choice":{"type":"function","name":"f"},"parallel_tool_calls":false,"input":[]`,
		},
		{
			"what both APIs have goes under its name here",
			`"messages":[],"temperature":0.5,"top_k":3,"max_completion_tokens":20,"reasoning_effort":"low","logprobs":true,"top_logprobs":2,"tool_choice":"none"`,
			`"store":false,"temperature":0.5,"top_k":3,"max_output_tokens":20,"reasoning":{"effort":"low"},"include":["message.output_text.logprobs"],"top_logprobs":2,"tool_choice":"none","input":[]`,
		},
		{
			"a schema is a format",
			`"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"},"strict":true}},"messages":[]`,
			`"store":false,"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true}},"input":[]`,
		},
		{"a format without one too", `"response_format":{"type":"json_object"},"messages":[]`, `"store":false,"text":{"format":{"type":"json_object"}},"input":[]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := gateway.Call{Operation: gateway.Chat, Fields: []byte(tt.chat)}
			asNative(&c)
			if diff := cmp.Diff(tt.want, string(c.Fields)); diff != "" {
				t.Errorf("fields (-want +got):\n%s", diff)
			}
			told := gjson.Parse("{" + string(c.Fields) + "}")
			if c.Operation != gateway.Responses || string(c.Prompt[0]) != told.Get("tools").Raw || string(c.Prompt[1]) != told.Get("input").Raw {
				t.Errorf("operation %s, prompt %s", c.Operation, c.Prompt)
			}
		})
	}
}
