package inference

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMessages(t *testing.T) {
	t.Parallel()
	png := `"data:image/png;base64,AAAA"`
	tests := []struct {
		name    string
		message string
		forward string // "=": as it came
		ignored string
		code    string
		param   string // behind messages[0]
	}{
		{name: "a text", message: `{"role":"user","content":"hi","name":"ann"}`, forward: "="},
		{name: "an empty text", message: `{"role":"user","content":""}`, forward: "="},
		{name: "parts", message: `{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":` + png + `,"detail":"low"}}]}`, forward: "="},
		{name: "sound", message: `{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}]}`, forward: "="},
		{name: "a tool's answer", message: `{"role":"tool","tool_call_id":"c","content":"42"}`, forward: "="},
		{name: "calls with null content keep it", message: `{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}`, forward: "="},
		{name: "calls without content", message: `{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}`, forward: "="},
		{name: "reasoning goes back in", message: `{"role":"assistant","content":"x","reasoning_content":"r","reasoning":"r"}`, forward: "="},
		{name: "a refusal", message: `{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}`, forward: "="},
		{name: "a developer is a system to templates", message: `{"content":"x" , "role" : "developer"}`, forward: `{"content":"x" , "role" : "system"}`},
		{name: "a developer, escaped", message: `{"role":"d\u0065veloper","content":"x"}`, forward: `{"role":"system","content":"x"}`},
		{
			name: "cache keys of media are dropped", message: `{"role":"user","content":[{"uuid":"k","type":"image_url","image_url":{"url":` + png + `,"id":"x"},"uuid":"k2"}]}`,
			forward: `{"role":"user","content":[{"type":"image_url","image_url":{"url":` + png + `}}]}`,
			ignored: "messages[].content[].uuid messages[].content[].url.id",
		},
		{
			name: "an escaped cache key is dropped", message: `{"role":"user","content":[{"u\u0075id":"k","type":"text","text":"a"}]}`,
			forward: `{"role":"user","content":[{"type":"text","text":"a"}]}`, ignored: "messages[].content[].uuid",
		},
		{
			name: "unknown members first, middle and last", message: `{"a":1 , "b":{"c":[]},"role":"user", "d" : 2,"e":3 ,"content":"x","f":4, "g":5}`,
			forward: `{"role":"user" ,"content":"x"}`, ignored: "messages[].a messages[].b messages[].d messages[].e messages[].f messages[].g",
		},
		{name: "nulls are absent", message: `{"role":"user","content":"x","name":null,"tool_calls":null,"function_call":null,"foo":null}`, forward: `{"role":"user","content":"x"}`},
		{
			name:    "audio of an earlier answer is dropped",
			message: `{"role":"assistant","audio":{"id":"a"},"content":"x"}`, forward: `{"role":"assistant","content":"x"}`, ignored: "messages[].audio",
		},

		{name: "not an object", message: `7`, code: codeType},
		{name: "null", message: `null`, code: codeType},
		{name: "no role", message: `{"content":"x"}`, code: codeMissing, param: ".role"},
		{name: "an unknown role", message: `{"role":"narrator","content":"x"}`, code: codeValue, param: ".role"},
		{name: "the legacy role", message: `{"role":"function","name":"f","content":"x"}`, code: codeValue, param: ".role"},
		{name: "a number as role", message: `{"role":1,"content":"x"}`, code: codeType, param: ".role"},
		{name: "no content", message: `{"role":"user"}`, code: codeMissing, param: ".content"},
		{name: "null content of a user", message: `{"role":"user","content":null}`, code: codeMissing, param: ".content"},
		{name: "an assistant with nothing", message: `{"role":"assistant","content":null}`, code: codeMissing, param: ".content"},
		{name: "an assistant with no calls", message: `{"role":"assistant","tool_calls":[]}`, code: codeMissing, param: ".content"},
		{name: "a number as content", message: `{"role":"user","content":7}`, code: codeType, param: ".content"},
		{name: "an object as content", message: `{"role":"user","content":{}}`, code: codeType, param: ".content"},
		{name: "no parts", message: `{"role":"user","content":[]}`, code: codeArrayShort, param: ".content"},
		{name: "too many parts", message: `{"role":"user","content":[` + strings.Repeat(`{"type":"text","text":"a"},`, maxParts) + `{"type":"text","text":"a"}]}`, code: codeArrayLong, param: ".content"},
		{name: "a string as part", message: `{"role":"user","content":["x"]}`, code: codeType, param: ".content[0]"},
		{name: "a part without type", message: `{"role":"user","content":[{"text":"x"}]}`, code: codeMissing, param: ".content[0].type"},
		{name: "an unknown part", message: `{"role":"user","content":[{"type":"spreadsheet","spreadsheet":{}}]}`, code: codeUnsupported, param: ".content[0].type"},
		{name: "embeddings as a part", message: `{"role":"user","content":[{"type":"image_embeds","image_embeds":"x"}]}`, code: codeUnsupported, param: ".content[0].type"},
		{name: "a part without its text", message: `{"role":"user","content":[{"type":"text"}]}`, code: codeMissing, param: ".content[0].text"},
		{name: "a part of two types", message: `{"role":"user","content":[{"type":"text","text":"x","image_url":{"url":` + png + `}}]}`, code: codeValue, param: ".content[0]"},
		{name: "an address of an image", message: `{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://169.254.169.254/"}}]}`, code: codeUnsupported, param: ".content[0].image_url.url"},
		{name: "an address, encrypted", message: `{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}]}`, code: codeUnsupported, param: ".content[0].image_url.url"},
		{name: "an address in disguise", message: `{"role":"user","content":[{"type":"image_url","image_url":{"url":"\u0068ttp://x"}}]}`, code: codeUnsupported, param: ".content[0].image_url.url"},
		{name: "a file", message: `{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}`, code: codeUnsupported, param: ".content[0].image_url.url"},
		{name: "an address behind a good one", message: `{"role":"user","content":[{"type":"image_url","image_url":{"url":` + png + `,"url":"http://x"}}]}`, code: codeUnsupported, param: ".content[0].image_url.url"},
		{name: "an address in a part of another type", message: `{"role":"user","content":[{"type":"text","text":"a","image_url":{"url":"http://x"}}]}`, code: codeUnsupported, param: ".content[0].image_url.url"},
		{name: "an address of a video", message: `{"role":"user","content":[{"type":"video_url","video_url":{"url":"http://x"}}]}`, code: codeUnsupported, param: ".content[0].video_url.url"},
		{name: "an address as a string", message: `{"role":"user","content":[{"type":"image_url","image_url":"http://x"}]}`, code: codeType, param: ".content[0].image_url"},
		{name: "an image without url", message: `{"role":"user","content":[{"type":"image_url","image_url":{}}]}`, code: codeMissing, param: ".content[0].image_url.url"},
		{name: "a tool's answer to nothing", message: `{"role":"tool","content":"42"}`, code: codeMissing, param: ".tool_call_id"},
		{name: "calls of a user", message: `{"role":"user","content":"x","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]}`, code: codeValue, param: ".tool_calls"},
		{name: "a call without function", message: `{"role":"assistant","tool_calls":[{"id":"c"}]}`, code: codeMissing, param: ".tool_calls[0].function"},
		{name: "a call without arguments", message: `{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f"}}]}`, code: codeMissing, param: ".tool_calls[0].function.arguments"},
		{name: "arguments as an object", message: `{"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f","arguments":{}}}]}`, code: codeType, param: ".tool_calls[0].function.arguments"},
		{name: "a legacy call", message: `{"role":"assistant","content":"x","function_call":{"name":"f"}}`, code: codeParameter, param: ".function_call"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			req, problem := parseBody(t, chat, `{"model":"m","messages":[`+tt.message+`]}`)
			if tt.code != "" {
				if param := "messages[0]" + tt.param; problem == nil || problem.Code != tt.code || problem.Param != param {
					t.Errorf("want %s at %s, got %+v", tt.code, param, problem)
				}
				return
			}
			if problem != nil {
				t.Fatal(problem)
			}
			forward := tt.forward
			if forward == "=" {
				forward = tt.message
			}
			if diff := cmp.Diff(`"messages":[`+forward+`]`, string(req.Call.Fields)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if got := strings.Join(req.Ignored, " "); got != tt.ignored {
				t.Errorf("ignored: want %q, got %q", tt.ignored, got)
			}
		})
	}
}

func TestTheSecondMessageIsNamedByItsIndex(t *testing.T) {
	t.Parallel()
	_, problem := parseBody(t, chat, `{"messages":[{"role":"user","content":"a"},{"role":"user","content":1}],"model":"m"}`)
	if problem == nil || problem.Param != "messages[1].content" {
		t.Errorf("got %+v", problem)
	}
}

func toolOf(function string) string {
	return `[{"type":"function","function":` + function + `}]`
}

func TestToolsAndFormats(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"properties":{"a":`, 20) + "{}" + strings.Repeat("}}", 20)
	tests := []struct{ name, member, value, forward, ignored, code, param string }{
		{name: "no parameters", member: "tools", value: toolOf(`{"name":"f"}`), forward: "="},
		{name: "null parameters", member: "tools", value: toolOf(`{"name":"f","parameters":null}`), forward: toolOf(`{"name":"f"}`)},
		{name: "the dialect is named", member: "tools", value: toolOf(`{"name":"f","parameters":{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}}`), forward: "="},
		{name: "references inside", member: "tools", value: toolOf(`{"name":"f","parameters":{"$defs":{"a":{"type":"string"}},"$ref":"#/$defs/a"}}`), forward: "="},
		{name: "a property that is called pattern", member: "tools", value: toolOf(`{"name":"f","parameters":{"type":"object","properties":{"pattern":{"type":"string"}}}}`), forward: "="},
		{name: "a look-ahead that nobody enforces", member: "tools", value: toolOf(`{"name":"f","parameters":{"type":"string","pattern":"^(?!a).*$"}}`), forward: "="},
		{name: "unknown members", member: "tools", value: `[{"x":1,"type":"function","function":{"name":"f","y":2},"z":3}]`, forward: toolOf(`{"name":"f"}`), ignored: "tools[].x tools[].function.y tools[].z"},
		{name: "a custom tool", member: "tools", value: `[{"type":"custom","custom":{"name":"f"}}]`, code: codeUnsupported, param: "tools[0].type"},
		{name: "no type", member: "tools", value: `[{"function":{"name":"f"}}]`, code: codeMissing, param: "tools[0].type"},
		{name: "no function", member: "tools", value: `[{"type":"function"}]`, code: codeMissing, param: "tools[0].function"},
		{name: "no name", member: "tools", value: toolOf(`{}`), code: codeMissing, param: "tools[0].function.name"},
		{name: "an empty name", member: "tools", value: toolOf(`{"name":""}`), code: codeValue, param: "tools[0].function.name"},
		{name: "a name with a space", member: "tools", value: toolOf(`{"name":"a b"}`), code: codeValue, param: "tools[0].function.name"},
		{name: "a long name", member: "tools", value: toolOf(`{"name":"` + strings.Repeat("a", 65) + `"}`), code: codeValue, param: "tools[0].function.name"},
		{name: "the longest name", member: "tools", value: toolOf(`{"name":"` + strings.Repeat("a", 64) + `"}`), forward: "="},
		{name: "an object as tools", member: "tools", value: `{}`, code: codeType, param: "tools"},
		{name: "too many tools", member: "tools", value: `[` + strings.Repeat(`{"type":"function","function":{"name":"f"}},`, maxTools) + `{"type":"function","function":{"name":"f"}}]`, code: codeArrayLong, param: "tools"},
		{name: "parameters that are no schema", member: "tools", value: toolOf(`{"name":"f","parameters":{"type":"objekt"}}`), code: codeFunctionParameter, param: "tools[0].function.parameters"},
		{name: "parameters as a string", member: "tools", value: toolOf(`{"name":"f","parameters":"x"}`), code: codeType, param: "tools[0].function.parameters"},
		{name: "a reference to another document", member: "tools", value: toolOf(`{"name":"f","parameters":{"$ref":"http://169.254.169.254/x"}}`), code: codeFunctionParameter, param: "tools[0].function.parameters"},
		{name: "a reference to a file", member: "tools", value: toolOf(`{"name":"f","parameters":{"$ref":"file:///etc/passwd"}}`), code: codeFunctionParameter, param: "tools[0].function.parameters"},
		{name: "an unknown dialect is not fetched", member: "tools", value: toolOf(`{"name":"f","parameters":{"$schema":"http://127.0.0.1/x"}}`), code: codeFunctionParameter, param: "tools[0].function.parameters"},
		{name: "a broken pattern", member: "tools", value: toolOf(`{"name":"f","parameters":{"pattern":"("}}`), code: codeFunctionParameter, param: "tools[0].function.parameters"},
		{name: "a pattern of patterns", member: "tools", value: toolOf(`{"name":"f","parameters":{"pattern":"((a{1000}){1000}){1000}"}}`), code: codeFunctionParameter, param: "tools[0].function.parameters"},
		{name: "a long pattern", member: "tools", value: toolOf(`{"name":"f","parameters":{"pattern":"` + strings.Repeat("a", maxPattern+1) + `"}}`), code: codeFunctionParameter, param: "tools[0].function.parameters.pattern"},
		{name: "a long pattern of properties", member: "tools", value: toolOf(`{"name":"f","parameters":{"patternProperties":{"` + strings.Repeat("a", maxPattern+1) + `":{}}}}`), code: codeFunctionParameter},
		{name: "many common patterns", member: "tools", value: toolOf(`{"name":"f","parameters":{"anyOf":[` + strings.Repeat(`{"pattern":"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{12}$"},`, 500) + `{}]}}`), forward: "="},
		{name: "patterns that expand too much together", member: "tools", value: toolOf(`{"name":"f","parameters":{"anyOf":[` + strings.Repeat(`{"pattern":"(`+strings.Repeat("ab", 200)+`){1,1000}"},`, 2) + `{"pattern":"(` + strings.Repeat("ab", 200) + `){1000}"}]}}`), code: codeFunctionParameter, param: "tools[0].function.parameters.anyOf[2].pattern"},
		{name: "a repeat count beyond reason", member: "tools", value: toolOf(`{"name":"f","parameters":{"pattern":"a{99999999999999999999}"}}`), code: codeFunctionParameter, param: "tools[0].function.parameters.pattern"},
		{name: "a deep schema", member: "tools", value: toolOf(`{"name":"f","parameters":` + deep + `}`), code: codeFunctionParameter},
		{name: "a number that would fill the memory", member: "tools", value: toolOf(`{"name":"f","parameters":{"minimum":1e99999999}}`), code: codeFunctionParameter, param: "tools[0].function.parameters.minimum"},
		{name: "a huge schema", member: "tools", value: toolOf(`{"name":"f","parameters":{"description":"` + strings.Repeat("a", maxSchemaBytes) + `"}}`), code: codeFunctionParameter, param: "tools[0].function.parameters"},
		{name: "a look-ahead in a strict function", member: "tools", value: toolOf(`{"name":"f","parameters":{"pattern":"^(?!a).*$"},"strict":true}`), code: codeFunctionParameter, param: "tools[0].function.parameters"},

		{name: "no type of format", member: "response_format", value: `{}`, code: codeMissing, param: "response_format.type"},
		{name: "a grammar", member: "response_format", value: `{"type":"grammar","grammar":"x"}`, code: codeUnsupported, param: "response_format.type"},
		{name: "a structural tag", member: "response_format", value: `{"type":"structural_tag"}`, code: codeUnsupported, param: "response_format.type"},
		{name: "a format without schema", member: "response_format", value: `{"type":"json_schema"}`, code: codeValue, param: "response_format.json_schema"},
		{name: "a schema without name", member: "response_format", value: `{"type":"json_schema","json_schema":{"schema":{}}}`, code: codeMissing, param: "response_format.json_schema.name"},
		{name: "a name without schema", member: "response_format", value: `{"type":"json_schema","json_schema":{"name":"a"}}`, code: codeMissing, param: "response_format.json_schema.schema"},
		{name: "a format of a broken schema", member: "response_format", value: `{"type":"json_schema","json_schema":{"name":"a","schema":{"type":7}}}`, code: codeSchema, param: "response_format.json_schema.schema"},
		{name: "a look-ahead that is enforced", member: "response_format", value: `{"type":"json_schema","json_schema":{"name":"a","schema":{"pattern":"(?!a)"}}}`, code: codeSchema, param: "response_format.json_schema.schema"},
		{name: "unknown members of a format", member: "response_format", value: `{"type":"json_schema","json_schema":{"name":"a","schema":{},"x":1},"y":2}`, forward: `{"type":"json_schema","json_schema":{"name":"a","schema":{}}}`, ignored: "response_format.json_schema.x response_format.y"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			req, problem := parseBody(t, chat, base(chat)+`,"`+tt.member+`":`+tt.value+`}`)
			if tt.code != "" {
				if problem == nil || problem.Code != tt.code || tt.param != "" && problem.Param != tt.param {
					t.Errorf("want %s at %s, got %+v", tt.code, tt.param, problem)
				}
				return
			}
			if problem != nil {
				t.Fatal(problem)
			}
			forward := tt.forward
			if forward == "=" {
				forward = tt.value
			}
			if want := base(chat)[len(`{"model":"m",`):] + `,"` + tt.member + `":` + forward; want != string(req.Call.Fields) {
				t.Errorf("(-want +got)\n%s", cmp.Diff(want, string(req.Call.Fields)))
			}
			if got := strings.Join(req.Ignored, " "); got != tt.ignored {
				t.Errorf("ignored: want %q, got %q", tt.ignored, got)
			}
		})
	}
}

// Whatever a caller sends, what goes to an engine is JSON and has none of the
// members that are ours.
func FuzzFieldsAreAlwaysCleanJSON(f *testing.F) {
	f.Add(base(chat)+`,"tools":`+weatherTool+`,"response_format":`+jsonFormat+`,"priority":3}`, 0)
	f.Add(`{"x":1,"messages":[{"a":1,"role":"developer","b":2,"content":[{"uuid":1,"type":"text","text":"x"}]}],"model":"m","guided_json":{}}`, 0)
	f.Add(`{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"},"index":0}]}],"chat_template_kwargs":{"a":1,"enable_thinking":true}}`, 0)
	f.Add(`{"model":"m","messages":[{"role":"user","content":[{"uuid":1,"type":"file","file":{"file_data":"x","y":[]}},{"type":"image_url","image_url":{"url":"http://a","z":1},"uuid":2}]}]}`, 0)
	f.Add(base(completions)+`,"echo":false}`, 1)
	f.Add(base(embeddings)+`,"dimensions":3}`, 2)
	parser := NewParser()
	ops := everywhere
	f.Fuzz(func(t *testing.T, body string, op int) {
		req, err := parser.Parse(Input{
			Operation: ops[uint(op)%uint(len(ops))], Body: []byte(body),
			Models: shelf{"m": {TemplateKeys: []string{"enable_thinking"}}}, Media: (&desk{}).load,
		})
		if err != nil {
			return
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal([]byte("{"+string(req.Call.Fields)+"}"), &fields); err != nil {
			t.Fatalf("%s -> %s: %v", body, req.Call.Fields, err)
		}
		for _, name := range []string{"model", "stream", "stream_options", "cache_salt", "priority", "request_id", "chat_template"} {
			if _, ok := fields[name]; ok {
				t.Errorf("%s -> %s has %s", body, req.Call.Fields, name)
			}
		}
		if strings.Contains(string(req.Call.Fields), `"uuid":`) && !strings.Contains(body, `\"uuid`) && !strings.Contains(body, `"parameters"`) && !strings.Contains(body, "schema") && !strings.Contains(body, "guided") {
			t.Errorf("%s -> %s has a uuid", body, req.Call.Fields)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	bodies := map[string]string{
		"small":      `{"model":"m","messages":[{"role":"system","content":"You are helpful."},{"role":"user","content":"What is the capital of France?"}],"temperature":0.7,"max_tokens":64,"stream":true,"stream_options":{"include_usage":true}}`,
		"tools":      base(chat) + `,"tools":` + weatherTool + `,"tool_choice":"auto"}`,
		"prompt200K": `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("It was the best of times, it was the worst of times. ", 3900) + `"}],"stream":true}`,
		"edited200K": `{"model":"m","messages":[{"role":"developer","content":"` + strings.Repeat("It was the best of times, it was the worst of times. ", 3900) + `"}],"stream":true}`,
		"turns200":   `{"model":"m","messages":[` + strings.Repeat(`{"role":"user","content":"hello there, how are you?"},{"role":"assistant","content":"fine, thank you"},`, 100) + `{"role":"user","content":"x"}]}`,
	}
	for name, body := range bodies {
		parser, input, scratch := NewParser(), []byte(body), make([]byte, 1<<20)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(input)))
			b.ReportAllocs()
			for b.Loop() {
				_, err := parser.Parse(Input{
					Operation: chat, Principal: &tenantsPrincipal, Body: input,
					Models: shelf{}, Alloc: func(n int) []byte { return scratch[:n] },
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The dearest schemas that the budgets let through must not cost much.
func BenchmarkDearestSchema(b *testing.B) {
	patterns := `{"anyOf":[` + strings.Repeat(`{"pattern":"(`+strings.Repeat("[^x]", 120)+`){1000}"},`, 2) + `{}]}`
	var wide strings.Builder
	wide.WriteString(`{"properties":{`)
	for i := range 9000 {
		fmt.Fprintf(&wide, `"p%d":{"type":"string"},`, i)
	}
	wide.WriteString(`"z":{}}}`)
	for name, schema := range map[string]string{"patterns": patterns, "properties": wide.String()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := compile([]byte(schema), true); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
