package responses

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"
)

// newStream makes the stream of a request's answer.
func newStream(tb testing.TB, request string) *stream {
	tb.Helper()
	c, err := ParseCreate([]byte(request))
	if err != nil {
		tb.Fatal(err)
	}
	now := func() time.Time { return time.Unix(1700000001, 0) }
	return &stream{
		shape: newShape(NewID(), time.Unix(1700000000, 0), c, c.Model, Chain{}),
		now:   now, tools: c.tools, serial: c.serial, state: state{tier: "default"},
	}
}

// play runs chunks through a stream, and what clients would trip over through
// the oracle.
func play(tb testing.TB, s *stream, chunks ...string) {
	tb.Helper()
	s.begin(InProgress)
	for _, c := range chunks {
		if err := s.chunk([]byte(c)); err != nil {
			tb.Fatal(err)
		}
	}
	s.complete()
	if err := (&oracle{}).read(s.out); err != nil {
		tb.Fatalf("%v\n%s", err, s.out)
	}
	checkSchemas(tb, s.out)
}

const plainRequest = `{"model":"m","input":"hi"}`

func delta(members string) string { return `{"choices":[{"index":0,"delta":{` + members + `}}]}` }

func finished(reason string) string {
	return `{"choices":[{"index":0,"delta":{},"finish_reason":"` + reason + `"}]}`
}

const used = `{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":2}}}`

func types(s *stream) []string {
	var names []string
	for line := range strings.SplitSeq(string(s.out), "\n") {
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			names = append(names, strings.TrimPrefix(name, "response."))
		}
	}
	return names
}

func object(tb testing.TB, s *stream) gjson.Result {
	tb.Helper()
	b := s.object()
	if !json.Valid(b) {
		tb.Fatalf("not JSON: %s", b)
	}
	return gjson.ParseBytes(b)
}

func TestReasoningTextAndACallComeInTheOrderThatClientsKnow(t *testing.T) {
	t.Parallel()
	s := newStream(t, `{"model":"m","input":"hi","tools":[{"type":"function","name":"f"}]}`)
	play(t, s,
		delta(`"role":"assistant"`), delta(`"reasoning":"t1"`), delta(`"reasoning_content":"t2"`), delta(`"content":"Hi"`),
		delta(`"tool_calls":[{"index":0,"id":"call_1","function":{"name":"f","arguments":""}}]`),
		delta(`"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]`), finished("tool_calls"), used)
	deltas := strings.Repeat(" reasoning_text.delta", 2)
	want := strings.Fields(`created in_progress
		output_item.added content_part.added` + deltas + ` reasoning_text.done content_part.done output_item.done
		output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done
		output_item.added function_call_arguments.delta function_call_arguments.done output_item.done
		completed`)
	if got := types(s); strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("events\n%v\nwant\n%v", got, want)
	}
	r := object(t, s)
	for path, want := range map[string]string{
		"status": "completed", "output.#": "3", "output.0.content.0.text": "t1t2", "output.1.content.0.text": "Hi",
		"output.2.arguments": "{}", "output.2.call_id": "call_1", "usage.input_tokens": "10", "usage.total_tokens": "17",
		"usage.input_tokens_details.cached_tokens": "4", "usage.output_tokens_details.reasoning_tokens": "2",
		"completed_at": "1700000001", "error": "", "temperature": "1", "parallel_tool_calls": "true",
	} {
		if got := r.Get(path).String(); got != want {
			t.Errorf("%s = %q, want %q", path, got, want)
		}
	}
}

func TestOddAnswersOfEngines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, request string
		chunks        []string
		want          map[string]string
	}{
		{
			name:   "an empty answer still has a message",
			chunks: []string{delta(`"role":"assistant","content":""`), finished("stop")},
			want:   map[string]string{"output.#": "1", "output.0.type": "message", "output.0.content.0.text": ""},
		},
		{
			name:   "two calls in one chunk are two items",
			chunks: []string{delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}]`), finished("tool_calls")},
			want:   map[string]string{"output.#": "2", "output.0.name": "f", "output.1.name": "g", "output.1.call_id": "b"},
		},
		{
			name:    "one call where the caller wants no more",
			request: `{"model":"m","input":"hi","parallel_tool_calls":false}`,
			chunks:  []string{delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}]`), finished("tool_calls")},
			want:    map[string]string{"output.#": "1", "output.0.name": "f", "parallel_tool_calls": "false"},
		},
		{
			name: "interleaved pieces go to their own call",
			chunks: []string{
				delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"f"}}]`), delta(`"tool_calls":[{"index":1,"id":"b","function":{"name":"g"}}]`),
				delta(`"tool_calls":[{"index":0,"function":{"arguments":"{"}}]`), delta(`"tool_calls":[{"index":1,"function":{"arguments":"{\"x\""}}]`),
				delta(`"tool_calls":[{"index":0,"function":{"arguments":"}"}}]`), delta(`"tool_calls":[{"index":1,"function":{"arguments":":1}"}}]`), finished("tool_calls"),
			},
			want: map[string]string{"output.0.arguments": "{}", "output.1.arguments": `{"x":1}`},
		},
		{
			name:   "two pieces of one call in one chunk are joined",
			chunks: []string{delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\""}},{"index":0,"function":{"arguments":":1}"}}]`), finished("tool_calls")},
			want:   map[string]string{"output.#": "1", "output.0.arguments": `{"x":1}`},
		},
		{
			name:   "a call id that is taken is replaced",
			chunks: []string{delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"a","function":{"name":"g","arguments":"{}"}}]`), finished("tool_calls")},
			want:   map[string]string{"output.#": "2", "output.0.call_id": "a"},
		},
		{
			name:   "reasoning under both names counts once",
			chunks: []string{delta(`"reasoning":"x","reasoning_content":"x"`), delta(`"content":"y"`), finished("stop")},
			want:   map[string]string{"output.#": "2", "output.0.content.0.text": "x"},
		},
		{
			name:   "white space between reasoning and a call is no message",
			chunks: []string{delta(`"reasoning":"x"`), delta(`"content":"\n\n"`), delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}}]`), finished("tool_calls")},
			want:   map[string]string{"output.#": "2", "output.1.type": "function_call"},
		},
		{
			name:   "white space before text belongs to it",
			chunks: []string{delta(`"content":"\n"`), delta(`"content":"a"`), finished("stop")},
			want:   map[string]string{"output.#": "1", "output.0.content.0.text": "\na"},
		},
		{
			name:   "white space alone is the answer",
			chunks: []string{delta(`"content":" "`), finished("stop")},
			want:   map[string]string{"output.#": "1", "output.0.content.0.text": " "},
		},
		{
			name:   "an answer that was cut off is incomplete, and so is its item",
			chunks: []string{delta(`"content":"a"`), finished("length")},
			want:   map[string]string{"status": "incomplete", "incomplete_details.reason": "max_output_tokens", "output.0.status": "incomplete"},
		},
		{
			name:   "a call that was cut off is shown as it is",
			chunks: []string{delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x"}}]`), finished("length")},
			want:   map[string]string{"status": "incomplete", "output.0.status": "incomplete", "output.0.arguments": `{"x`},
		},
		{
			name:   "a filtered answer says so",
			chunks: []string{delta(`"content":"a"`), finished("content_filter")},
			want:   map[string]string{"status": "incomplete", "incomplete_details.reason": "content_filter"},
		},
		{
			name:   "a refusal is a part of its own",
			chunks: []string{delta(`"refusal":"no"`), finished("stop")},
			want:   map[string]string{"output.0.content.0.type": "refusal", "output.0.content.0.refusal": "no"},
		},
		{
			name:   "usage on a chunk with choices, without details",
			chunks: []string{delta(`"content":"a"`), `{"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":3,"completion_tokens":1,"prompt_tokens_details":null}}`, finished("stop")},
			want:   map[string]string{"usage.input_tokens": "3", "usage.input_tokens_details.cached_tokens": "0", "usage.output_tokens_details.reasoning_tokens": "0"},
		},
		{
			name:   "a chunk without choices is no fault",
			chunks: []string{`{"id":"x","x_groq":{}}`, `{"choices":null}`, delta(`"content":"a"`), finished("stop")},
			want:   map[string]string{"output.0.content.0.text": "a"},
		},
		{
			name:   "escapes stay what they are",
			chunks: []string{delta(`"content":"\ud83c\udf0d "`), delta(`"content":"\"q\" \\ 你"`), finished("stop")},
			want:   map[string]string{"output.0.content.0.text": "🌍 \"q\" \\ 你"},
		},
		{
			name:    "a namespace comes back apart from the name",
			request: `{"model":"m","input":"hi","tools":[{"type":"namespace","name":"ns","tools":[{"type":"function","name":"f"}]}]}`,
			chunks:  []string{delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"ns__f","arguments":"{}"}}]`), finished("tool_calls")},
			want:    map[string]string{"output.0.name": "f", "output.0.namespace": "ns"},
		},
		{
			name:    "log probabilities are kept with the text",
			request: `{"model":"m","input":"hi","include":["message.output_text.logprobs"]}`,
			chunks:  []string{`{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-1,"bytes":[97],"top_logprobs":[]}]}}]}`, `{"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}`},
			want:    map[string]string{"output.0.content.0.logprobs.0.token": "a", "output.0.content.0.logprobs.#": "1"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.request == "" {
				tt.request = plainRequest
			}
			s := newStream(t, tt.request)
			play(t, s, tt.chunks...)
			r := object(t, s)
			for path, want := range tt.want {
				if got := r.Get(path).String(); got != want {
					t.Errorf("%s = %q, want %q\n%s", path, got, want, r.Raw)
				}
			}
		})
	}
}

func TestACustomToolsTextIsUnwrappedAsItComes(t *testing.T) {
	t.Parallel()
	const request = `{"model":"m","input":"hi","tools":[{"type":"custom","name":"c"}]}`
	for name, tt := range map[string]struct{ arguments, want string }{
		"a text":                 {`{"input":"a\nb \"c\" \u00e9 \\"}`, "a\nb \"c\" é \\"},
		"white space around":     {` { "input" : "x" } `, "x"},
		"another form":           {`just text`, "just text"},
		"an object of its own":   {`{"code":"x"}`, `{"code":"x"}`},
		"raw line breaks inside": {"{\"input\":\"a\nb\"}", "a\nb"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for size := 1; size <= len(tt.arguments); size++ {
				s := newStream(t, request)
				chunks := []string{delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"c"}}]`)}
				for rest := tt.arguments; rest != ""; {
					n := min(size, len(rest))
					chunks = append(chunks, delta(`"tool_calls":[{"index":0,"function":{"arguments":`+quote(rest[:n])+`}}]`))
					rest = rest[n:]
				}
				play(t, s, append(chunks, finished("tool_calls"))...)
				r := object(t, s)
				if got := r.Get("output.0.input").String(); got != tt.want || r.Get("output.0.type").Str != typeCustomCall {
					t.Fatalf("in pieces of %d: input %q, want %q", size, got, tt.want)
				}
			}
		})
	}
}

func TestAFailureIsToldInEveryFormAndEndsTheStream(t *testing.T) {
	t.Parallel()
	s := newStream(t, plainRequest)
	s.begin(InProgress)
	if err := s.chunk([]byte(delta(`"content":"a"`))); err != nil {
		t.Fatal(err)
	}
	s.fail(Failure{Kind: "server_error", Code: "server_error", Message: `it "broke"`})
	s.terminal()
	s.complete() // nothing comes after the end
	if err := (&oracle{}).read(s.out); err != nil {
		t.Fatalf("%v\n%s", err, s.out)
	}
	names := types(s)
	if got := strings.Join(names[len(names)-2:], " "); got != "error failed" {
		t.Errorf("the stream ends with %s", got)
	}
	r := object(t, s)
	if r.Get("status").Str != Failed || r.Get("error.message").Str != `it "broke"` || r.Get("output.0.status").Str != Incomplete {
		t.Errorf("object %s", r.Raw)
	}
	if !strings.Contains(string(s.out), `"error":{"type":"server_error","code":"server_error"`) {
		t.Errorf("no nested error in %s", s.out)
	}
}

func TestWhatAFailureCutsOffIsNeverDone(t *testing.T) {
	t.Parallel()
	s := newStream(t, `{"model":"m","input":"hi","tools":[{"type":"custom","name":"patch"}]}`)
	s.begin(InProgress)
	for _, c := range []string{
		delta(`"reasoning":"r"`), delta(`"content":"half a "`),
		delta(`"tool_calls":[{"index":0,"id":"a","function":{"name":"patch","arguments":"{\"input\":\"rm -r /tmp\"}"}}]`),
	} {
		if err := s.chunk([]byte(c)); err != nil {
			t.Fatal(err)
		}
	}
	s.fail(Failure{Kind: "server_error", Code: "server_error", Message: "x"})
	s.terminal()
	if err := (&oracle{}).read(s.out); err != nil {
		t.Fatalf("%v\n%s", err, s.out)
	}
	if strings.Contains(string(s.out), "custom_tool_call_input.done") || strings.Count(string(s.out), "event: response.output_item.done") != 2 {
		t.Errorf("a client would run the call: %s", s.out)
	}
	if got := object(t, s).Get("output.#.type").Raw; got != `["reasoning","message"]` {
		t.Errorf("the output is of %s", got)
	}
}

// Any sequence of chunks gives a stream that the strictest client accepts.
func FuzzStream(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, false)
	f.Add([]byte{4, 5, 4, 2, 6, 2, 9}, true)
	f.Fuzz(func(t *testing.T, script []byte, broken bool) {
		s := newStream(t, `{"model":"m","input":"hi","tools":[{"type":"function","name":"f"},{"type":"custom","name":"c"}]}`)
		s.seal = func(string) string { return "sealed" }
		s.begin(InProgress)
		for i, op := range script {
			at := int(op>>4) % 4
			var chunk string
			switch op % 12 {
			case 0:
				chunk = delta(`"role":"assistant"`)
			case 1:
				chunk = delta(`"reasoning":"r\n"`)
			case 2:
				chunk = delta(`"content":"text \ud83c\udf0d"`)
			case 3:
				chunk = delta(`"content":"\n "`)
			case 4:
				chunk = delta(fmt.Sprintf(`"tool_calls":[{"index":%d,"id":"call_%d","function":{"name":"f","arguments":"{"}}]`, at, i%3))
			case 5:
				chunk = delta(fmt.Sprintf(`"tool_calls":[{"index":%d,"function":{"arguments":"\"a\":1}"}}]`, at))
			case 6:
				chunk = delta(fmt.Sprintf(`"tool_calls":[{"index":%d,"id":"c%d","function":{"name":"c","arguments":"{\"input\":\"x\\u00"}}]`, at, i))
			case 7:
				chunk = used
			case 8:
				chunk = `{"choices":null}`
			case 9:
				chunk = finished([]string{"stop", "length", "tool_calls", "content_filter"}[at])
			case 10:
				chunk = delta(`"refusal":"no"`)
			default:
				s.keepalive()
				continue
			}
			if err := s.chunk([]byte(chunk)); err != nil {
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
		checkSchemas(t, s.out)
		if !json.Valid(s.object()) {
			t.Fatalf("not JSON: %s", s.object())
		}
	})
}
