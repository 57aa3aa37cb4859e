package responses

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"weir/gateway"
)

// kept runs a call through what keeps it.
func kept(t *testing.T, engine *script, document string) (*desk, *page) {
	t.Helper()
	d, out := newDesk(t, engine), &page{}
	call := gateway.Call{Prompt: [2][]byte{nil, []byte(`[{"role":"user","content":"hi"}]`)}}
	sink, err := d.service.KeepChat(callerOf("ten_a"), &call, "m", []byte(`{"k":"v"}`), out)
	if err != nil {
		t.Fatal(err)
	}
	engine.ended = document
	if err := engine.Run(t.Context(), call, sink); engine.failure == nil && err != nil {
		t.Fatal(err)
	}
	return d, out
}

func TestAKeptStreamIsTheDocumentThatItWouldHaveBeen(t *testing.T) {
	t.Parallel()
	head := `"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m",`
	d, out := kept(t, &script{events: []string{
		`{` + head + `"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`,
		`{` + head + `"choices":[{"index":1,"delta":{"content":"other"},"logprobs":{"content":[{"token":"other"}]}}]}`,
		`{` + head + `"choices":[{"index":0,"delta":{"reasoning_content":"th"}},{"index":0,"delta":{"reasoning_content":"ink\n"}}]}`,
		`{` + head + `"choices":[{"index":0,"delta":{"content":"\u4f60\ud83c"}}]}`,
		`{` + head + `"choices":[{"index":0,"delta":{"content":"\udf0d","tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\""}},{"index":1,"id":"b","function":{"name":"g","arguments":"{}"}}]}}]}`,
		`{` + head + `"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"x\":1}"}}]},"finish_reason":"tool_calls"},{"index":1,"delta":{},"finish_reason":"stop"}]}`,
	}}, "")
	want := `{"object":"chat.completion","id":"chatcmpl-1","created":7,"model":"m","choices":[` +
		`{"index":0,"message":{"role":"assistant","content":"\u4f60\ud83c\udf0d","refusal":null,"reasoning_content":"think\n","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]},"logprobs":null,"finish_reason":"tool_calls"},` +
		`{"index":1,"message":{"role":"assistant","content":"other","refusal":null},"logprobs":{"content":[{"token":"other"}],"refusal":null},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}`
	if len(d.store.chats) != 1 {
		t.Fatalf("%d kept", len(d.store.chats))
	}
	r := d.store.chats[0]
	if diff := cmp.Diff(want, string(r.Object)); diff != "" {
		t.Error(diff)
	}
	if r.ID != "chatcmpl-1" || string(r.Metadata) != `{"k":"v"}` || gjson.GetBytes(r.Messages, "0.content").Str != "hi" || r.ExpiresAt.IsZero() {
		t.Errorf("kept %+v", r)
	}
	if got := out.body.String(); strings.Count(got, "data: ") != 7 || !strings.HasPrefix(got, ": keepalive\n\ndata: {"+head) {
		t.Errorf("the caller saw something else: %s", got)
	}
}

func TestADocumentIsKeptAsItIs(t *testing.T) {
	t.Parallel()
	document := `{"id":"chatcmpl-2","choices":[],"x":1}`
	d, _ := kept(t, &script{}, document)
	if len(d.store.chats) != 1 || string(d.store.chats[0].Object) != document || d.store.chats[0].ID != "chatcmpl-2" {
		t.Errorf("%+v", d.store.chats)
	}
}

func TestABrokenAnswerIsNotKept(t *testing.T) {
	t.Parallel()
	d, out := kept(t, &script{events: []string{`{"choices":[{"index":0,"delta":{"content":"a"}}]}`}, failure: &gateway.Error{Cause: gateway.UpstreamDied}}, "")
	if len(d.store.chats) != 0 || out.failed == nil {
		t.Errorf("kept %+v, told %v", d.store.chats, out.failed)
	}
}

func TestMetadataHasBounds(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &script{})
	for _, metadata := range []string{`7`, `{"a":1}`, `{"a":"` + strings.Repeat("x", 513) + `"}`} {
		_, err := d.service.KeepChat(callerOf("ten_a"), &gateway.Call{}, "m", []byte(metadata), &page{})
		if _, ok := errors.AsType[*Problem](err); !ok {
			t.Errorf("%.20s: %v", metadata, err)
		}
	}
}
