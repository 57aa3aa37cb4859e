package enginesim_test

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"weir/scheduler/enginesim"
)

const weatherTool = `{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
	"properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":7}},"required":["city","days"]}}}`

const timeTool = `{"type":"function","function":{"name":"get_time","parameters":{"type":"object","properties":{"zone":{"enum":["UTC","CET"]}}}}}`

func ask(text, extra string) string {
	content, _ := json.Marshal(text)
	return `{"model":"sim-chat","messages":[{"role":"user","content":` + string(content) + `}]` + extra + `}`
}

func TestToolsAreCalledOnDemand(t *testing.T) {
	t.Parallel()
	tools := `,"tools":[` + weatherTool + `,` + timeTool + `]`
	for _, tt := range []struct {
		name, text, extra string
		want              []string
	}{
		{"required calls the first", "hi", `,"tool_choice":"required"`, []string{"get_weather"}},
		{"named calls that one", "hi", `,"tool_choice":{"type":"function","function":{"name":"get_time"}}`, []string{"get_time"}},
		{"auto calls none", "hi", ``, nil},
		{"the prompt asks for one", "please [tool]", ``, []string{"get_weather"}},
		{"the prompt names one", "please [tool:get_time]", ``, []string{"get_time"}},
		{"the prompt asks for all", "please [tools]", ``, []string{"get_weather", "get_time"}},
		{"a word of a name means its tool", "What time is it?", ``, []string{"get_time"}},
		{"short words mean nothing", "Get me a timetable", ``, nil},
		{"none forbids", "please [tool]", `,"tool_choice":"none"`, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := instant(t).ok("/v1/chat/completions", ask(tt.text, tools+tt.extra))
			checkCalls(t, a.Choices[0].Message.ToolCalls, a.Choices[0].FinishReason, tt.want)

			calls := map[int]toolCall{}
			finish := ""
			for _, chunk := range instant(t).stream("/v1/chat/completions", ask(tt.text, tools+tt.extra+`,"stream":true`)) {
				for _, c := range chunk.Choices {
					finish += c.FinishReason
					for _, d := range c.Delta.ToolCalls {
						sum := calls[d.Index]
						sum.ID += d.ID
						sum.Type += d.Type
						sum.Function.Name += d.Function.Name
						sum.Function.Arguments += d.Function.Arguments
						calls[d.Index] = sum
					}
				}
			}
			var streamed []toolCall
			for i := range len(calls) {
				streamed = append(streamed, calls[i])
			}
			checkCalls(t, streamed, finish, tt.want)
		})
	}
}

func checkCalls(t *testing.T, calls []toolCall, finish string, want []string) {
	t.Helper()
	if (finish == "tool_calls") != (len(want) > 0) {
		t.Errorf("finish_reason = %q", finish)
	}
	if len(calls) != len(want) {
		t.Fatalf("%d calls, want %v", len(calls), want)
	}
	for i, c := range calls {
		if c.Function.Name != want[i] || c.Type != "function" || !strings.HasPrefix(c.ID, "call_") {
			t.Errorf("call %d = %+v, want %s", i, c, want[i])
		}
		var arguments struct {
			City string `json:"city"`
			Days int    `json:"days"`
			Zone string `json:"zone"`
		}
		if err := json.Unmarshal([]byte(c.Function.Arguments), &arguments); err != nil {
			t.Errorf("arguments %q: %v", c.Function.Arguments, err)
		}
		if c.Function.Name == "get_weather" && (arguments.City == "" || arguments.Days < 1 || arguments.Days > 7) {
			t.Errorf("arguments = %+v", arguments)
		}
	}
}

func TestAToolResultIsAnsweredWithText(t *testing.T) {
	t.Parallel()
	a := instant(t).ok("/v1/chat/completions", `{"messages":[{"role":"user","content":"[tool]"},
		{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"get_weather","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"call_1","content":"sunny"}],"tools":[`+weatherTool+`]}`)
	checkCalls(t, a.Choices[0].Message.ToolCalls, a.Choices[0].FinishReason, nil)
}

func TestStructuredAnswersFitTheirSchema(t *testing.T) {
	t.Parallel()
	for name, schema := range map[string]string{
		"flat": `{"type":"object","properties":{"name":{"type":"string","minLength":40},"age":{"type":"integer","minimum":18,"maximum":20},
			"score":{"type":"number","exclusiveMinimum":0,"maximum":0.5},"ok":{"type":"boolean"},"none":{"type":"null"}},"required":["name","age"],"additionalProperties":false}`,
		"nested": `{"type":"object","properties":{"items":{"type":"array","minItems":3,"items":{"type":"object","properties":{"kind":{"enum":["a","b"]},
			"fixed":{"const":7}},"required":["kind"]}}},"required":["items"]}`,
		"references": `{"$defs":{"point":{"type":"object","properties":{"x":{"type":"number"}},"required":["x"]}},"type":"object",
			"properties":{"from":{"$ref":"#/$defs/point"},"to":{"anyOf":[{"$ref":"#/$defs/point"},{"type":"null"}]}},"required":["from","to"]}`,
		"recursive": `{"$defs":{"node":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}}}},"$ref":"#/$defs/node"}`,
		"formats":   `{"type":"object","properties":{"at":{"type":"string","format":"date-time"},"id":{"type":"string","format":"uuid"},"mail":{"type":"string","format":"email"}},"required":["at","id","mail"]}`,
		"short":     `{"type":"array","items":{"type":"string","maxLength":3},"minItems":2,"maxItems":2}`,
		"nullable":  `{"type":"object","properties":{"a":{"type":["integer","null"]}},"required":["a"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			doc, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
			if err != nil {
				t.Fatal(err)
			}
			compiler := jsonschema.NewCompiler()
			compiler.AssertFormat()
			if err := compiler.AddResource("schema.json", doc); err != nil {
				t.Fatal(err)
			}
			compiled, err := compiler.Compile("schema.json")
			if err != nil {
				t.Fatal(err)
			}
			r := instant(t)
			for _, seed := range []string{"1", "2", "3", "4"} {
				a := r.ok("/v1/chat/completions", ask("hi", `,"seed":`+seed+`,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":`+schema+`}}`))
				value, err := jsonschema.UnmarshalJSON(strings.NewReader(a.Choices[0].Message.Content))
				if err != nil {
					t.Fatalf("%q is no JSON: %v", a.Choices[0].Message.Content, err)
				}
				if err := compiled.Validate(value); err != nil {
					t.Errorf("%s: %v", a.Choices[0].Message.Content, err)
				}
			}
		})
	}
}

func TestJSONObjectIsAnObject(t *testing.T) {
	t.Parallel()
	a := instant(t).ok("/v1/chat/completions", ask("hi", `,"response_format":{"type":"json_object"}`))
	var got map[string]any
	if err := json.Unmarshal([]byte(a.Choices[0].Message.Content), &got); err != nil || got["simulated"] != true {
		t.Errorf("%q: %v", a.Choices[0].Message.Content, err)
	}
}

func TestLogprobsAreGivenForEachToken(t *testing.T) {
	t.Parallel()
	type entry struct {
		Token   string  `json:"token"`
		Logprob float64 `json:"logprob"`
		Bytes   []int   `json:"bytes"`
		Top     []any   `json:"top_logprobs"`
	}
	read := func(raw json.RawMessage) []entry {
		var l struct {
			Content []entry `json:"content"`
		}
		if err := json.Unmarshal(raw, &l); err != nil {
			t.Fatal(err)
		}
		return l.Content
	}
	r := instant(t)
	a := r.ok("/v1/chat/completions", ask("hi", `,"logprobs":true,"top_logprobs":2,"max_tokens":6`))
	text := ""
	for _, e := range read(a.Choices[0].Logprobs) {
		text += e.Token
		if e.Logprob >= 0 || len(e.Bytes) != len(e.Token) || len(e.Top) != 2 {
			t.Errorf("entry = %+v", e)
		}
	}
	if text != a.Choices[0].Message.Content {
		t.Errorf("tokens %q, content %q", text, a.Choices[0].Message.Content)
	}
	streamed := ""
	for _, chunk := range r.stream("/v1/chat/completions", ask("hi", `,"logprobs":true,"max_tokens":6,"stream":true`)) {
		for _, c := range chunk.Choices {
			for _, e := range read(c.Logprobs) {
				streamed += e.Token
			}
		}
	}
	if streamed != text {
		t.Errorf("streamed tokens %q", streamed)
	}
	b := r.ok("/v1/completions", `{"prompt":"hi","logprobs":1,"max_tokens":3}`)
	var old struct {
		Tokens []string             `json:"tokens"`
		Top    []map[string]float64 `json:"top_logprobs"`
		Offset []int                `json:"text_offset"`
	}
	if err := json.Unmarshal(b.Choices[0].Logprobs, &old); err != nil || len(old.Tokens) != 3 || len(old.Top[0]) != 1 || old.Offset[1] != len(old.Tokens[0]) {
		t.Errorf("completion logprobs = %+v, %v", old, err)
	}
}

func TestUsageShowsCachedTokens(t *testing.T) {
	t.Parallel()
	r := instant(t)
	long := strings.Repeat("the river follows the old mill ", 40)
	first := r.ok("/v1/chat/completions", ask(long, ``))
	if first.Usage.Details != nil {
		t.Errorf("a cold cache gave details: %+v", first.Usage.Details)
	}
	again := r.ok("/v1/chat/completions", ask(long, ``))
	if c := again.Usage.cached(); c%16 != 0 || c < again.Usage.Prompt-16 || c >= again.Usage.Prompt {
		t.Errorf("cached %d of %d", c, again.Usage.Prompt)
	}
	salted := r.ok("/v1/chat/completions", ask(long, `,"cache_salt":"tenant"`))
	if c := salted.Usage.cached(); c != 0 {
		t.Errorf("another salt found %d tokens", c)
	}
	said, _ := json.Marshal(again.Choices[0].Message.Content)
	content, _ := json.Marshal(long)
	next := r.ok("/v1/chat/completions", `{"messages":[{"role":"user","content":`+string(content)+`},
		{"role":"assistant","content":`+string(said)+`},{"role":"user","content":"go on"}]}`)
	if c := next.Usage.cached(); c < again.Usage.Total-16 {
		t.Errorf("the next turn found %d tokens of the %d before", c, again.Usage.Total)
	}
	if s := r.Stats(); s.PrefixHits != again.Usage.cached()+next.Usage.cached() {
		t.Errorf("stats = %+v", s)
	}
	chunks := r.stream("/v1/chat/completions", ask(long, `,"stream":true,"stream_options":{"include_usage":true}`))
	if c := chunks[len(chunks)-1].Usage.cached(); c != again.Usage.cached() {
		t.Errorf("streamed usage says %d", c)
	}
}

func TestEmbeddings(t *testing.T) {
	t.Parallel()
	r := newRig(t, enginesim.Config{ZeroLatency: true, EmbeddingDims: 64})
	floats := func(body string) [][]float64 {
		status, text := r.post("/v1/embeddings", body)
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
		var list struct {
			Data []struct {
				Embedding []float64 `json:"embedding"`
			} `json:"data"`
			Usage usage `json:"usage"`
		}
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatal(err)
		}
		if list.Usage.Prompt < 1 || list.Usage.Completion != 0 {
			t.Errorf("usage = %+v", list.Usage)
		}
		var out [][]float64
		for _, d := range list.Data {
			out = append(out, d.Embedding)
		}
		return out
	}
	got := floats(`{"input":["the old river mill","the old river gate","completely different subject"]}`)
	if len(got) != 3 || len(got[0]) != 64 {
		t.Fatalf("%d vectors of %d", len(got), len(got[0]))
	}
	if n := dot(got[0], got[0]); math.Abs(n-1) > 1e-5 {
		t.Errorf("length %v", n)
	}
	if near, far := dot(got[0], got[1]), dot(got[0], got[2]); near <= far {
		t.Errorf("similar texts %v, different ones %v", near, far)
	}
	if d := floats(`{"input":"one","dimensions":8}`); len(d[0]) != 8 {
		t.Errorf("dimensions = %d", len(d[0]))
	}
	plain := floats(`{"input":"the same"}`)[0]
	_, text := r.post("/v1/embeddings", `{"input":"the same","encoding_format":"base64"}`)
	var packed struct {
		Data []struct {
			Embedding string `json:"embedding"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(text), &packed); err != nil {
		t.Fatal(err)
	}
	b, err := base64.StdEncoding.DecodeString(packed.Data[0].Embedding)
	if err != nil || len(b) != 4*64 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	for i := range plain {
		if v := math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])); math.Abs(float64(v)-plain[i]) > 1e-6 {
			t.Fatalf("value %d: %v, want %v", i, v, plain[i])
		}
	}
}

func dot(a, b []float64) float64 {
	sum := 0.0
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}

func TestBadRequestsAreAnsweredAsVLLMDoes(t *testing.T) {
	t.Parallel()
	r := newRig(t, enginesim.Config{ZeroLatency: true, Models: []string{"sim-chat"}, ContextLength: 200})
	chat, text, embed := "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
	for _, tt := range []struct {
		name, path, body string
		status           int
		kind, message    string
	}{
		{"unknown model", chat, `{"model":"nope","messages":[{"role":"user","content":"x"}]}`, 404, "NotFoundError", "The model `nope` does not exist."},
		{"unknown model for embeddings", embed, `{"model":"nope","input":"x"}`, 404, "NotFoundError", "does not exist"},
		{"no JSON", chat, `{"model"`, 400, "BadRequestError", "JSON decode error"},
		{"no messages", chat, `{"model":"sim-chat"}`, 400, "BadRequestError", "messages"},
		{"messages is a number", chat, `{"messages":7}`, 400, "BadRequestError", "messages"},
		{"message without role", chat, `{"messages":[{"content":"x"}]}`, 400, "BadRequestError", "role"},
		{"content is a number", chat, `{"messages":[{"role":"user","content":7}]}`, 400, "BadRequestError", "content"},
		{"n is 0", chat, hello + `,"n":0}`, 400, "BadRequestError", "n must be"},
		{"max_tokens is negative", chat, hello + `,"max_tokens":-1}`, 400, "BadRequestError", "max_tokens"},
		{"top_logprobs is 21", chat, hello + `,"logprobs":true,"top_logprobs":21}`, 400, "BadRequestError", "top_logprobs"},
		{"temperature is 3", chat, hello + `,"temperature":3}`, 400, "BadRequestError", "temperature"},
		{"empty cache_salt", chat, hello + `,"cache_salt":""}`, 400, "BadRequestError", "cache_salt"},
		{"priority", chat, hello + `,"priority":1}`, 400, "BadRequestError", "priority"},
		{"stream_options without stream", chat, hello + `,"stream_options":{"include_usage":true}}`, 400, "BadRequestError", "Stream options"},
		{"required without tools", chat, hello + `,"tool_choice":"required"}`, 400, "BadRequestError", "tools"},
		{"a tool that was not sent", chat, hello + `,"tools":[` + weatherTool + `],"tool_choice":{"type":"function","function":{"name":"x"}}}`, 400, "BadRequestError", "does not match"},
		{"answer beyond the context", chat, hello + `,"max_tokens":200}`, 400, "BadRequestError", "maximum context length is 200 tokens"},
		{"prompt beyond the context", text, `{"prompt":"` + strings.Repeat("a ", 300) + `"}`, 400, "BadRequestError", "maximum context length is 200 tokens"},
		{"input beyond the context", embed, `{"input":"` + strings.Repeat("a ", 300) + `"}`, 400, "BadRequestError", "maximum context length"},
		{"no prompt", text, `{}`, 400, "BadRequestError", "prompt"},
		{"too many dimensions", embed, `{"input":"x","dimensions":100000}`, 400, "BadRequestError", "dimensions"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			status, body := r.post(tt.path, tt.body)
			var e struct {
				Error struct {
					Message string `json:"message"`
					Type    string `json:"type"`
					Code    int    `json:"code"`
				} `json:"error"`
			}
			if err := json.Unmarshal([]byte(body), &e); err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			if status != tt.status || e.Error.Code != tt.status || e.Error.Type != tt.kind || !strings.Contains(e.Error.Message, tt.message) {
				t.Errorf("%d %s; want %d %s %q", status, body, tt.status, tt.kind, tt.message)
			}
		})
	}
	t.Run("wrong content type", func(t *testing.T) {
		t.Parallel()
		if status, body := r.post(chat, hello+`}`, "Content-Type", "text/plain"); status != http.StatusUnsupportedMediaType {
			t.Errorf("%d %s", status, body)
		}
	})
}

func TestTokenizeCountsWhatUsageBills(t *testing.T) {
	t.Parallel()
	r := instant(t)
	var counted struct {
		Count  int      `json:"count"`
		MaxLen int      `json:"max_model_len"`
		Tokens []uint64 `json:"tokens"`
	}
	messages := `"messages":[{"role":"system","content":"Be short."},{"role":"user","content":[{"type":"text","text":"Hello wörld 水"},
		{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]`
	_, body := r.post("/tokenize", `{`+messages+`}`)
	if err := json.Unmarshal([]byte(body), &counted); err != nil {
		t.Fatal(err)
	}
	if a := r.ok("/v1/chat/completions", `{`+messages+`}`); a.Usage.Prompt != counted.Count || len(counted.Tokens) != counted.Count || counted.MaxLen != 32768 {
		t.Errorf("tokenize %d, usage %+v", counted.Count, a.Usage)
	}
	_, body = r.post("/tokenize", `{"prompt":"Hello wörld 水"}`)
	if err := json.Unmarshal([]byte(body), &counted); err != nil {
		t.Fatal(err)
	}
	ids, _ := json.Marshal(counted.Tokens)
	if _, text := r.post("/detokenize", `{"tokens":`+string(ids)+`}`); text != `{"prompt":"Hello wörld 水"}` {
		t.Errorf("detokenize = %s", text)
	}
	if a := r.ok("/v1/completions", `{"prompt":`+string(ids)+`,"max_tokens":1}`); a.Usage.Prompt != counted.Count {
		t.Errorf("a prompt of %d tokens counts as %d", counted.Count, a.Usage.Prompt)
	}
	if status, _ := r.post("/tokenize", `{}`); status != http.StatusBadRequest {
		t.Errorf("empty request: %d", status)
	}
}

func TestModelsAreListed(t *testing.T) {
	t.Parallel()
	_, body := instant(t).get("/v1/models")
	for _, want := range []string{`"id":"sim-chat"`, `"id":"alias"`, `"max_model_len":32768`} {
		if !strings.Contains(body, want) {
			t.Errorf("%s lacks %s", body, want)
		}
	}
}
