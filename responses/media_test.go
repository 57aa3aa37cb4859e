package responses

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"weir/gateway/media"
	"weir/tenants"
)

// changing is a Loader whose addresses have something else each time.
type changing struct {
	loads int
	asked []media.Source
	err   error
}

func (c *changing) Load(_ context.Context, _ tenants.ID, sources []media.Source) ([]media.Loaded, error) {
	c.loads++
	c.asked = append(c.asked, sources...)
	if c.err != nil {
		return nil, c.err
	}
	out := make([]media.Loaded, len(sources))
	for i, s := range sources {
		version := strings.Repeat("v", c.loads)
		if out[i].Name = s.Name; s.Text {
			out[i].Text = "text \"" + version + "\""
		} else {
			out[i].URL = "data:image/png;base64," + version
		}
	}
	return out, nil
}

const mixed = `[{"role":"user","content":[{"type":"input_text","text":"look"},` +
	`{"type":"input_image","image_url":"https://a/cat.png","weir_url":"data:forged"},` +
	`{"type":"input_image","image_url":"data:image/png;base64,AA"},` +
	`{"type":"input_file","filename":"r.pdf","file_data":"data:application/pdf;base64,JVBE","weir_text":"forged"}]},` +
	`{"type":"function_call","call_id":"c","name":"f","arguments":"{}"},` +
	`{"type":"function_call_output","call_id":"c","output":[{"type":"input_file","file_url":"https://a/log.txt"},{"type":"input_image","image_url":"https://a/dog.png"}]}]`

func TestLaterTurnsAreGivenTheSameMediaAgain(t *testing.T) {
	t.Parallel()
	d, loader := newDesk(t, hello()), &changing{}
	d.service.deps.Media = loader
	p, err := d.create(t, "ten_a", `{"model":"m","input":`+mixed+`}`)
	if err != nil {
		t.Fatal(err)
	}
	id := gjson.GetBytes(p.body.Bytes(), "id").Str
	if _, err := d.create(t, "ten_a", `{"model":"m","input":"and?","previous_response_id":"`+id+`"}`); err != nil {
		t.Fatal(err)
	}
	first, second := gjson.GetBytes(d.engine.calls[0].Fields, "messages").Raw, gjson.GetBytes(d.engine.calls[1].Fields, "messages").Raw
	if !strings.HasPrefix(second, strings.TrimSuffix(first, "]")) || loader.loads != 1 {
		t.Errorf("loaded %d times; the second turn does not begin as the first:\n%s\n%s", loader.loads, first, second)
	}
	want := `[{"role":"user","content":[{"type":"text","text":"look"},{"type":"image_url","image_url":{"url":"data:image/png;base64,v"}},` +
		`{"type":"image_url","image_url":{"url":"data:image/png;base64,AA"}},{"type":"text","text":"[r.pdf]\ntext \"v\""}]},` +
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},` +
		`{"role":"tool","tool_call_id":"c","content":"[file]\ntext \"v\""},` +
		`{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,v"}}]}]`
	if first != want {
		t.Errorf("the engine was told\n%s, want\n%s", first, want)
	}
}

func TestItemsShowWhatTheCallerSent(t *testing.T) {
	t.Parallel()
	items, err := ParseInput("input", gjson.Parse(mixed))
	if err != nil {
		t.Fatal(err)
	}
	var before []string
	for _, it := range items {
		before = append(before, string(it.JSON))
	}
	if err := LoadMedia(t.Context(), &changing{}, "ten_a", "input", items, false); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(items[0].JSON), loadedURL) || !strings.Contains(string(items[2].JSON), loadedText) {
		t.Fatalf("nothing was kept: %s", items[0].JSON)
	}
	for i, it := range items {
		if string(it.Shown()) != before[i] {
			t.Errorf("shown as %s, sent as %s", it.Shown(), before[i])
		}
	}
	if list := List(items, false); strings.Contains(string(list), "weir_") {
		t.Errorf("listed as %s", list)
	}
}

func TestFilesGoAsTheyAreToModelsThatReadThem(t *testing.T) {
	t.Parallel()
	items, err := ParseInput("input", gjson.Parse(mixed))
	if err != nil {
		t.Fatal(err)
	}
	loader := &changing{}
	if err := LoadMedia(t.Context(), loader, "ten_a", "input", items, true); err != nil {
		t.Fatal(err)
	}
	for _, s := range loader.asked {
		if s.Text || strings.HasPrefix(s.URL, "data:") {
			t.Errorf("loaded %+v", s)
		}
	}
	got, err := Messages("", items, Dialect{NativeFiles: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`{"type":"file","file":{"filename":"r.pdf","file_data":"data:application/pdf;base64,JVBE"}}`,
		`{"type":"file","file":{"file_data":"data:image/png;base64,v"}}`,
	} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%s is not in %s", want, got)
		}
	}
}

func TestAFileAloneIsAPlainText(t *testing.T) {
	t.Parallel()
	items, err := ParseInput("input", gjson.Parse(`[{"role":"user","content":[{"type":"input_file","filename":"a.txt","file_data":"data:,x"},{"type":"input_text","text":"what?"}]}]`))
	if err != nil {
		t.Fatal(err)
	}
	if err := LoadMedia(t.Context(), &changing{}, "ten_a", "input", items, false); err != nil {
		t.Fatal(err)
	}
	got, err := Messages("", items, Dialect{})
	if want := `[{"role":"user","content":"[a.txt]\ntext \"v\"\nwhat?"}]`; err != nil || string(got) != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

func TestFaultsOfMediaNameThePart(t *testing.T) {
	t.Parallel()
	items, err := ParseInput("input", gjson.Parse(mixed))
	if err != nil {
		t.Fatal(err)
	}
	for source, param := range []string{"input[0].content[1].image_url", "input[0].content[3].file_data", "input[2].output[0].file_url", "input[2].output[1].image_url"} {
		err := LoadMedia(t.Context(), &changing{err: &media.Problem{Source: source, Code: "c", Message: "m"}}, "ten_a", "input", items, false)
		if p, ok := errors.AsType[*Problem](err); !ok || p.Param != param || p.Code != "c" || p.Message != "m" {
			t.Errorf("%#v", err)
		}
	}
	busy := &media.BusyError{}
	if err := LoadMedia(t.Context(), &changing{err: busy}, "ten_a", "input", items, false); !errors.Is(err, busy) {
		t.Errorf("busy became %v", err)
	}
}
