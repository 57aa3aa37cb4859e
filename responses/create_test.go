package responses

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"
)

func TestBadRequestsNameTheirParameter(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]Problem{
		`[]`:                                   {},
		`{"input":"x"}`:                        {Param: "model", Code: codeMissing},
		`{"model":1,"input":"x"}`:              {Param: "model", Code: codeType},
		`{"model":"m"}`:                        {Param: "input", Code: codeMissing},
		`{"model":"m","input":null}`:           {Param: "input", Code: codeMissing},
		`{"model":"m","input":12345}`:          {Param: "input", Code: codeType},
		`{"model":"m","input":[]}`:             {Param: "input", Code: "empty_array"},
		`{"model":"m","input":[42]}`:           {Param: "input[0]", Code: codeType},
		`{"model":"m","input":[{"type":"x"}]}`: {Param: "input[0].type", Code: codeValue},
		`{"model":"m","input":[{"role":"x","content":"a"}]}`:                                                                       {Param: "input[0].role", Code: codeValue},
		`{"model":"m","input":[{"role":"user"}]}`:                                                                                  {Param: "input[0].content", Code: codeMissing},
		`{"model":"m","input":[{"role":"user","content":[{"type":"y"}]}]}`:                                                         {Param: "input[0].content[0].type", Code: codeValue},
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_text"}]}]}`:                                                {Param: "input[0].content[0].text", Code: codeMissing},
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]}`:                                 {Param: "input[0].content[0].file_id", Code: codeUnsupported},
		`{"model":"m","input":[{"type":"function_call","call_id":"a","name":"f"}]}`:                                                {Param: "input[0].arguments", Code: codeMissing},
		`{"model":"m","input":[{"type":"function_call_output","call_id":"a"}]}`:                                                    {Param: "input[0].output", Code: codeMissing},
		`{"model":"m","input":"x","previous_response_id":"a","conversation":"b"}`:                                                  {Param: "previous_response_id", Code: codeExclusive},
		`{"model":"m","input":"x","conversation":"c","store":false}`:                                                               {Param: "store", Code: codeValue},
		`{"model":"m","input":"x","background":true,"store":false}`:                                                                {Param: "background", Code: codeValue},
		`{"model":"m","input":"x","store":"yes"}`:                                                                                  {Param: "store", Code: codeType},
		`{"model":"m","input":"x","prompt":{"id":"p"}}`:                                                                            {Param: "prompt", Code: codeParameter},
		`{"model":"m","input":"x","include":["x"]}`:                                                                                {Param: "include", Code: codeValue},
		`{"model":"m","input":"x","tools":{}}`:                                                                                     {Param: "tools", Code: codeType},
		`{"model":"m","input":"x","tools":[{"type":"function"}]}`:                                                                  {Param: "tools[0].name", Code: codeMissing},
		`{"model":"m","input":"x","tools":[{"type":"function","name":"a b"}]}`:                                                     {Param: "tools[0].name", Code: codeValue},
		`{"model":"m","input":"x","tools":[{"type":"function","name":"a"},{"type":"custom","name":"a"}]}`:                          {Param: "tools[1].name", Code: codeValue},
		`{"model":"m","input":"x","tools":[{"type":"mcp","server_label":"a"}]}`:                                                    {Param: "tools[0].type", Code: codeUnsupported},
		`{"model":"m","input":"x","tools":[{"type":"namespace","name":"n","tools":[{"type":"namespace","name":"n","tools":[]}]}]}`: {Param: "tools[0].tools[0].type", Code: codeValue},
		`{"model":"m","input":"x","tool_choice":"required"}`:                                                                       {Param: "tool_choice", Code: codeValue},
		`{"model":"m","input":"x","tool_choice":"sometimes"}`:                                                                      {Param: "tool_choice", Code: codeValue},
		`{"model":"m","input":"x","tool_choice":{"type":"function","name":"f"}}`:                                                   {Param: "tool_choice.name", Code: codeValue},
		`{"model":"m","input":"x","tools":[{"type":"web_search"}],"tool_choice":{"type":"web_search"}}`:                            {Param: "tool_choice.type", Code: codeUnsupported},
		`{"model":"m","input":"x","max_output_tokens":15}`:                                                                         {Param: "max_output_tokens", Code: "integer_below_min_value"},
		`{"model":"m","input":"x","top_logprobs":21}`:                                                                              {Param: "top_logprobs", Code: "integer_above_max_value"},
		`{"model":"m","input":"x","temperature":"hot"}`:                                                                            {Param: "temperature", Code: codeType},
		`{"model":"m","input":"x","service_tier":"gold"}`:                                                                          {Param: "service_tier", Code: codeValue},
		`{"model":"m","input":"x","metadata":{"a":1}}`:                                                                             {Param: "metadata.a", Code: codeType},
		`{"model":"m","input":"x","text":{"format":{"type":"xml"}}}`:                                                               {Param: "text.format.type", Code: codeValue},
		`{"model":"m","input":"x","text":{"format":{"type":"json_schema","name":"a b","schema":{}}}}`:                              {Param: "text.format.name", Code: codeValue},
		`{"model":"m","input":"x","reasoning":{"effort":"huge"}}`:                                                                  {Param: "reasoning.effort", Code: codeValue},
	} {
		t.Run(body, func(t *testing.T) {
			t.Parallel()
			_, err := ParseCreate([]byte(body))
			p, ok := errors.AsType[*Problem](err)
			if !ok {
				t.Fatalf("error %v, want a *Problem", err)
			}
			if p.Param != want.Param || p.Code != want.Code || p.Message == "" {
				t.Errorf("%q %q (%s), want %q %q", p.Param, p.Code, p.Message, want.Param, want.Code)
			}
		})
	}
}

func TestRequestsBecomeChatRequests(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, request, want string }{
		{
			name:    "what was not set is left to the engine",
			request: `{"model":"m","input":"hi"}`,
			want:    `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`,
		},
		{
			name:    "members are named as Chat names them",
			request: `{"model":"m","input":"hi","max_output_tokens":99,"reasoning":{"effort":"low"},"temperature":0,"service_tier":"flex","include":["message.output_text.logprobs"],"top_logprobs":2,"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true},"verbosity":"low"},"client_metadata":{"a":"b"},"cache_salt":"s"}`,
			want:    `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object"},"strict":true}},"temperature":0,"service_tier":"flex","max_completion_tokens":99,"logprobs":true,"top_logprobs":2,"reasoning_effort":"low"}`,
		},
		{
			name:    "hosted tools are left out, namespaces are flattened",
			request: `{"model":"m","input":"hi","tools":[{"type":"function","name":"f","parameters":null,"strict":false},{"type":"web_search"},{"type":"namespace","name":"ns","tools":[{"type":"function","name":"g","description":"d","parameters":{"type":"object"}}]}],"tool_choice":"auto","parallel_tool_calls":true}`,
			want:    `{"model":"m","stream":true,"stream_options":{"include_usage":true},"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}},"strict":false}},{"type":"function","function":{"name":"ns__g","description":"d","parameters":{"type":"object"}}}],"tool_choice":"auto","messages":[{"role":"user","content":"hi"}]}`,
		},
		{
			name:    "an engine is told of the allowed tools alone",
			request: `{"model":"m","input":"hi","tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}],"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"g"}]}}`,
			want:    `{"model":"m","stream":true,"stream_options":{"include_usage":true},"tools":[{"type":"function","function":{"name":"g","parameters":{"type":"object","properties":{}}}}],"tool_choice":"required","messages":[{"role":"user","content":"hi"}]}`,
		},
		{
			name:    "a choice between no tools is left out",
			request: `{"model":"m","input":"hi","tools":[{"type":"web_search"}],"tool_choice":"auto"}`,
			want:    `{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, err := ParseCreate([]byte(tt.request))
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.Chat(nil, nil, Dialect{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(normal(t, tt.want), normal(t, string(got))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestItemsComeBackWithWhatClientsRelyOn(t *testing.T) {
	t.Parallel()
	items := itemsOf(t, `[{"role":"user","content":"a"},{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"b","extra":1}],"status":null,"annotations":null},{"type":"function_call","call_id":"c","name":"f","arguments":"{}","id":null},{"type":null,"role":"user","content":"x"},{"id":"rs_9","type":"item_reference"},{"id":"rs_8"}]`)
	var kinds []string
	for _, it := range items {
		kinds = append(kinds, it.Type)
		v := gjson.ParseBytes(it.JSON)
		if it.Type == typeReference {
			continue
		}
		if !gjson.ValidBytes(it.JSON) || v.Get("id").Str != it.ID || it.ID == "" || v.Get("type").Str != it.Type || v.Get("status").Str != Completed {
			t.Errorf("item %s", it.JSON)
		}
	}
	if diff := cmp.Diff([]string{typeMessage, typeMessage, typeCall, typeMessage, typeReference, typeReference}, kinds); diff != "" {
		t.Error(diff)
	}
	if items[1].ID != "msg_1" || gjson.GetBytes(items[1].JSON, "content.0.annotations").Raw != "[]" {
		t.Errorf("item %s", items[1].JSON)
	}
}
