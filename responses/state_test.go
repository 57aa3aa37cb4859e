package responses

import (
	"errors"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// What a response goes on from brings items, and nothing else.
func TestALaterTurnInheritsItemsAlone(t *testing.T) {
	t.Parallel()
	d := newDesk(t, hello())
	p, err := d.create(t, "ten_a", `{"model":"m","input":[{"role":"developer","content":"be brief"},{"role":"user","content":"one"}],`+
		`"instructions":"speak like a pirate","tools":[{"type":"function","name":"f"}],"tool_choice":"required","temperature":0.5,"top_p":0.5,`+
		`"text":{"format":{"type":"json_object"}},"reasoning":{"effort":"low"},"max_output_tokens":99,"metadata":{"a":"b"},"parallel_tool_calls":false}`)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = d.create(t, "ten_a", `{"model":"n","input":"two","previous_response_id":"`+gjson.GetBytes(p.body.Bytes(), "id").Str+`"}`); err != nil {
		t.Fatal(err)
	}
	told := gjson.ParseBytes(d.engine.calls[1].Fields)
	if got := told.Get("messages").Raw; got != `[{"role":"system","content":"be brief"},{"role":"user","content":"one"},{"role":"assistant","content":"hello"},{"role":"user","content":"two"}]` {
		t.Errorf("the engine was told %s", got)
	}
	told.ForEach(func(name, v gjson.Result) bool {
		switch name.Str {
		case "model", "stream", "stream_options", "messages":
		default:
			t.Errorf("the engine was told %s: %s", name.Str, v.Raw)
		}
		return true
	})
	shown := gjson.ParseBytes(p.body.Bytes())
	for name, want := range map[string]string{
		"model": `"n"`, "instructions": "null", "tools": "[]", "tool_choice": `"auto"`, "metadata": "{}", "temperature": "1", "top_p": "1",
		"text": `{"format":{"type":"text"}}`, "max_output_tokens": "null", "parallel_tool_calls": "true", "reasoning": "null",
	} {
		if got := shown.Get(name).Raw; got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// What a response ended as decides whether another may go on from it.
func TestFromWhichResponsesOneMayGoOn(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status  string
		answer  []string
		fault   string // a part of it; empty: none
		context string // of the second turn, by role
	}{
		"queued":              {Queued, hello().events, "still in progress", ""},
		"in progress":         {InProgress, hello().events, "still in progress", ""},
		"completed":           {Completed, hello().events, "", `["user","assistant","user"]`},
		"incomplete":          {Incomplete, []string{delta(`"content":"he"`), finished("length")}, "", `["user","assistant","user"]`},
		"failed":              {Failed, hello().events, "", `["user","assistant","user"]`},
		"cancelled":           {Cancelled, hello().events, "", `["user","assistant","user"]`},
		"with half of a call": {Incomplete, []string{delta(`"content":"he"`), delta(`"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":"{\"a"}}]`), finished("length")}, "", `["user","assistant","user"]`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, &script{events: tt.answer})
			p, err := d.create(t, "ten_a", `{"model":"m","input":"one","tools":[{"type":"function","name":"f"}]}`)
			if err != nil {
				t.Fatal(err)
			}
			id := gjson.GetBytes(p.body.Bytes(), "id").Str
			d.store.records[id].Status = tt.status
			_, err = d.create(t, "ten_a", `{"model":"m","input":"two","previous_response_id":"`+id+`"}`)
			problem, refused := errors.AsType[*Problem](err)
			switch {
			case tt.fault == "" && err != nil:
				t.Fatal(err)
			case tt.fault != "" && (!refused || problem.Param != "previous_response_id" || !strings.Contains(problem.Message, tt.fault)):
				t.Fatalf("refused as %v", err)
			case tt.fault != "":
				return
			}
			messages := gjson.GetBytes(d.engine.calls[1].Fields, "messages")
			if got := messages.Get("#.role").Raw; got != tt.context || messages.Get("#.tool_calls").Raw != "[]" {
				t.Errorf("the engine was told %s", messages.Raw)
			}
		})
	}
}

// What was not kept looks like what never was.
func TestNobodyGoesOnFromWhatIsNotKept(t *testing.T) {
	t.Parallel()
	d := newDesk(t, hello())
	p, err := d.create(t, "ten_a", `{"model":"m","input":"one","store":false}`)
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.create(t, "ten_a", `{"model":"m","input":"two","previous_response_id":"`+gjson.GetBytes(p.body.Bytes(), "id").Str+`"}`)
	if problem, ok := errors.AsType[*Problem](err); !ok || problem.Code != "previous_response_not_found" || problem.Param != "previous_response_id" {
		t.Errorf("error %v", err)
	}
}

func TestAListIsPagedFromTheNewest(t *testing.T) {
	t.Parallel()
	var items []Item
	for _, id := range []string{"a", "b", "c", "d"} {
		items = append(items, Item{ID: id})
	}
	for name, tt := range map[string]struct {
		page Page
		want string
		more bool
	}{
		"the newest first":       {Page{}, "dcba", false},
		"the oldest first":       {Page{Asc: true}, "abcd", false},
		"so many":                {Page{Limit: 3}, "dcb", true},
		"exactly all":            {Page{Limit: 4}, "dcba", false},
		"after an item":          {Page{Limit: 2, After: "c"}, "ba", false},
		"after an item, upwards": {Page{Limit: 1, After: "b", Asc: true}, "c", true},
		"after the last":         {Page{After: "a"}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page, more, err := tt.page.Cut(items)
			got := ""
			for _, it := range page {
				got += it.ID
			}
			if err != nil || got != tt.want || more != tt.more {
				t.Errorf("%q, more %v, %v; want %q, %v", got, more, err, tt.want, tt.more)
			}
		})
	}
	if _, _, err := (Page{After: "none"}).Cut(items); err == nil {
		t.Error("after an item that isn't there it is a page all the same")
	}
}
