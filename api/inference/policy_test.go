package inference

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/gateway"
	"weir/gateway/catalogue"
	"weir/tenants"
)

// base has what each operation requires, without its closing brace.
func base(op gateway.Operation) string {
	switch op {
	case gateway.Completions:
		return `{"model":"m","prompt":"p"`
	case gateway.Embeddings:
		return `{"model":"m","input":"i"`
	default:
		return `{"model":"m","messages":[{"role":"user","content":"hi"}]`
	}
}

type shelf map[string]*catalogue.Model

func (s shelf) Lookup(name string) (*catalogue.Model, bool) {
	m, ok := s[name]
	return m, ok
}

func parseBody(t *testing.T, op gateway.Operation, body string) (Request, *Problem) {
	t.Helper()
	req, err := NewParser().Parse(Input{
		Operation: op, Principal: &tenants.Principal{Tenant: "ten_a"}, Body: []byte(body),
		Models: shelf{"m": {Name: "m", TemplateKeys: []string{"enable_thinking"}}},
	})
	if err == nil {
		return req, nil
	}
	problem, ok := errors.AsType[*Problem](err)
	if !ok {
		t.Fatalf("%s: an error that is no fault of the caller's: %v", body, err)
	}
	return Request{}, problem
}

const (
	chat        = gateway.Chat
	completions = gateway.Completions
	embeddings  = gateway.Embeddings
)

// fate is what becomes of one value of a parameter.
type fate struct {
	value   string
	forward string // what the engine gets; "=": name and value as they came; "": nothing
	ignored string // what x-weir-ignored names; empty: nothing
	code    string // of the refusal; empty: none
	param   string // of the refusal; empty: the parameter
}

func passes(values ...string) (out []fate) {
	for _, v := range values {
		out = append(out, fate{value: v, forward: "="})
	}
	return append(out, fate{value: "null"})
}

func dropped(values ...string) (out []fate) {
	for _, v := range append(values, "null") {
		out = append(out, fate{value: v})
	}
	return out
}

func named(name string, values ...string) (out []fate) {
	for _, v := range values {
		out = append(out, fate{value: v, ignored: name})
	}
	return append(out, fate{value: "null"})
}

func fails(code string, values ...string) (out []fate) {
	for _, v := range values {
		out = append(out, fate{value: v, code: code})
	}
	return out
}

func concat(groups ...[]fate) []fate { return slices.Concat(groups...) }

type policyRow struct {
	name string
	ops  []gateway.Operation
	also string // further members that the parameter needs
	want []fate
}

var (
	everywhere = []gateway.Operation{chat, completions, embeddings}
	generation = []gateway.Operation{chat, completions}
	chatOnly   = []gateway.Operation{chat}
	complOnly  = []gateway.Operation{completions}
	embedOnly  = []gateway.Operation{embeddings}
)

const (
	weatherTool = `[{"type":"function","function":{"name":"weather","description":"d","strict":false,"parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]`
	jsonFormat  = `{"type":"json_schema","json_schema":{"name":"answer","strict":true,"schema":{"type":"object"}}}`
)

func policyRows() []policyRow {
	rows := []policyRow{
		{"service_tier", everywhere, "", concat(dropped(`"auto"`, `"default"`, `"flex"`, `"priority"`, `"fast"`, `"ultrafast"`, `"scale"`), fails(codeUnsupported, `"batch"`, `"background"`, `""`), fails(codeType, `1`))},
		{"user", everywhere, "", named("user", `"u"`, `{}`)},
		{"metadata", everywhere, "", named("metadata", `{"a":"b"}`)},
		{"safety_identifier", everywhere, "", named("safety_identifier", `"u"`)},
		{"cache_salt", everywhere, "", named("cache_salt", `"stolen"`, `""`)},
		{"priority", everywhere, "", named("priority", `-100`, `"high"`)},
		{"something_new", everywhere, "", named("something_new", `1`, `{"a":[1]}`, `"x"`)},

		{"stream", generation, "", concat(dropped("true", "false"), fails(codeType, `"true"`, "1"))},
		{"stream_options", generation, `"stream":true`, concat(dropped(`{}`, `{"include_usage":true}`, `{"include_usage":null}`), named("stream_options.continuous_usage_stats", `{"continuous_usage_stats":true}`), fails(codeType, `[]`), []fate{{value: `{"include_usage":1}`, code: codeType, param: "stream_options.include_usage"}})},
		{"stream_options", generation, `"stream":false`, fails(codeValue, `{"include_usage":true}`)},
		{"temperature", generation, "", concat(passes("0", "1.5", "2"), fails(codeDecimalAbove, "2.1", "1e999"), fails(codeDecimalBelow, "-0.1"), fails(codeType, `"1"`))},
		{"top_p", generation, "", concat(passes("0", "0.5", "1"), fails(codeDecimalAbove, "1.01"), fails(codeDecimalBelow, "-1"))},
		{"presence_penalty", generation, "", concat(passes("-2", "2"), fails(codeDecimalAbove, "2.5"), fails(codeDecimalBelow, "-2.5"))},
		{"frequency_penalty", generation, "", concat(passes("-2", "2"), fails(codeDecimalAbove, "2.5"), fails(codeDecimalBelow, "-2.5"))},
		{"n", generation, "", concat(passes("1", "8"), fails(codeIntegerBelow, "0", "-1"), fails(codeIntegerAbove, "9", "99999999999999999999"), fails(codeType, "1.5", `"1"`, "1e1"))},
		{"max_tokens", generation, "", concat(passes("1", "100"), fails(codeIntegerBelow, "0", "-1"), fails(codeType, "1.5"))},
		{"stop", generation, "", concat(passes(`"x"`, `["a","b","c","d"]`, `[]`), fails(codeArrayLong, `["a","b","c","d","e"]`), []fate{{value: `[1]`, code: codeType, param: "stop[0]"}}, fails(codeType, "1"))},
		{"seed", generation, "", concat(passes("-9223372036854775808", "7"), fails(codeType, "1.5"), fails(codeIntegerAbove, "9223372036854775808"))},
		{"logit_bias", generation, "", concat(passes(`{"50256":-100,"1":2.5}`, `{}`), fails(codeType, `[]`), []fate{{value: `{"x":1}`, code: codeValue}, {value: `{"1":101}`, code: codeDecimalAbove, param: "logit_bias.1"}})},
		{"top_k", generation, "", concat(passes("-1", "0", "40"), fails(codeIntegerBelow, "-2"), fails(codeType, `"40"`))},
		{"min_p", generation, "", concat(passes("0", "0.1", "1"), fails(codeDecimalAbove, "2"))},
		{"repetition_penalty", generation, "", concat(passes("0.5", "1.1"), fails(codeDecimalBelow, "0", "-1"), fails(codeDecimalAbove, "11"))},
		{"min_tokens", generation, `"max_tokens":10`, concat(passes("0", "10"), fails(codeIntegerBelow, "-1"), fails(codeValue, "11"))},
		{"stop_token_ids", generation, "", concat(passes(`[1,2]`), []fate{{value: `[-1]`, code: codeIntegerBelow, param: "stop_token_ids[0]"}}, fails(codeArrayLong, "["+strings.Repeat("1,", maxTokenIDs)+"1]"))},
		{"include_stop_str_in_output", generation, "", concat(passes("true"), fails(codeType, "1"))},
		{"skip_special_tokens", generation, "", concat(passes("false"), fails(codeType, "1"))},
		{"spaces_between_special_tokens", generation, "", concat(passes("false"), fails(codeType, "1"))},
		{"response_format", generation, "", concat(passes(`{"type":"text"}`, `{"type":"json_object"}`, jsonFormat))},
		{"guided_json", generation, "", []fate{
			{value: `{"type":"object"}`, forward: `"response_format":{"type":"json_schema","json_schema":{"name":"guided_json","strict":true,"schema":{"type":"object"}}}`},
			{value: `"{\"type\":\"object\"}"`, forward: `"response_format":{"type":"json_schema","json_schema":{"name":"guided_json","strict":true,"schema":{"type":"object"}}}`},
			{value: "null"},
			{value: `{"type":"nonsense"}`, code: codeSchema},
			{value: `"{\"type\":\"nonsense\"}"`, code: codeSchema},
			{value: `"{"`, code: codeSchema},
			{value: `7`, code: codeType},
		}},
		{"guided_json", generation, `"response_format":{"type":"text"}`, fails(codeExclusive, `{"type":"object"}`)},

		{"max_completion_tokens", chatOnly, "", concat(passes("1", "100"), fails(codeIntegerBelow, "0"))},
		{"logprobs", chatOnly, "", concat(passes("true", "false"), fails(codeType, "1"))},
		{"top_logprobs", chatOnly, `"logprobs":true`, concat(passes("0", "20"), fails(codeIntegerAbove, "21"), fails(codeIntegerBelow, "-1"))},
		{"top_logprobs", chatOnly, `"logprobs":false`, fails(codeValue, "0", "5")},
		{"tools", chatOnly, "", concat(passes(weatherTool), dropped("[]"))},
		{"tool_choice", chatOnly, `"tools":` + weatherTool, concat(passes(`"none"`, `"auto"`, `"required"`, `{"type":"function","function":{"name":"weather"}}`), fails(codeUnsupported, `"some"`), fails(codeValue, `{"type":"function","function":{"name":"other"}}`), fails(codeType, "1"),
			[]fate{{value: `{"type":"allowed_tools"}`, code: codeUnsupported, param: "tool_choice.type"}, {value: `{"type":"function"}`, code: codeMissing, param: "tool_choice.function"}, {value: `{"type":"function","function":{}}`, code: codeMissing, param: "tool_choice.function.name"}})},
		{"tool_choice", chatOnly, "", concat(named("tool_choice", `"auto"`, `"none"`), fails(codeValue, `"required"`, `{"type":"function","function":{"name":"weather"}}`))},
		{"parallel_tool_calls", chatOnly, `"tools":` + weatherTool, concat(passes("true", "false"), fails(codeType, `"no"`))},
		{"parallel_tool_calls", chatOnly, "", named("parallel_tool_calls", "true")},
		{"reasoning_effort", chatOnly, "", concat(passes(`"none"`, `"low"`, `"medium"`, `"high"`), []fate{
			{value: `"minimal"`, forward: `"reasoning_effort":"low"`}, {value: `"xhigh"`, forward: `"reasoning_effort":"high"`}, {value: `"max"`, forward: `"reasoning_effort":"high"`},
		}, fails(codeUnsupported, `"extreme"`))},
		{"chat_template_kwargs", chatOnly, "", concat(passes(`{"enable_thinking":false}`), named("chat_template_kwargs.other", `{"other":true}`), []fate{
			{value: `{"other":1, "enable_thinking" : true,"x":"y"}`, forward: `"chat_template_kwargs":{"enable_thinking" : true}`, ignored: "chat_template_kwargs.other chat_template_kwargs.x"},
			{value: `{}`},
			{value: `{"enable_thinking":{"a":1}}`, code: codeType, param: "chat_template_kwargs.enable_thinking"},
		}, fails(codeType, "[]"))},
		{"modalities", chatOnly, "", concat(dropped(`["text"]`), []fate{{value: `["text","audio"]`, code: codeUnsupported, param: "modalities[1]"}})},
		{"prompt_cache_key", chatOnly, "", concat(dropped(`"agent-7"`, `""`), fails(codeType, `{}`), fails(codeStringLong, `"`+strings.Repeat("k", maxName+1)+`"`))},
		{"store", chatOnly, "", concat(dropped("false"), named("store", "true"), fails(codeType, `"no"`))},

		{"logprobs", complOnly, "", concat(passes("0", "5"), fails(codeIntegerAbove, "21"), fails(codeType, "true"))},
		{"echo", complOnly, "", concat(dropped("false"), fails(codeUnsupported, "true"))},
		{"best_of", complOnly, "", concat(dropped("1"), fails(codeUnsupported, "2"))},
		{"suffix", complOnly, "", concat(dropped(`""`), fails(codeUnsupported, `"end"`))},

		{"encoding_format", embedOnly, "", concat(passes(`"float"`, `"base64"`), fails(codeUnsupported, `"hex"`))},
		{"dimensions", embedOnly, "", concat(passes("256"), fails(codeIntegerBelow, "0"))},
	}
	for _, name := range []string{"verbosity", "prediction", "prompt_cache_options", "prompt_cache_retention"} {
		rows = append(rows, policyRow{name, chatOnly, "", named(name, `"x"`, `{}`)})
	}
	for _, name := range []string{"audio", "web_search_options", "moderation", "functions", "function_call"} {
		rows = append(rows, policyRow{name, chatOnly, "", concat(fails(codeParameter, `{}`, `[]`), dropped())})
	}
	for _, name := range []string{
		"request_id", "rid", "extra_key", "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "session_params", "session_id",
		"bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank", "routed_dp_rank", "disagg_prefill_dp_rank",
		"logits_processors", "custom_logit_processor", "custom_params", "lora_path", "mm_processor_kwargs", "media_io_kwargs",
		"images_config", "return_hidden_states", "return_routed_experts", "return_token_ids", "return_tokens_as_token_ids",
		"prompt_logprobs", "use_beam_search", "chat_template", "documents", "add_generation_prompt", "continue_final_message",
		"prompt_embeds", "input_embeds", "input_ids", "truncate_prompt_tokens",
		"structured_outputs", "guided_regex", "guided_grammar", "guided_choice", "structural_tag", "regex", "ebnf", "json_schema",
	} {
		rows = append(rows, policyRow{name, everywhere, "", concat(fails(codeParameter, `"x"`, `{}`, "false"), dropped())})
	}
	return rows
}

func TestEachParameterMeetsItsFate(t *testing.T) {
	t.Parallel()
	for _, row := range policyRows() {
		for _, op := range row.ops {
			for _, want := range row.want {
				t.Run(string(op)+"/"+row.name+"="+want.value[:min(len(want.value), 40)], func(t *testing.T) {
					t.Parallel()
					prefix := base(op)
					if row.also != "" {
						prefix += "," + row.also
					}
					checkFate(t, op, row.name, prefix, want)
				})
			}
		}
	}
}

func checkFate(t *testing.T, op gateway.Operation, name, prefix string, want fate) {
	t.Helper()
	without, problem := parseBody(t, op, prefix+"}")
	if problem != nil {
		t.Fatalf("without the parameter: %v", problem)
	}
	got, problem := parseBody(t, op, prefix+`,"`+name+`":`+want.value+"}")
	if want.code != "" {
		param := want.param
		if param == "" {
			param = name
		}
		if problem == nil || problem.Code != want.code || problem.Param != param {
			t.Fatalf("want %s at %s, got %+v", want.code, param, problem)
		}
		if !strings.Contains(problem.Message, "'"+param+"'") {
			t.Errorf("the message does not name %s: %s", param, problem.Message)
		}
		return
	}
	if problem != nil {
		t.Fatal(problem)
	}
	forward := want.forward
	if forward == "=" {
		forward = `"` + name + `":` + want.value
	}
	fields := string(without.Call.Fields)
	if forward != "" {
		fields += "," + forward
	}
	if diff := cmp.Diff(fields, string(got.Call.Fields)); diff != "" && (name != "guided_json" || !strings.HasSuffix(string(got.Call.Fields), forward)) {
		t.Errorf("fields: (-want +got)\n%s", diff)
	}
	added := slices.DeleteFunc(slices.Clone(got.Ignored), func(n string) bool { return slices.Contains(without.Ignored, n) })
	if diff := cmp.Diff(strings.Fields(want.ignored), added, cmp.Comparer(func(a, b []string) bool { return slices.Equal(a, b) })); diff != "" {
		t.Errorf("ignored: (-want +got)\n%s", diff)
	}
}

// A row without a test would be a promise that nobody keeps.
func TestEveryRowOfThePolicyHasATest(t *testing.T) {
	t.Parallel()
	elsewhere := []string{"model", "messages", "prompt", "input"} // tables of their own
	for op, table := range policies() {
		tested := map[string]bool{}
		for _, row := range policyRows() {
			tested[row.name] = tested[row.name] || slices.Contains(row.ops, op)
		}
		for name := range maps.Keys(table) {
			if !tested[name] && !slices.Contains(elsewhere, name) {
				t.Errorf("%s: the rule for %q has no test", op, name)
			}
		}
	}
}

func TestTheBodySetsTheCall(t *testing.T) {
	t.Parallel()
	type facts struct {
		Model            string
		Stream, Usage    bool
		Tier             tenants.Tier
		MaxTokens, Count int
		Fields           string
	}
	hi := `"messages":[{"role":"user","content":"hi"}]`
	tests := []struct {
		name string
		op   gateway.Operation
		body string
		want facts
	}{
		{"the least", chat, `{"model":"m",` + hi + `}`, facts{Model: "m", Count: 1, Fields: hi}},
		{"members around the kept ones go without a trace", chat, ` { "user" : 1 , ` + hi + ` , "model" : "m" } `, facts{Model: "m", Count: 1, Fields: hi}},
		{"kept members are joined over dropped ones", chat, `{"top_k":1,"model":"m",` + hi + `,"x":2,"n":2}`, facts{Model: "m", Count: 2, Fields: `"top_k":1,` + hi + `,"n":2`}},
		{"a stream with usage", chat, `{"model":"m",` + hi + `,"stream":true,"stream_options":{"include_usage":true}}`, facts{Model: "m", Stream: true, Usage: true, Count: 1, Fields: hi}},
		{"the newer bound wins, whatever the order", chat, `{"model":"m","max_completion_tokens":5,` + hi + `,"max_tokens":9}`, facts{Model: "m", MaxTokens: 5, Count: 1, Fields: `"max_completion_tokens":5,` + hi}},
		{"the newer bound wins, the other order", chat, `{"model":"m","max_tokens":9,` + hi + `,"max_completion_tokens":5}`, facts{Model: "m", MaxTokens: 5, Count: 1, Fields: hi + `,"max_completion_tokens":5`}},
		{"a newer bound of null is none", chat, `{"model":"m","max_tokens":9,` + hi + `,"max_completion_tokens":null}`, facts{Model: "m", MaxTokens: 9, Count: 1, Fields: `"max_tokens":9,` + hi}},
		{"auto is the default tier", chat, `{"model":"m",` + hi + `,"service_tier":"auto"}`, facts{Model: "m", Tier: tenants.TierDefault, Count: 1, Fields: hi}},
		{"flex", chat, `{"model":"m",` + hi + `,"service_tier":"flex"}`, facts{Model: "m", Tier: tenants.TierFlex, Count: 1, Fields: hi}},
		{"fast is priority", chat, `{"model":"m",` + hi + `,"service_tier":"fast"}`, facts{Model: "m", Tier: tenants.TierPriority, Count: 1, Fields: hi}},
		{"an escaped name is the same name", chat, `{"m\u006fdel":"a\/b",` + hi + `,"c\u0061che_salt":"x"}`, facts{Model: "a/b", Count: 1, Fields: hi}},
		{"each prompt is answered n times", completions, `{"model":"m","prompt":["a","b","c"],"n":2,"max_tokens":4}`, facts{Model: "m", MaxTokens: 4, Count: 6, Fields: `"prompt":["a","b","c"],"n":2,"max_tokens":4`}},
		{"token ids are one prompt", completions, `{"model":"m","prompt":[1,2,3]}`, facts{Model: "m", Count: 1, Fields: `"prompt":[1,2,3]`}},
		{"embeddings", embeddings, `{"model":"m","input":["a","b"],"encoding_format":"base64"}`, facts{Model: "m", Count: 1, Fields: `"input":["a","b"],"encoding_format":"base64"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			req, problem := parseBody(t, tt.op, tt.body)
			if problem != nil {
				t.Fatal(problem)
			}
			c := req.Call
			got := facts{c.Model, c.Stream, c.IncludeUsage, c.Tier, c.MaxTokens, c.Choices, string(c.Fields)}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestThePromptIsFoundInTheFields(t *testing.T) {
	t.Parallel()
	const said, tools = `[{"role":"user","content":"hi"}]`, weatherTool
	tests := []struct {
		name string
		op   gateway.Operation
		body string
		want [2]string
	}{
		{"messages alone", chat, `{"model":"m","messages":` + said + `}`, [2]string{"", said}},
		{"tools stand before messages, whatever the order", chat, `{"messages":` + said + `,"top_k":1,"tools":` + tools + `,"model":"m"}`, [2]string{tools, said}},
		{"space around a value is no part of it", chat, `{ "model":"m", "messages" : ` + said + ` , "tools" : ` + tools + ` }`, [2]string{tools, said}},
		{"dropped members between them don't count", chat, `{"tools":` + tools + `,"user":"u","model":"m","x":[1],"messages":` + said + `,"n":1}`, [2]string{tools, said}},
		{
			"it is what the engine gets, not what was sent", chat,
			`{"user":"u","top_k":1,"messages":[{"role":"developer","content":"a","id":"x"},{"id":"y","role":"user","content":"b"}],"model":"m","seed":1}`,
			[2]string{"", `[{"role":"system","content":"a"},{"role":"user","content":"b"}]`},
		},
		{"no tools are no prompt", chat, `{"tools":[],"model":"m","messages":` + said + `}`, [2]string{"", said}},
		{"null tools neither", chat, `{"tools":null,"model":"m","messages":` + said + `}`, [2]string{"", said}},
		{"a completion's prompt", completions, `{"model":"m","prompt":["a","b"],"n":2}`, [2]string{"", `["a","b"]`}},
		{"what is embedded", embeddings, `{"input":"text","model":"m"}`, [2]string{"", `"text"`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			req, problem := parseBody(t, tt.op, tt.body)
			if problem != nil {
				t.Fatal(problem)
			}
			got := [2]string{string(req.Call.Prompt[0]), string(req.Call.Prompt[1])}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			for _, part := range got {
				if !strings.Contains(string(req.Call.Fields), part) {
					t.Errorf("%s is not in the fields %s", part, req.Call.Fields)
				}
			}
		})
	}
}

func TestTheCacheKeyIsAHint(t *testing.T) {
	t.Parallel()
	req, problem := parseBody(t, chat, base(chat)+`,"prompt_cache_key":"a\u0067ent 7"}`)
	if problem != nil {
		t.Fatal(problem)
	}
	if req.Call.Affinity != "agent 7" || strings.Contains(string(req.Call.Fields), "prompt_cache_key") || req.Call.Session != "" {
		t.Errorf("affinity %q, session %q, fields %s", req.Call.Affinity, req.Call.Session, req.Call.Fields)
	}
}

func TestQueueTTL(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]time.Duration{
		"": 0, "5": 5 * time.Second, "2.5": 2500 * time.Millisecond, "500ms": 500 * time.Millisecond,
		"1m30s": 90 * time.Second, "86400": 24 * time.Hour, "0.001": time.Millisecond,
	} {
		if got, err := QueueTTL(header); err != nil || got != want {
			t.Errorf("%q: %v, %v, want %v", header, got, err, want)
		}
	}
	for _, header := range []string{
		"0", "0s", "-1", "-5ms", "86401", "25h", "soon", "5 s", "5x", "1e3", "NaN", "inf", "s", "1,5", "99999999999999999999", "0x10",
	} {
		got, err := QueueTTL(header)
		problem, ok := errors.AsType[*Problem](err)
		if !ok || got != 0 || problem.Param != "x-weir-queue-ttl" || !strings.Contains(problem.Message, "500ms") {
			t.Errorf("%q: %v, %v", header, got, err)
		}
	}
}

func TestBadBodiesGetAClearRefusal(t *testing.T) {
	t.Parallel()
	hi := `"messages":[{"role":"user","content":"hi"}]`
	tests := []struct {
		name, body, code, param string
	}{
		{"empty", ``, "", ""},
		{"white space", " \n ", "", ""},
		{"not JSON", `hello`, "", ""},
		{"half of an object", `{"model":"m"`, "", ""},
		{"an array", `[]`, codeType, ""},
		{"a string", `"x"`, codeType, ""},
		{"null", `null`, codeType, ""},
		{"text behind the object", `{"model":"m",` + hi + `} x`, "", ""},
		{"no model", `{` + hi + `}`, codeMissing, "model"},
		{"a null model", `{"model":null,` + hi + `}`, codeMissing, "model"},
		{"a number as model", `{"model":7,` + hi + `}`, codeType, "model"},
		{"an empty model", `{"model":"",` + hi + `}`, codeValue, "model"},
		{"a huge model", `{"model":"` + strings.Repeat("m", 300) + `",` + hi + `}`, codeStringLong, "model"},
		{"no messages", `{"model":"m"}`, codeMissing, "messages"},
		{"a number as messages", `{"model":"m","messages":7}`, codeType, "messages"},
		{"null messages", `{"model":"m","messages":null}`, codeType, "messages"},
		{"no message at all", `{"model":"m","messages":[]}`, codeArrayShort, "messages"},
		{"5,000 messages", `{"model":"m","messages":[` + strings.Repeat(`{"role":"user","content":"x"},`, 4999) + `{"role":"user","content":"x"}]}`, codeArrayLong, "messages"},
		{"a member twice", `{"model":"m","model":"n",` + hi + `}`, codeValue, "model"},
		{"a member twice, once escaped", `{"model":"m","mod\u0065l":"n",` + hi + `}`, codeValue, `mod\u0065l`},
		{"a dropped member twice", `{"model":"m","x":1,"x":2,` + hi + `}`, codeValue, "x"},
		{"too many members", `{"model":"m",` + hi + manyMembers(200) + `}`, codeValue, ""},
		{"a NUL", `{"model":"m","messages":[{"role":"user","content":"a\u0000"}]}`, codeValue, "messages[0].content"},
		{"a lone surrogate", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"\ud800"}]}]}`, codeValue, "messages[0].content[0].text"},
		{"broken UTF-8", "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", codeValue, "messages[0].content"},
		{"a NUL in a member that is dropped", `{"model":"m",` + hi + `,"metadata":{"a":"\u0000"}}`, codeValue, "metadata.a"},
		{"endless nesting", `{"model":"m",` + hi + `,"x":` + strings.Repeat("[", 1000), codeValue, "x" + strings.Repeat("[0]", 63)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, problem := parseBody(t, chat, tt.body)
			if problem == nil {
				t.Fatal("accepted")
			}
			if problem.Code != tt.code || problem.Param != tt.param || problem.Message == "" {
				t.Errorf("want %q at %q, got %q at %q: %s", tt.code, tt.param, problem.Code, problem.Param, problem.Message)
			}
		})
	}
}

func manyMembers(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`,"x` + strconv.Itoa(i) + `":1`)
	}
	return b.String()
}

func TestInputForms(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, value, code, param string }{
		{"a string", `"text"`, "", ""},
		{"strings", `["a","b"]`, "", ""},
		{"token ids", `[1,2,3]`, "", ""},
		{"lists of token ids", `[[1,2],[3]]`, "", ""},
		{"an empty string", `""`, codeValue, "~"},
		{"an empty array", `[]`, codeArrayShort, "~"},
		{"an empty string inside", `["a",""]`, codeValue, "~[1]"},
		{"an empty list inside", `[[1],[]]`, codeArrayShort, "~[1]"},
		{"a mixture", `["a",1]`, codeType, "~[1]"},
		{"a mixture, the other way", `[1,"a"]`, codeType, "~[1]"},
		{"a negative id", `[-1]`, codeIntegerBelow, "~[0]"},
		{"a fraction", `[[1.5]]`, codeType, "~[0][0]"},
		{"a string among ids", `[[1,"a"]]`, codeType, "~[0][1]"},
		{"an object", `{}`, codeType, "~"},
		{"objects", `[{}]`, codeType, "~[0]"},
		{"nulls", `[null]`, codeType, "~[0]"},
		{"null", `null`, codeType, "~"},
		{"a number", `7`, codeType, "~"},
		{"too many", `["a"` + strings.Repeat(`,"a"`, maxInputs) + `]`, codeArrayLong, "~"},
		{"many token ids", `[1` + strings.Repeat(`,1`, 5000) + `]`, "", ""},
	}
	for _, tt := range tests {
		for op, name := range map[gateway.Operation]string{completions: "prompt", embeddings: "input"} {
			t.Run(string(op)+"/"+tt.name, func(t *testing.T) {
				t.Parallel()
				req, problem := parseBody(t, op, `{"model":"m","`+name+`":`+tt.value+`}`)
				if tt.code == "" {
					if problem != nil {
						t.Fatal(problem)
					}
					if want := `"` + name + `":` + tt.value; string(req.Call.Fields) != want {
						t.Errorf("want %s, got %s", want, req.Call.Fields)
					}
					return
				}
				if param := strings.ReplaceAll(tt.param, "~", name); problem == nil || problem.Code != tt.code || problem.Param != param {
					t.Errorf("want %s at %s, got %+v", tt.code, param, problem)
				}
			})
		}
	}
}

var tenantsPrincipal = tenants.Principal{Tenant: "ten_a"}

// Whoever leaves while others compile gives up its place.
func TestACallerThatLeavesWaitsForNoCompiler(t *testing.T) {
	t.Parallel()
	for name, member := range map[string]string{
		"response_format": `"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"object"}}}`,
		"guided_json":     `"guided_json":"{\"type\":\"object\"}"`,
		"a tool":          `"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parser := NewParser()
			for range cap(parser.schemas.compiling) {
				parser.schemas.compiling <- struct{}{}
			}
			left := make(chan struct{})
			close(left)
			_, err := parser.Parse(Input{
				Operation: gateway.Chat, Done: left,
				Body: []byte(`{"model":"m","messages":[{"role":"user","content":"x"}],` + member + `}`),
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAnEffortIsOneOfTheModelsOwn(t *testing.T) {
	t.Parallel()
	models := shelf{"m": {Name: "m", Efforts: []string{"low", "max"}}}
	for _, body := range []string{ // the model may be named before and after
		`{"model":"m","messages":[{"role":"user","content":"hi"}],"reasoning_effort":"high"}`,
		`{"reasoning_effort":"high","messages":[{"role":"user","content":"hi"}],"model":"m"}`,
	} {
		req, err := NewParser().Parse(Input{Operation: chat, Principal: &tenants.Principal{}, Body: []byte(body), Models: models})
		if err != nil || !strings.Contains(string(req.Call.Fields), `"reasoning_effort":"max"`) {
			t.Errorf("%s: %v, forwarded %s", body, err, req.Call.Fields)
		}
	}
}

func TestADeveloperStaysOneWhereTheModelKnowsThem(t *testing.T) {
	t.Parallel()
	body := `{"messages":[{"role":"developer","content":"be brief"},{"role":"user","content":"hi","uuid":"x"}],"model":"m"}`
	for role, m := range map[string]*catalogue.Model{"system": {Name: "m"}, "developer": {Name: "m", Template: catalogue.Template{DeveloperRole: true}}} {
		req, err := NewParser().Parse(Input{Operation: chat, Principal: &tenants.Principal{}, Body: []byte(body), Models: shelf{"m": m}})
		want := `"messages":[{"role":"` + role + `","content":"be brief"},{"role":"user","content":"hi"}]`
		if err != nil || string(req.Call.Fields) != want {
			t.Errorf("%v, forwarded %s, want %s", err, req.Call.Fields, want)
		}
	}
}

func TestAnAnswerIsKeptWhereThePlanKeepsAny(t *testing.T) {
	t.Parallel()
	body := `{"metadata":{"a":"b"},"store":true,"model":"m","messages":[{"role":"user","content":"hi"}]}`
	for days, ignored := range map[int]string{0: "store metadata", 30: ""} {
		req, err := NewParser().Parse(Input{Operation: chat, Principal: &tenants.Principal{Plan: &tenants.Plan{RetentionDays: days}}, Body: []byte(body)})
		if err != nil || req.Store != (days > 0) || strings.Join(req.Ignored, " ") != ignored || strings.Contains(string(req.Call.Fields), "store") {
			t.Errorf("%d days: %v %+v", days, err, req)
		}
		if days > 0 && string(req.Metadata) != `{"a":"b"}` {
			t.Errorf("metadata %s", req.Metadata)
		}
	}
}
