package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/billing"
)

// vllmChunk is a chunk as vLLM writes it with a running count.
func vllmChunk(text string, n int) string {
	return fmt.Sprintf(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"org/engine",`+
		`"choices":[{"index":0,"delta":{"content":%q},"logprobs":null,"finish_reason":null,"token_ids":null}],`+
		`"usage":{"prompt_tokens":11,"total_tokens":%d,"completion_tokens":%d}}`, text, 11+n, n)
}

const (
	bare = `{"id":"c","object":"chat.completion.chunk","created":7,"model":"org/engine","choices":[{"index":0,"delta":{"content":"x"}}]%s}`
	seen = `{"id":"c","object":"chat.completion.chunk","created":7,"model":"pub","choices":[{"index":0,"delta":{"content":"x"}}]%s}`
	// How long the exchange of these tests waited, and what its usage says of it.
	waited = 12500 * time.Microsecond
	timed  = `,"queue_time":0.012500`
	last   = `{"id":"c","object":"chat.completion.chunk","created":7,"model":"org/engine","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}`
)

func TestRewriterShowsTheCallerWhatItAskedFor(t *testing.T) {
	t.Parallel()
	const closed = `{"id":"c","object":"chat.completion.chunk","created":7,"model":"pub","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2` + timed + `}}`
	with := func(form, tail string) string { return fmt.Sprintf(form, tail) }
	tests := []struct {
		name  string
		tier  string
		usage bool
		in    []string
		want  []string
	}{
		{"the model has its public name", "", false, []string{with(bare, "")}, []string{with(seen, "")}},
		{
			"later chunks too, wherever the engine puts the name", "", false,
			[]string{with(bare, ""), `{"choices":[{"index":0,"delta":{"content":"y"}}],"created":7,"model":"org/engine","id":"c"}`},
			[]string{with(seen, ""), `{"choices":[{"index":0,"delta":{"content":"y"}}],"created":7,"model":"pub","id":"c"}`},
		},
		{
			"a text that looks like the name stays", "", false,
			[]string{`{"choices":[{"delta":{"content":"\"model\":\"org/engine\""}}],"model":"org/engine"}`},
			[]string{`{"choices":[{"delta":{"content":"\"model\":\"org/engine\""}}],"model":"pub"}`},
		},
		{
			"an engine that changes the name it gives is followed", "", false,
			[]string{with(bare, ""), `{"model":"other","choices":[]}`},
			[]string{with(seen, ""), `{"model":"pub","choices":[]}`},
		},
		{"the running count is not shown", "", false, []string{with(bare, `,"usage":{"prompt_tokens":3,"completion_tokens":1}`)}, []string{with(seen, "")}},
		{"a null count is not shown either", "", false, []string{with(bare, `,"usage":null`)}, []string{with(seen, "")}},
		{"usage in the middle is cut", "", false, []string{`{"model":"org/engine","usage":{"a":{"b":[1,"}"]}},"choices":[{}]}`}, []string{`{"model":"pub","choices":[{}]}`}},
		{"usage in front is cut", "", false, []string{`{"usage":{"prompt_tokens":1},"model":"org/engine","choices":[{}]}`}, []string{`{"model":"pub","choices":[{}]}`}},
		{"spaces between the members do no harm", "", false, []string{`{ "model" : "org/engine", "choices" : [ {} ], "usage" : null }`}, []string{`{ "model":"pub", "choices" : [ {} ] }`}},
		{"a vendor's nested usage stays", "", false, []string{`{"model":"org/engine","choices":[{}],"x_v":{"usage":{"prompt_tokens":9}}}`}, []string{`{"model":"pub","choices":[{}],"x_v":{"usage":{"prompt_tokens":9}}}`}},
		{"the closing usage chunk is dropped", "", false, []string{with(bare, ""), last}, []string{with(seen, "")}},
		{
			"asked for usage, only the closing chunk has it", "", true,
			[]string{with(bare, `,"usage":{"prompt_tokens":3,"completion_tokens":1}`), last},
			[]string{with(seen, `,"usage":null`), closed},
		},
		{"asked for usage, an engine's null stays", "", true, []string{with(bare, `,"usage":null`), last}, []string{with(seen, `,"usage":null`), closed}},
		{"asked for usage, exactly one chunk has it", "", true, []string{with(bare, ""), last, last}, []string{with(seen, ""), closed}},
		{
			"asked for usage that came on a chunk with choices, a closing chunk is made", "", true,
			[]string{with(bare, ""), `{"id":"c","model":"org/engine","choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`},
			[]string{
				with(seen, ""), `{"id":"c","model":"pub","choices":[{"index":0,"delta":{}}],"usage":null}`,
				`{"id":"c","object":"chat.completion.chunk","created":7,"model":"pub","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2` + timed + `}}`,
			},
		},
		{
			"asked for usage that never came, our own count is given", "", true,
			[]string{with(bare, ""), with(bare, "")},
			[]string{
				with(seen, ""), with(seen, ""),
				`{"id":"c","object":"chat.completion.chunk","created":7,"model":"pub","choices":[],"usage":{"prompt_tokens":0,"completion_tokens":2,"total_tokens":2` + timed + `}}`,
			},
		},
		{
			"the queue time is ours, whatever the engine says, and stands beside no noise", "", true,
			[]string{with(bare, ""), `{"model":"org/engine","choices":[],"usage":{"prompt_tokens":3,"queue_time":99,"sglext":{"a":1}}}`},
			[]string{with(seen, ""), `{"model":"pub","choices":[],"usage":{"prompt_tokens":3` + timed + `}}`},
		},
		{
			"a usage of nothing but noise stays JSON", "", true,
			[]string{`{"model":"org/engine","choices":[],"usage":{"queue_time":1,"sglext":2}}`},
			[]string{`{"model":"pub","choices":[],"usage":{"queue_time":0.012500}}`},
		},
		{
			"the tier served is told to who asked for one", "flex", false,
			[]string{with(bare, `,"service_tier":null`)},
			[]string{`{"id":"c","object":"chat.completion.chunk","created":7,"model":"pub","service_tier":"flex","choices":[{"index":0,"delta":{"content":"x"}}]}`},
		},
		{
			"engine noise is dropped", "", false,
			[]string{`{"model":"org/engine","choices":[{"index":0,"delta":{"content":"x"},"matched_stop":null,"token_ids":[1,2]}],"prompt_token_ids":[1],"kv_transfer_params":{"host":"h"},"sglext":{}}`},
			[]string{`{"model":"pub","choices":[{"index":0,"delta":{"content":"x"}}]}`},
		},
		{
			"noise beside noise, in front, and usage beside it", "flex", false,
			[]string{`{"sglext":{"a":1},"kv_transfer_params":null,"usage":null,"service_tier":"x","model":"org/engine","choices":[{"matched_stop":1,"token_ids":[2]}]}`},
			[]string{`{"model":"pub","service_tier":"flex","choices":[{}]}`},
		},
		{
			"usage behind noise in front", "", false,
			[]string{`{"sglext":1,"usage":null,"model":"org/engine"}`, `{"sglext":1,"usage":null}`, `{"sglext":{"model":"org/engine"},"model":"org/engine"}`},
			[]string{`{"model":"pub"}`, `{}`, `{"model":"pub"}`},
		},
		{
			"both names of reasoning pass", "", false,
			[]string{`{"model":"org/engine","choices":[{"delta":{"reasoning":"a","reasoning_content":"b"}}]}`},
			[]string{`{"model":"pub","choices":[{"delta":{"reasoning":"a","reasoning_content":"b"}}]}`},
		},
		{"a chunk without choices is no trouble", "", false, []string{`{"id":"x","x_vendor":{}}`, `{"choices":null}`}, []string{`{"id":"x","x_vendor":{}}`, `{"choices":null}`}},
		{"indexes of several choices stay", "", false, []string{`{"model":"org/engine","choices":[{"index":1,"delta":{"content":"b"}}]}`}, []string{`{"model":"pub","choices":[{"index":1,"delta":{"content":"b"}}]}`}},
		{
			"a finish reason beside null log probabilities stays", "", false,
			[]string{`{"model":"org/engine","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}`},
			[]string{`{"model":"pub","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}`},
		},
		{
			"two tool calls in one chunk stay two", "", false,
			[]string{`{"model":"org/engine","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}]}}]}`},
			[]string{`{"model":"pub","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{}"}},{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}]}}]}`},
		},
		{"characters of several bytes stay", "", false, []string{`{"model":"org/engine","choices":[{"delta":{"content":"你🌍"}}]}`}, []string{`{"model":"pub","choices":[{"delta":{"content":"你🌍"}}]}`}},
		{"a name that is public already costs no edit", "same", false, []string{`{"choices":[{"delta":{"content":"x"}}]}`}, []string{`{"choices":[{"delta":{"content":"x"}}]}`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRewriter(&meter{}, "pub", "org/engine", tt.tier, tt.usage, waited)
			var out []byte
			for _, in := range tt.in {
				var err *Error
				if out, err = r.chunk(out, []byte(in)); err != nil {
					t.Fatalf("%s: %v", in, err)
				}
			}
			out = r.closing(out)
			got, err := split(strings.NewReader(string(out)), 1<<20)
			if err == nil {
				t.Fatal("no end")
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for _, g := range got {
				if !json.Valid([]byte(g)) {
					t.Errorf("not JSON: %s", g)
				}
			}
		})
	}
}

func TestRewriterTellsErrorsFromChunks(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		in   string
		want Cause
	}{
		{"an error object", `{"error":{"message":"boom","type":"InternalServerError","code":500}}`, UpstreamStatus},
		{"with a space, as Python writes it", `{"error": {"message": "boom", "code": 500}}`, UpstreamStatus},
		{"beside choices", `{"id":"c","choices":[{"delta":{},"finish_reason":"error"}],"error":{"message":"boom"}}`, UpstreamStatus},
		{"an error text", `{"error":"boom"}`, UpstreamStatus},
		{"the older flat form", `{"object":"error","message":"bad","type":"BadRequestError","code":400}`, UpstreamRefused},
		{"the caller's fault, by type", `{"error":{"message":"bad","type":"BadRequestError","code":null}}`, UpstreamRefused},
		{"a full engine", `{"error":{"message":"busy","code":503}}`, UpstreamBusy},
		{"an aborted choice", `{"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}`, UpstreamStatus},
		{"an array", `[1]`, UpstreamInvalid},
		{"half an object", `{"choices":[`, UpstreamInvalid},
		{"nothing", ``, UpstreamInvalid},
		{"a null error is none", `{"choices":[{"delta":{"content":"x"}}],"error":null}`, ""},
		{"the word abort in a text is none", `{"choices":[{"delta":{"content":"abort"},"finish_reason":null}]}`, ""},
		{"the word error in a text is none", `{"choices":[{"delta":{"content":"\"error\":{}"}}]}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := newRewriter(&meter{}, "pub", "org/engine", "", false, waited).chunk(nil, []byte(tt.in))
			var got Cause
			if err != nil {
				got = err.Cause
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestRewriterEditsDocuments(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, tier, in, want string
		cause                Cause
		usage                billing.Usage
	}{
		{
			name:  "the name changes, the usage stays",
			in:    `{"id":"c","model":"org/engine","choices":[{"message":{"content":"x"},"token_ids":null}],"service_tier":null,"usage":{"prompt_tokens":5,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2},"completion_tokens_details":{"reasoning_tokens":1}},"kv_transfer_params":null}`,
			want:  `{"id":"c","model":"pub","choices":[{"message":{"content":"x"}}],"service_tier":null,"usage":{"prompt_tokens":5,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":2},"completion_tokens_details":{"reasoning_tokens":1}` + timed + `}}`,
			usage: billing.Usage{InputUncached: 3, InputCached: 2, Output: 3, Reasoning: 1},
		},
		{
			name: "the tier served replaces the engine's", tier: "default",
			in:    `{"service_tier":"auto","model":"org/engine","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":0}}`,
			want:  `{"model":"pub","service_tier":"default","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":0` + timed + `}}`,
			usage: billing.Usage{InputUncached: 5},
		},
		{
			name:  "embeddings have only a prompt",
			in:    `{"object":"list","data":[{"embedding":[0.1,2]}],"model":"org/engine","usage":{"prompt_tokens":9,"total_tokens":9}}`,
			want:  `{"object":"list","data":[{"embedding":[0.1,2]}],"model":"pub","usage":{"prompt_tokens":9,"total_tokens":9` + timed + `}}`,
			usage: billing.Usage{InputUncached: 9},
		},
		{name: "cut JSON is no answer", in: `{"model":"org/engine","choices":[`, cause: UpstreamInvalid},
		{name: "a page of HTML is no answer", in: `<html></html>`, cause: UpstreamInvalid},
		{name: "an error with status 200 is one", in: `{"error":{"message":"x"}}`, cause: UpstreamStatus},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := &meter{}
			out, err := newRewriter(m, "pub", "org/engine", tt.tier, false, waited).document(nil, []byte(tt.in))
			if err != nil {
				if err.Cause != tt.cause {
					t.Errorf("got %q, want %q", err.Cause, tt.cause)
				}
				return
			}
			if diff := cmp.Diff(tt.want, string(out)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got, source := m.usage(true); got != tt.usage || source != billing.UpstreamFinal {
				t.Errorf("usage %+v (%s), want %+v", got, source, tt.usage)
			}
		})
	}
}

// FuzzChunk: whatever an engine sends as an object, nothing panics, and an
// edit never breaks JSON that was whole.
func FuzzChunk(f *testing.F) {
	f.Add(vllmChunk("x", 1), true)
	f.Add(last, false)
	f.Add(`{"choices":[],"usage":{"queue_time":1}}`, true)
	f.Add(`{"choices":[],"usage":{ } }`, true)
	f.Add(`{"usage":1,"a":"\\","model":"org/engine","matched_stop":[{}]}`, false)
	f.Add(`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f"}}]}}]}`, true)
	f.Fuzz(func(t *testing.T, in string, usage bool) {
		r := newRewriter(&meter{}, "pub", "org/engine", "flex", usage, waited)
		for range 2 { // the second one takes what was learnt from the first
			out, err := r.chunk(nil, []byte(in))
			if err != nil || len(out) == 0 || !json.Valid([]byte(in)) {
				return
			}
			if got := strings.TrimSuffix(strings.TrimPrefix(string(out), "data: "), "\n\n"); !json.Valid([]byte(got)) {
				t.Fatalf("made %s\nof %s", got, in)
			}
		}
	})
}

// FuzzTemplate: what is passed on because it looks like an earlier chunk is
// what a close look would have made of it.
func FuzzTemplate(f *testing.F) {
	f.Add(vllmChunk("a", 1), vllmChunk("b\\ \" c", 2), true)
	f.Add(vllmChunk("a", 1), vllmChunk("", 2), false)
	f.Add(fmt.Sprintf(bare, ""), fmt.Sprintf(bare, `,"error":{}`), false)
	f.Add(`{"model":"org/engine","choices":[{"text":"a"}]}`, `{"model":"org/engine","choices":[{"text":"b"}]}`, false)
	f.Add(vllmChunk("a", 1), strings.Replace(vllmChunk("a", 1), `{"prompt`, `{"x":{}},"error":{"prompt`, 1), false)
	f.Fuzz(func(t *testing.T, first, second string, usage bool) {
		if !json.Valid([]byte(second)) {
			return
		}
		var quick, slow meter
		r := newRewriter(&quick, "pub", "org/engine", "flex", usage, waited)
		if _, err := r.chunk(nil, []byte(first)); err != nil {
			return
		}
		careful := newRewriter(&slow, "pub", "org/engine", "flex", usage, waited)
		_, _ = careful.chunk(nil, []byte(first))
		careful.form = template{}
		slow = quick
		slow.raw = append([]byte(nil), quick.raw...)
		got, err1 := r.chunk(nil, []byte(second))
		want, err2 := careful.chunk(nil, []byte(second))
		if string(got) != string(want) || (err1 == nil) != (err2 == nil) {
			t.Fatalf("got  %s (%v)\nwant %s (%v)", got, err1, want, err2)
		}
		if string(quick.raw) != string(slow.raw) || quick.output != slow.output {
			t.Fatalf("counted %s, %d; want %s, %d", quick.raw, quick.output, slow.raw, slow.output)
		}
	})
}

func TestChunksOfOneFormAreTakenByTemplate(t *testing.T) {
	t.Parallel()
	m := &meter{}
	r := newRewriter(m, "pub", "org/engine", "", false, waited)
	for i := range 20 {
		text := fmt.Sprintf("word \" %d", i)
		out, err := r.chunk(nil, []byte(vllmChunk(text, i+1)))
		if err != nil {
			t.Fatal(err)
		}
		want := "data: " + strings.Replace(fmt.Sprintf(`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"pub",`+
			`"choices":[{"index":0,"delta":{"content":%q},"logprobs":null,"finish_reason":null}]}`, text), "\x00", "", 1) + "\n\n"
		if diff := cmp.Diff(want, string(out)); diff != "" {
			t.Fatalf("chunk %d (-want +got):\n%s", i, diff)
		}
	}
	if r.form.learnt != 1 {
		t.Errorf("learnt %d times, want once", r.form.learnt)
	}
	if u, _ := m.usage(true); u != (billing.Usage{InputUncached: 11, Output: 20}) || m.output != 20 {
		t.Errorf("usage %+v, %d counted", u, m.output)
	}
}

func TestToolCallsKeepOneIndexEach(t *testing.T) {
	t.Parallel()
	// Each fragment: choice, the engine's index, id, name -> the caller's index.
	type fragment struct {
		choice, index int64
		id, name      string
		want          int64
	}
	tests := []struct {
		name      string
		fragments []fragment
	}{
		{"right numbers stay", []fragment{{0, 0, "a", "f", 0}, {0, 0, "", "", 0}, {0, 1, "b", "g", 1}, {0, 0, "", "", 0}, {0, 1, "", "", 1}}},
		{"a new id and name under an old number is a new call", []fragment{{0, 0, "a", "f", 0}, {0, 0, "b", "g", 1}, {0, 0, "", "", 1}, {0, 0, "c", "h", 2}}},
		{"an id that is repeated is the same call", []fragment{{0, 0, "a", "f", 0}, {0, 0, "a", "f", 0}, {0, 0, "a", "", 0}}},
		{"a new id without a name is not a new call", []fragment{{0, 0, "a", "f", 0}, {0, 0, "b", "", 0}}},
		{"choices are numbered apart", []fragment{{0, 0, "a", "f", 0}, {1, 0, "b", "f", 0}, {0, 0, "c", "g", 1}, {1, 0, "", "", 0}}},
		{"a number that was given to another call is not used again", []fragment{{0, 0, "a", "f", 0}, {0, 0, "b", "g", 1}, {0, 1, "c", "h", 2}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var calls toolCalls
			for i, f := range tt.fragments {
				in := fmt.Sprintf(`{"choices":[{"index":%d,"delta":{"tool_calls":[{"index":%d,"id":%q,"function":{"name":%q}}]}}]}`, f.choice, f.index, f.id, f.name)
				want := fmt.Sprintf(`{"choices":[{"index":%d,"delta":{"tool_calls":[{"index":%d,"id":%q,"function":{"name":%q}}]}}]}`, f.choice, f.want, f.id, f.name)
				if diff := cmp.Diff(want, string(calls.reindex([]byte(in)))); diff != "" {
					t.Errorf("fragment %d (-want +got):\n%s", i, diff)
				}
			}
		})
	}
}

func TestToolCallsInOneChunkAreSetApart(t *testing.T) {
	t.Parallel()
	var calls toolCalls
	in := `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f"}},{"index":0,"id":"b","function":{"name":"g"}},{"id":"no index"}]}}]}`
	want := `{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f"}},{"index":1,"id":"b","function":{"name":"g"}},{"id":"no index"}]}}]}`
	if diff := cmp.Diff(want, string(calls.reindex([]byte(in)))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func BenchmarkChunk(b *testing.B) {
	p, buf := []byte(vllmChunk("some words", 12)), make([]byte, 0, 1024)
	r := newRewriter(&meter{}, "pub", "org/engine", "flex", false, waited)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.chunk(buf[:0], p); err != nil {
			b.Fatal(err)
		}
	}
}
