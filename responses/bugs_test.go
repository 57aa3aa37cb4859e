package responses

import (
	"errors"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"weir/gateway"
)

func TestASilenceIsBrokenByAnEvent(t *testing.T) {
	t.Parallel()
	d := newDesk(t, hello())
	p, err := d.create(t, "ten_a", `{"model":"m","input":"x","stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(p.body.String(), `data: {"type":"keepalive","sequence_number":2}`) {
		t.Errorf("no event breaks the silence: %s", p.body.String())
	}
	for line := range strings.SplitSeq(p.body.String(), "\n") {
		if strings.HasPrefix(line, ":") || strings.HasPrefix(line, "id:") {
			t.Errorf("the line %q", line)
		}
	}
	if err := (&oracle{}).read(p.body.Bytes()); err != nil {
		t.Error(err)
	}
}

func TestALaterTurnKnowsWhatAToolSaid(t *testing.T) {
	t.Parallel()
	calls := &script{events: []string{delta(`"tool_calls":[{"index":0,"id":"call_1","function":{"name":"f","arguments":"{\"a\":1}"}}]`), finished("tool_calls"), used}}
	d := newDesk(t, calls)
	p, err := d.create(t, "ten_a", `{"model":"m","input":"ask the tool","tools":[{"type":"function","name":"f"}]}`)
	if err != nil {
		t.Fatal(err)
	}
	calls.events = hello().events
	for _, input := range []string{
		`[{"type":"function_call_output","call_id":"call_1","output":"forty-two"}]`, // and no tools again
		`"what did it say?"`,
	} {
		previous := gjson.GetBytes(p.body.Bytes(), "id").Str
		if p, err = d.create(t, "ten_a", `{"model":"m","input":`+input+`,"previous_response_id":"`+previous+`"}`); err != nil {
			t.Fatalf("%s: %v", input, err)
		}
	}
	told := gjson.GetBytes(calls.calls[2].Fields, "messages")
	if told.Get("#.role").Raw != `["user","assistant","tool","assistant","user"]` || told.Get("1.tool_calls.0.function.name").Str != "f" ||
		told.Get("2.content").Str != "forty-two" || told.Get("2.tool_call_id").Str != "call_1" {
		t.Errorf("the third turn is told %s", told.Raw)
	}
}

func TestNamesOfResponsesAreOurs(t *testing.T) {
	t.Parallel()
	d := newDesk(t, hello())
	p, err := d.create(t, "ten_a", `{"model":"m","input":"x","request_id":"hello","id":"resp_mine","tenant":"ten_b","project_id":"prj_2"}`)
	if err != nil {
		t.Fatal(err)
	}
	id := gjson.GetBytes(p.body.Bytes(), "id").Str
	if r := d.store.records[id]; r == nil || !strings.HasPrefix(id, responsePrefix) || len(id) < 26 || r.Owner != (Owner{Tenant: "ten_a", Project: "prj_1"}) {
		t.Errorf("kept as %s: %+v", id, r)
	}
	if told := string(d.engine.calls[0].Fields); strings.Contains(told, "hello") || strings.Contains(told, "ten_b") {
		t.Errorf("the engine is told %s", told)
	}
}

func TestAnItemThatIsNotKeptIsNamed(t *testing.T) {
	t.Parallel()
	d := newDesk(t, hello())
	_, err := d.create(t, "ten_a", `{"model":"m","input":[{"type":"item_reference","id":"rs_gone"},{"role":"user","content":"x"}]}`)
	if p, ok := errors.AsType[*Problem](err); !ok || !strings.Contains(p.Message, "rs_gone") || p.Param != "input" {
		t.Errorf("error %v", err)
	}
	if _, err = d.create(t, "ten_a", `{"model":"m","input":[{"type":"reasoning","id":"rs_gone","summary":[],"encrypted_content":null},{"role":"user","content":"x"}]}`); err != nil {
		t.Errorf("a shell of reasoning: %v", err)
	}
}

func TestAFaultOfTheContextIsTheInputs(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &script{failure: &gateway.Error{Cause: gateway.ContextTooLong, Param: "messages"}})
	_, err := d.create(t, "ten_a", `{"model":"m","input":"x"}`)
	if e, ok := errors.AsType[*gateway.Error](err); !ok || e.Cause != gateway.ContextTooLong || e.Param != "input" {
		t.Errorf("error %v", err)
	}
	if d.engine.failure.Param != "messages" {
		t.Error("the engine's own error was changed")
	}
}

func TestAnEndWithoutOutputLosesNothingThatWasStreamed(t *testing.T) {
	t.Parallel()
	for name, events := range map[string][]string{
		"after whole items": {
			itemDone(0, messageItem("msg_1", "hello")), itemDone(1, callItem("fc_1", "call_1", "f", "{}")), ended("completed"),
		},
		"after pieces": {
			textDelta(0, "msg_1", "hel"), textDelta(0, "msg_1", "lo"),
			added(1, callItem("fc_1", "call_1", "f", "")), argumentsDelta(1, "fc_1", "{}"), ended("completed"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newNativeDesk(t, &script{events: events})
			p, err := d.create(t, "ten_a", `{"model":"m","input":"x","stream":true,"tools":[{"type":"function","name":"f"}]}`)
			if err != nil {
				t.Fatal(err)
			}
			if err := (&oracle{}).read(p.body.Bytes()); err != nil {
				t.Errorf("%v\n%s", err, p.body.String())
			}
			if len(d.store.records) != 1 {
				t.Fatalf("%d responses are kept", len(d.store.records))
			}
			for _, r := range d.store.records {
				kept := gjson.ParseBytes(r.Object)
				if got := told(kept); got != "message hello, function_call {}" || len(r.Output) != 2 || string(r.Output[0].JSON) != kept.Get("output.0").Raw {
					t.Errorf("kept is %s", r.Object)
				}
				if !strings.Contains(p.body.String(), `"response":`+string(r.Object)) {
					t.Errorf("shown last is another than what is kept: %s", p.body.String())
				}
			}
		})
	}
}
