package responses

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// playNative runs an engine's own events through a stream, and what clients
// would trip over through the oracle.
func playNative(tb testing.TB, s *stream, events ...string) gjson.Result {
	tb.Helper()
	s.begin(InProgress)
	for _, e := range events {
		if err := s.native([]byte(e)); err != nil {
			tb.Fatal(err)
		}
	}
	s.complete()
	if err := (&oracle{}).read(s.out); err != nil {
		tb.Fatalf("%v\n%s", err, s.out)
	}
	checkSchemas(tb, s.out)
	return object(tb, s)
}

// ev is an event of an engine's; its numbers are nobody's.
func ev(kind, members string) string {
	return `{"type":"response.` + kind + `","sequence_number":7,` + members + `}`
}

func at(index int, id string) string { return fmt.Sprintf(`"output_index":%d,"item_id":%q`, index, id) }

func added(index int, item string) string {
	return ev("output_item.added", fmt.Sprintf(`"output_index":%d,"item":%s`, index, item))
}

func itemDone(index int, item string) string {
	return ev("output_item.done", fmt.Sprintf(`"output_index":%d,"item":%s`, index, item))
}

func textDelta(index int, id, text string) string {
	return ev("output_text.delta", at(index, id)+`,"content_index":0,"logprobs":[],"delta":"`+text+`"`)
}

func textDone(index int, id, text string) string {
	return ev("output_text.done", at(index, id)+`,"content_index":0,"text":"`+text+`"`)
}

func reasoningDelta(index int, id, text string) string {
	return ev("reasoning_text.delta", at(index, id)+`,"content_index":0,"delta":"`+text+`"`)
}

func argumentsDelta(index int, id, text string) string {
	return ev("function_call_arguments.delta", at(index, id)+`,"delta":`+quote(text))
}

func argumentsDone(index int, id, text string) string {
	return ev("function_call_arguments.done", at(index, id)+`,"arguments":`+quote(text))
}

func messageItem(id, text string) string {
	return `{"id":"` + id + `","type":"message","role":"assistant","status":"completed","content":[{"type":"output_text","text":"` + text + `","annotations":[]}]}`
}

func reasoningItem(id, text string) string {
	return `{"id":"` + id + `","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"` + text + `"}],"encrypted_content":"theirs"}`
}

func callItem(id, callID, name, arguments string) string {
	return `{"id":"` + id + `","type":"function_call","call_id":"` + callID + `","name":"` + name + `","arguments":` + quote(arguments) + `,"status":"completed"}`
}

func ended(status string, output ...string) string {
	return ev(status, `"response":{"id":"resp_theirs","status":"`+status+`","model":"org/engine","output":[`+strings.Join(output, ",")+
		`],"usage":{"input_tokens":10,"input_tokens_details":{"cached_tokens":4},"output_tokens":7,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":17}}`)
}

func TestAnEnginesOwnStreamBecomesOurs(t *testing.T) {
	t.Parallel()
	s := newStream(t, `{"model":"m","input":"hi","tools":[{"type":"namespace","name":"ns","tools":[{"type":"function","name":"f"}]}]}`)
	s.seal = func(text string) string { return "sealed " + text }
	r := playNative(t, s,
		added(0, `{"id":"rs_0","type":"reasoning","summary":[]}`), reasoningDelta(0, "rs_0", "t1"), reasoningDelta(0, "rs_0", "t2"), itemDone(0, reasoningItem("rs_0", "t1t2")),
		added(1, `{"id":"msg_0","type":"message","role":"assistant","content":[]}`), textDelta(1, "msg_0", "Hi"), textDone(1, "msg_0", "Hi"), itemDone(1, messageItem("msg_0", "Hi")),
		added(2, `{"id":"fc_0","type":"function_call","call_id":"call_1","name":"ns__f","arguments":""}`), argumentsDelta(2, "fc_0", "{}"),
		argumentsDone(2, "fc_0", "{}"), itemDone(2, callItem("fc_0", "call_1", "ns__f", "{}")),
		ended("completed", reasoningItem("rs_0", "t1t2"), messageItem("msg_0", "Hi"), callItem("fc_0", "call_1", "ns__f", "{}")))
	for path, want := range map[string]string{
		"status": "completed", "output.#": "3", "output.0.content.0.text": "t1t2", "output.0.encrypted_content": "sealed t1t2",
		"output.1.content.0.text": "Hi", "output.2.arguments": "{}", "output.2.call_id": "call_1", "output.2.name": "f", "output.2.namespace": "ns",
		"usage.input_tokens": "10", "usage.total_tokens": "17", "usage.input_tokens_details.cached_tokens": "4",
		"usage.output_tokens_details.reasoning_tokens": "2", "model": "m", "completed_at": "1700000001",
	} {
		if got := r.Get(path).String(); got != want {
			t.Errorf("%s = %q, want %q", path, got, want)
		}
	}
	for _, theirs := range []string{"rs_0", "msg_0", "fc_0", "resp_theirs", "org/engine", `"theirs"`} {
		if strings.Contains(string(s.out), theirs) {
			t.Errorf("the engine's %s is shown", theirs)
		}
	}
}

// What engines leave out, repeat and mix up. Wanted are the output's types,
// texts and payloads.
func TestOddEventsOfEnginesStillTellTheAnswer(t *testing.T) {
	t.Parallel()
	const f = `{"model":"m","input":"hi","tools":[{"type":"function","name":"f"},{"type":"custom","name":"c"}]}`
	for _, tt := range []struct {
		name   string
		events []string
		want   string
	}{
		{"an end without output after items that were streamed", []string{
			added(0, messageItem("a", "")), textDelta(0, "a", "Hi"), itemDone(0, messageItem("a", "Hi")),
			added(1, callItem("b", "call_1", "f", "")), argumentsDelta(1, "b", "{}"), itemDone(1, callItem("b", "call_1", "f", "{}")), ended("completed"),
		}, `message Hi, function_call {}`},
		{"nothing but the end", []string{ended("completed", reasoningItem("r", "think"), messageItem("a", "Hi"), callItem("b", "call_1", "f", "{}"))}, `reasoning think, message Hi, function_call {}`},
		{"deltas alone", []string{reasoningDelta(0, "r", "think"), textDelta(1, "a", "H"), textDelta(1, "a", "i"), ended("completed")}, `reasoning think, message Hi`},
		{"no event that ends an item", []string{added(0, messageItem("a", "")), textDelta(0, "a", "Hi"), added(1, callItem("b", "call_1", "f", "")), argumentsDelta(1, "b", "{}"), ended("completed")}, `message Hi, function_call {}`},
		{"whole texts alone", []string{added(0, messageItem("a", "")), textDone(0, "a", "Hi"), added(1, callItem("b", "call_1", "f", "")), argumentsDone(1, "b", "{}"), ended("completed")}, `message Hi, function_call {}`},
		{"whole items alone", []string{itemDone(0, messageItem("a", "Hi")), itemDone(1, callItem("b", "call_1", "f", "{}")), ended("completed")}, `message Hi, function_call {}`},
		{"ids that change", []string{
			added(0, messageItem("a", "")), textDelta(0, "x", "H"), textDelta(0, "y", "i"), itemDone(0, messageItem("z", "Hi")),
			added(1, callItem("b", "call_1", "f", "")), argumentsDelta(1, "q", "{}"), ended("completed", messageItem("m1", "Hi"), callItem("m2", "call_9", "f", "{}")),
		}, `message Hi, function_call {}`},
		{"one id for all", []string{
			added(0, messageItem("a", "")), textDelta(0, "a", "Hi"), added(1, callItem("a", "call_1", "f", "")), argumentsDelta(1, "a", "{}"),
			added(2, callItem("a", "call_1", "f", "")), argumentsDelta(2, "a", "[]"), ended("completed"),
		}, `message Hi, function_call {}, function_call []`},
		{"one index for all", []string{
			added(0, reasoningItem("r", "")), reasoningDelta(0, "r", "think"), added(0, messageItem("a", "")), textDelta(0, "a", "Hi"),
			added(0, callItem("b", "call_1", "f", "")), argumentsDelta(0, "b", "{}"), ended("completed", reasoningItem("r", "think"), messageItem("a", "Hi"), callItem("b", "call_1", "f", "{}")),
		}, `reasoning think, message Hi, function_call {}`},
		{"no index at all", []string{
			`{"type":"response.output_text.delta","item_id":"a","delta":"H"}`, `{"type":"response.output_text.delta","item_id":"a","delta":"i"}`, ended("completed", messageItem("z", "Hi")),
		}, `message Hi`},
		{"the end in another order", []string{
			itemDone(0, callItem("b", "call_1", "f", "{}")), itemDone(1, callItem("c", "call_2", "f", "[]")), ended("completed", callItem("c", "call_2", "f", "[]"), callItem("b", "call_1", "f", "{}")),
		}, `function_call {}, function_call []`},
		{"an end with an item more", []string{itemDone(0, callItem("b", "call_1", "f", "{}")), ended("completed", callItem("z", "call_2", "f", "[]"), callItem("b", "call_1", "f", "{}"))}, `function_call {}, function_call []`},
		{"arguments before their call", []string{argumentsDelta(0, "b", "{"), added(0, callItem("b", "call_1", "f", "")), argumentsDelta(0, "b", "}"), ended("completed")}, `function_call {}`},
		{"arguments of no call", []string{argumentsDelta(0, "b", "{}"), textDelta(1, "a", "Hi"), ended("completed")}, `message Hi`},
		{"calls that run beside one another", []string{
			added(0, callItem("b", "call_1", "f", "")), added(1, callItem("c", "call_2", "f", "")), argumentsDelta(0, "b", "{"), argumentsDelta(1, "c", "["),
			argumentsDelta(0, "b", "}"), argumentsDelta(1, "c", "]"), ended("completed"),
		}, `function_call {}, function_call []`},
		{"a custom tool is a function", []string{added(0, callItem("b", "call_1", "c", "")), argumentsDelta(0, "b", `{"input":"a`), argumentsDelta(0, "b", `b"}`), ended("completed")}, `custom_tool_call ab`},
		{"two messages", []string{textDelta(0, "a", "One."), itemDone(0, messageItem("a", "One.")), textDelta(1, "b", "Two."), ended("completed", messageItem("a", "One."), messageItem("b", "Two."))}, `message One., message Two.`},
		{"two messages whose end doesn't come", []string{textDelta(0, "a", "One."), textDelta(1, "b", "Two."), ended("completed")}, `message One., message Two.`},
		{"two parts", []string{
			added(0, messageItem("a", "")), ev("content_part.added", at(0, "a")+`,"content_index":0,"part":{"type":"output_text","text":""}`), textDelta(0, "a", "One."), textDone(0, "a", "One."),
			ev("content_part.added", at(0, "a")+`,"content_index":1,"part":{"type":"output_text","text":""}`), textDelta(0, "a", "Two."), textDone(0, "a", "Two."), ended("completed"),
		}, `message One.|Two.`},
		{"indexes of parts that grow", []string{
			ev("content_part.added", at(0, "a")+`,"content_index":3,"part":{"type":"output_text","text":""}`), ev("output_text.delta", at(0, "a")+`,"content_index":4,"delta":"H"`),
			ev("output_text.delta", at(0, "a")+`,"content_index":5,"delta":"i"`), textDone(0, "a", "Hi"), ended("completed"),
		}, `message Hi`},
		{"events of parts that nobody knows", []string{
			ev("reasoning_part.added", at(0, "r")+`,"content_index":0,"part":{"type":"reasoning_text","text":""}`), reasoningDelta(0, "r", "think"),
			ev("reasoning_part.done", at(0, "r")+`,"content_index":0,"part":{"type":"reasoning_text","text":"think"}`), textDelta(1, "a", "Hi"), ended("completed"),
		}, `reasoning think, message Hi`},
		{"reasoning under its other name", []string{ev("reasoning.delta", at(0, "r")+`,"delta":"think"`), ended("completed")}, `reasoning think`},
		{"a summary in place of reasoning", []string{itemDone(0, `{"id":"r","type":"reasoning","summary":[{"type":"summary_text","text":"in short"}]}`), ended("completed")}, `reasoning in short`},
		{"a refusal", []string{ev("refusal.delta", at(0, "a")+`,"content_index":0,"delta":"no"`), ev("refusal.done", at(0, "a")+`,"content_index":0,"refusal":"no, never"`), ended("completed")}, `message no, never`},
		{"a lost delta", []string{textDelta(0, "a", "Hi"), itemDone(0, messageItem("a", "Hi there")), ended("completed")}, `message Hi there`},
		{"another text than the deltas'", []string{textDelta(0, "a", "Hi"), itemDone(0, messageItem("a", "Bye")), ended("completed")}, `message Hi`},
		{"other escapes than the deltas'", []string{textDelta(0, "a", `\ud83c\udf0d`), itemDone(0, messageItem("a", "🌍!")), ended("completed")}, `message 🌍!`},
		{"white space before a call", []string{textDelta(0, "a", `\n\n`), itemDone(0, messageItem("a", `\n\n`)), itemDone(1, callItem("b", "call_1", "f", "{}")), ended("completed", messageItem("a", `\n\n`), callItem("b", "call_1", "f", "{}"))}, `function_call {}`},
		{"what comes after the end", []string{textDelta(0, "a", "Hi"), ended("completed"), textDelta(0, "a", " there")}, `message Hi`},
		{"tools of the engine's own", []string{added(0, `{"id":"w","type":"web_search_call","status":"in_progress"}`), ev("web_search_call.searching", at(0, "w")), textDelta(1, "a", "Hi"), ended("completed")}, `message Hi`},
		{"nothing", []string{ended("completed")}, `message `},
		{"members of no use", []string{`{"type":"response.output_text.delta","output_index":"x","item_id":5,"delta":{}}`, `{}`, `{"type":7}`, `{"type":"response.output_item.added"}`, textDelta(0, "a", "Hi"), ended("completed", `null`, `{"type":"message"}`)}, `message Hi`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := playNative(t, newStream(t, f), tt.events...)
			if got := told(r); got != tt.want {
				t.Errorf("the answer is %q, want %q", got, tt.want)
			}
		})
	}
}

// told is what an output says.
func told(r gjson.Result) string {
	var items []string
	for _, it := range r.Get("output").Array() {
		said := it.Get("arguments").String() + it.Get("input").String()
		var parts []string
		for _, p := range it.Get("content").Array() {
			parts = append(parts, p.Get("text").String()+p.Get("refusal").String())
		}
		items = append(items, it.Get("type").Str+" "+said+strings.Join(parts, "|"))
	}
	return strings.Join(items, ", ")
}

func TestAnEngineThatCutAnAnswerOffLeavesItIncomplete(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ end, reason string }{
		"by the event":                      {ev("incomplete", `"response":{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"},"output":[]}`), "max_output_tokens"},
		"by the status of a completed one":  {ev("completed", `"response":{"status":"incomplete","output":[]}`), "max_output_tokens"},
		"by a filter":                       {ev("incomplete", `"response":{"incomplete_details":{"reason":"content_filter"}}`), "content_filter"},
		"by a reason that we don't know":    {ev("incomplete", `"response":{"incomplete_details":{"reason":"steered"}}`), "max_output_tokens"},
		"by an item that is incomplete too": {ev("incomplete", `"response":{"output":[{"id":"a","type":"message","status":"incomplete","content":[{"type":"output_text","text":"Hi"}]}]}`), "max_output_tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := playNative(t, newStream(t, plainRequest), textDelta(0, "a", "Hi"), tt.end)
			if r.Get("status").Str != Incomplete || r.Get("incomplete_details.reason").Str != tt.reason || r.Get("output.0.status").Str != Incomplete || r.Get("usage").Type != gjson.Null {
				t.Errorf("object %s", r.Raw)
			}
		})
	}
}

func TestOneCallOfAnEnginesOwnStreamWhereTheCallerWantsNoMore(t *testing.T) {
	t.Parallel()
	r := playNative(t, newStream(t, `{"model":"m","input":"hi","parallel_tool_calls":false}`),
		itemDone(0, callItem("b", "call_1", "f", "{}")), added(1, callItem("c", "call_2", "f", "")), argumentsDelta(1, "c", "[]"),
		ended("completed", callItem("b", "call_1", "f", "{}"), callItem("c", "call_2", "f", "[]")))
	if got := told(r); got != "function_call {}" {
		t.Errorf("the answer is %q", got)
	}
}

// Any sequence of an engine's own events gives a stream that the strictest
// client accepts, with exactly one end.
func FuzzNativeStream(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, false)
	f.Add([]byte{0x10, 0x32, 0x03, 0x13, 0x06, 0x16, 0x07, 0x17, 0x0e}, false)
	f.Add([]byte{4, 5, 4, 2, 6, 2, 9}, true)
	f.Fuzz(func(t *testing.T, script []byte, broken bool) {
		s := newStream(t, `{"model":"m","input":"hi","tools":[{"type":"function","name":"f"},{"type":"custom","name":"c"}]}`)
		s.seal = func(string) string { return "sealed" }
		s.begin(InProgress)
		for i, op := range script {
			if op%16 == 15 {
				s.keepalive()
				continue
			}
			if err := s.native([]byte(scripted(i, op))); err != nil {
				t.Fatal(err)
			}
		}
		if broken {
			s.fail(Failure{Kind: "server_error", Code: "server_error", Message: "x"})
			s.terminal()
		}
		s.complete()
		if err := (&oracle{}).read(s.out); err != nil {
			t.Fatalf("%v\n%s", err, s.out)
		}
		if !json.Valid(s.object()) {
			t.Fatalf("not JSON: %s", s.object())
		}
	})
}

// scripted is the event that a byte stands for: its kind, and whose it is.
func scripted(i int, op byte) string {
	who := int(op>>4) % 4
	id := fmt.Sprintf("x%d", op>>6) // two items share one, and an item may have two
	switch op % 16 {
	case 0:
		return added(who, reasoningItem(id, ""))
	case 1:
		return added(who, messageItem(id, ""))
	case 2:
		return added(who, callItem(id, fmt.Sprintf("call_%d", i%3), []string{"f", "c", "", "g"}[i%4], ""))
	case 3:
		return reasoningDelta(who, id, `r\n`)
	case 4:
		return textDelta(who, id, `text \ud83c\udf0d`)
	case 5:
		return textDelta(who, id, `\n `)
	case 6:
		return argumentsDelta(who, id, `{"input":"x`)
	case 7:
		return argumentsDone(who, id, `{"input":"x\u00e9"}`)
	case 8:
		return textDone(who, id, `text 🌍 and more`)
	case 9:
		return itemDone(who, callItem(id, "call_1", "f", `{"input":"xy"}`))
	case 10:
		return itemDone(who, messageItem(id, "whole"))
	case 11:
		return ev("content_part.added", at(who, id)+`,"content_index":9`)
	case 12:
		return ev("refusal.delta", at(who, id)+`,"delta":"no"`)
	case 13:
		return ev("reasoning_part.done", `"part":{"type":"reasoning_text","text":"?"}`)
	default:
		if i%3 == 0 {
			return ended("incomplete", callItem(id, "call_2", "c", "{}"), messageItem(id, "more"), reasoningItem("z", "late"))
		}
		return ended("completed", messageItem(id, "more"), `{"type":"unknown","id":"u"}`, callItem("y", "call_0", "f", "[]"))
	}
}
