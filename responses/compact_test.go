package responses

import (
	"errors"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"weir/tenants"
)

func parsed(t *testing.T, body string) *Create {
	t.Helper()
	c, err := ParseCreate([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func callerOf(tenant tenants.ID) Caller {
	return Caller{RequestID: "req_1", Principal: &tenants.Principal{Tenant: tenant, Project: "prj_1", Key: "key_1", Plan: &tenants.Plan{RetentionDays: 30}}}
}

// compacted asks for a summary of a context of two turns.
func compacted(t *testing.T, d *desk) gjson.Result {
	t.Helper()
	run, err := d.service.Compact(t.Context(), callerOf("ten_a"), parsed(t, `{"model":"m","instructions":"be short","stream":true,"tools":[{"type":"function","name":"f"}],
		"input":[{"role":"user","content":"first"},{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},
		{"type":"function_call_output","call_id":"c1","output":"forty-two"},{"role":"user","content":"second"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	out := &page{}
	if err := run.Answer(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	return gjson.ParseBytes(out.body.Bytes())
}

func notes() *script {
	return &script{events: []string{
		`{"choices":[{"index":0,"delta":{"reasoning":"hm"}}]}`,
		`{"choices":[{"index":0,"delta":{"content":"f gave \"42\""},"finish_reason":"stop"}]}`,
		`{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}`,
	}}
}

func TestACompactionStandsForAllButWhatTheUserSaid(t *testing.T) {
	t.Parallel()
	d := newDesk(t, notes())
	got := compacted(t, d)
	if got.Get("object").Str != "response.compaction" || got.Get("output.#.type").Raw != `["message","message","compaction"]` ||
		got.Get("usage.total_tokens").Int() != 13 || strings.Contains(got.Raw, "forty-two") {
		t.Fatalf("%s", got.Raw)
	}
	asked := string(d.engine.calls[0].Fields)
	for _, want := range []string{`"be short"`, `"first"`, `"forty-two"`, "replaced by what you write now", `"tool_call_id":"c1"`} {
		if !strings.Contains(asked, want) {
			t.Errorf("the model was not told %s: %s", want, asked)
		}
	}
	if strings.Contains(asked, `"tools":`) || d.engine.calls[0].Effect != nil || len(d.store.records) != 0 {
		t.Errorf("asked with tools, or kept: %s", asked)
	}

	// Sent back, the notes are a part of the context again.
	input := `{"model":"m","store":false,"input":` + strings.TrimSuffix(got.Get("output").Raw, "]") + `,{"role":"user","content":"go on"}]}`
	if _, err := d.service.Prepare(t.Context(), callerOf("ten_a"), parsed(t, input)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ tenant, body string }{
		"another organization": {"ten_b", input},
		"another model":        {"ten_a", strings.Replace(input, `"model":"m"`, `"model":"n"`, 1)},
		"a broken one":         {"ten_a", strings.Replace(input, `"encrypted_content":"`, `"encrypted_content":"x`, 1)},
	} {
		_, err := d.service.Prepare(t.Context(), callerOf(tenants.ID(c.tenant)), parsed(t, c.body))
		if p, ok := errors.AsType[*Problem](err); !ok || !strings.Contains(p.Message, "compaction item") {
			t.Errorf("%s went on with a context that it can't read: %v", name, err)
		}
	}
}

func TestNotesAreReadWhereTheyStand(t *testing.T) {
	t.Parallel()
	d := newDesk(t, notes())
	input := gjson.Parse(compacted(t, d).Get("output").Raw)
	items, err := ParseInput("input", input)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := Messages("", items, Dialect{Open: func(sealed string) (string, bool) {
		return d.service.deps.Sealer.Open("ten_a", "m", sealed)
	}})
	if err != nil || !strings.HasSuffix(gjson.GetBytes(messages, "2.content").Str, `f gave "42"`) || gjson.GetBytes(messages, "#").Int() != 3 {
		t.Errorf("%v %s", err, messages)
	}
}

func TestACountIsOfTheWholeChain(t *testing.T) {
	t.Parallel()
	d := newDesk(t, notes())
	run, err := d.service.Prepare(t.Context(), callerOf("ten_a"), parsed(t, `{"model":"m","input":"first words"}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Answer(t.Context(), &page{}); err != nil {
		t.Fatal(err)
	}
	n, err := d.service.Count(t.Context(), callerOf("ten_a"), parsed(t, `{"model":"m","input":"and more","previous_response_id":"`+run.id+`"}`))
	asked := string(d.engine.calls[1].Fields)
	if err != nil || n != int64(len(asked)) || !strings.Contains(asked, "first words") || !strings.Contains(asked, "and more") {
		t.Errorf("counted %d, %v of %s", n, err, asked)
	}
	if len(d.store.records) != 1 {
		t.Errorf("a count was kept: %d records", len(d.store.records))
	}
}
