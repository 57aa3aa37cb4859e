package responses

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"weir/gateway"
	"weir/tenants"
)

// newNativeDesk is a desk whose engine has a /v1/responses of its own.
func newNativeDesk(t *testing.T, engine *script) *desk {
	t.Helper()
	d := newDesk(t, engine)
	d.service.deps.Dialect = func(string) Dialect { return Dialect{Native: true} }
	d.service.deps.Check = func(_ context.Context, p *tenants.Principal, body []byte) (gateway.Call, []string, error) {
		var fields []byte // as the parser leaves them
		gjson.ParseBytes(body).ForEach(func(name, value gjson.Result) bool {
			if name.Str != "model" && !strings.HasPrefix(name.Str, "stream") {
				fields = append(append(append(fields, name.Raw...), ':'), value.Raw+","...)
			}
			return true
		})
		return gateway.Call{Principal: p, Operation: gateway.Chat, Fields: bytes.TrimSuffix(fields, []byte(",")), Stream: true}, nil, nil
	}
	return d
}

// A turn begins with the bytes of the one before, reasoning, calls and all: the
// engine has them in its prefix cache.
func TestALaterTurnBeginsWithTheBytesOfTheEarlierAtAnEnginesOwn(t *testing.T) {
	t.Parallel()
	engine := &script{events: []string{
		itemDone(0, reasoningItem("rs_1", "hm")), itemDone(1, messageItem("msg_1", `I l\u00f6ok`)), itemDone(2, callItem("fc_1", "call_1", "f", `{"a": 1}`)), ended("completed"),
	}}
	d := newNativeDesk(t, engine)
	p, err := d.create(t, "ten_a", `{"model":"m","instructions":"be brief","input":"ask the tool","tools":[{"type":"function","name":"f"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	engine.events = []string{itemDone(0, messageItem("msg_9", "42")), ended("completed")}
	for _, input := range []string{`[{"type":"function_call_output","call_id":"call_1","output":"forty-two"}]`, `"and again?"`} {
		if p, err = d.create(t, "ten_a", `{"model":"m","instructions":"be brief","input":`+input+`,"previous_response_id":"`+gjson.GetBytes(p.body.Bytes(), "id").Str+`"}`); err != nil {
			t.Fatal(err)
		}
	}
	input := func(turn int) string { return string(engine.calls[turn].Prompt[1]) }
	if before := strings.TrimSuffix(input(0), "]"); !strings.HasPrefix(input(1), before) || input(1) == input(0) {
		t.Errorf("%s\nand then\n%s", input(0), input(1))
	}
	const turn = `{"type":"message","id":"msg_4","role":"assistant","status":"completed","content":[{"type":"output_text","text":"I l\u00f6ok","annotations":[]}]},` +
		`{"type":"function_call","id":"fc_5","call_id":"call_1","name":"f","arguments":"{\"a\": 1}","status":"completed"},` +
		`{"type":"function_call_output","id":"fco_6","call_id":"call_1","output":"forty-two"}]`
	if !strings.HasSuffix(input(1), `{"type":"reasoning","id":"rs_3","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},`+turn) {
		t.Errorf("in the loop of tools the engine is given %s", input(1))
	}
	for i, c := range engine.calls {
		if c.Operation != gateway.Responses || c.Session == "" || c.Turn != i+1 || strings.Contains(string(c.Fields), "previous_response_id") {
			t.Errorf("call %d: %+v", i, c)
		}
	}
}

func TestACompactionIsMadeByAnEnginesOwnResponseAndACountIsNot(t *testing.T) {
	t.Parallel()
	engine := &script{events: []string{textDelta(0, "a", "the notes"), ended("completed")}}
	d := newNativeDesk(t, engine)
	from := Caller{Principal: &tenants.Principal{Tenant: "ten_a", Project: "prj_1"}, RequestID: "req_1"}
	parse := func() *Create {
		c, err := ParseCreate([]byte(`{"model":"m","input":"long ago"}`))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	run, err := d.service.Compact(t.Context(), from, parse())
	if err != nil {
		t.Fatal(err)
	}
	p := &page{}
	if err := run.Answer(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	sealed := gjson.Get(p.body.String(), `output.#(type=="compaction").encrypted_content`).Str
	if text, ok := d.service.deps.Sealer.Open("ten_a", "m", sealed); !ok || !strings.HasSuffix(text, "the notes") || engine.calls[0].Operation != gateway.Responses {
		t.Errorf("%s by %+v", p.body.String(), engine.calls[0])
	}
	if _, err := d.service.Count(t.Context(), from, parse()); err != nil || engine.calls[1].Operation != gateway.Chat {
		t.Errorf("a tokenizer knows chats alone, and is asked %s: %v", engine.calls[1].Operation, err)
	}
}
