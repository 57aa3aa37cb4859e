package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// How the official Python SDK reads a stream of events, for machines that have
// no PyPI: its rules, written anew, and held to a record of what it made of
// streams of all kinds (testdata/clients/python/recorded.json). Where the SDK is
// installed the record is held to it.

// pythonTold is what it hands out of a stream, and how it ends.
type pythonTold struct {
	Events []string `json:"events"`
	Text   string   `json:"text"`  // of the last delta's snapshot
	Fault  string   `json:"fault"` // kind of the exception; empty: there is a final response
}

// exception is one of Python by its name.
type exception string

func (e exception) Error() string { return string(e) }

const (
	errIndex     = exception("IndexError")
	errAssertion = exception("AssertionError")
	errRuntime   = exception("RuntimeError")
	errDecode    = exception("JSONDecodeError")
)

// pythonReader accumulates a response. Nil items: no event came yet.
type pythonReader struct {
	told  pythonTold
	begun bool
	items []pythonItem
	whole bool // the completed response is there
}

type pythonItem struct {
	kind  string
	parts []string // texts
}

func readAsPython(stream []byte) pythonTold {
	p := &pythonReader{told: pythonTold{Events: []string{}}}
	err := p.read(stream)
	if err == nil && !p.whole {
		err = errRuntime
	}
	if err != nil {
		p.told.Fault = err.Error()
	}
	return p.told
}

// read takes the stream apart. An event counts when its blank line comes. An id
// stays: from then on a comment's blank line is an event without data.
func (p *pythonReader) read(stream []byte) error {
	var data []string
	named, id := false, false
	for line := range bytes.Lines(bytes.ReplaceAll(stream, []byte("\r\n"), []byte("\n"))) {
		text := strings.TrimSuffix(string(line), "\n")
		if text != "" {
			name, value, _ := strings.Cut(text, ":")
			switch value = strings.TrimPrefix(value, " "); name {
			case "event":
				named = value != ""
			case "data":
				data = append(data, value)
			case "id":
				id = value != ""
			}
			continue
		}
		if !named && len(data) == 0 && !id {
			continue
		}
		all := strings.Join(data, "\n")
		if named, data = false, nil; strings.HasPrefix(all, "[DONE]") {
			return nil
		}
		if err := p.event(all); err != nil {
			return err
		}
	}
	return nil
}

func (p *pythonReader) event(data string) error {
	if !gjson.Valid(data) {
		return errDecode
	}
	e := gjson.Parse(data)
	if v := e.Get("error"); v.Exists() && v.Type != gjson.Null && v.Raw != "false" && v.Raw != "{}" && v.Raw != `""` {
		message := "An error occurred during streaming"
		if m := v.Get("message"); m.Type == gjson.String && m.Str != "" {
			message = m.Str
		}
		return exception("APIError: " + message)
	}
	kind := e.Get("type").Str
	switch {
	case p.begun:
		if err := p.accumulate(kind, e); err != nil {
			return err
		}
	case kind != "response.created":
		return errRuntime
	default:
		p.begun = true
	}
	p.told.Events = append(p.told.Events, kind)
	return nil
}

func (p *pythonReader) accumulate(kind string, e gjson.Result) error {
	if kind == "response.output_item.added" {
		p.items = append(p.items, pythonItem{kind: e.Get("item.type").Str})
		return nil
	}
	p.whole = p.whole || kind == "response.completed"
	wants := map[string]string{
		"response.content_part.added": "", "response.output_text.delta": "message", "response.output_text.done": "message",
		"response.function_call_arguments.delta": "function_call",
	}
	want, looks := wants[kind]
	if !looks {
		return nil
	}
	at, part := int(e.Get("output_index").Int()), int(e.Get("content_index").Int())
	if at >= len(p.items) {
		return errIndex
	}
	it := &p.items[at]
	switch {
	case want != "" && it.kind != want:
		return errAssertion
	case kind == "response.content_part.added":
		it.parts = append(it.parts, e.Get("part.text").Str)
	case want != "message":
	case part >= len(it.parts):
		return errIndex
	case kind == "response.output_text.delta":
		it.parts[part] += e.Get("delta").Str
		p.told.Text = it.parts[part]
	}
	return nil
}

func TestThePythonSDKReadsAsItsRulesSay(t *testing.T) {
	t.Parallel()
	const folder = "testdata/clients/python"
	raw, err := os.ReadFile(filepath.Join(folder, "recorded.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []struct {
		Name   string     `json:"name"`
		Stream string     `json:"stream"`
		Told   pythonTold `json:"told"`
	}
	if err := json.Unmarshal(raw, &rows); err != nil || len(rows) == 0 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, row := range rows {
		t.Run(row.Name, func(t *testing.T) {
			t.Parallel()
			if got := readAsPython([]byte(row.Stream)); !slices.Equal(got.Events, row.Told.Events) || got.Text != row.Told.Text || got.Fault != row.Told.Fault {
				t.Errorf("read as %+v, and the SDK has told %+v", got, row.Told)
			}
		})
	}
	t.Run("the record is the SDK's", func(t *testing.T) {
		t.Parallel()
		if _, err := os.Stat(filepath.Join(folder, ".venv/bin/python")); err != nil {
			t.Skip("the SDK isn't there: make test-clients installs it where PyPI is reached")
		}
		cmd := exec.CommandContext(t.Context(), ".venv/bin/python", "record.py")
		cmd.Dir = folder
		now, err := cmd.Output()
		if err != nil {
			var exit *exec.ExitError
			errors.As(err, &exit)
			t.Fatalf("%v\n%s", err, exit.Stderr)
		}
		if !bytes.Equal(bytes.TrimSpace(now), bytes.TrimSpace(raw)) {
			t.Errorf("it tells now\n%s", now)
		}
	})
}

// What we send is read to its end by these rules, with the text that the model
// said, and a failure is an exception with our words.
func TestThePythonSDKReadsOurStreams(t *testing.T) {
	t.Parallel()
	r := startRig(t)
	for play, want := range map[string]pythonTold{
		"text":      {Text: "Hello, weir. 水門 \U0001f30a"},
		"reasoning": {Text: "So it is."},
		"mixed":     {Text: "I look. \n\n"},
		"loop":      {},
		"parallel":  {},
		"custom":    {},
		"json":      {Text: `{"answer":42}`},
		"refusal":   {},
		"nothing":   {},
		"length":    {Text: "Cut o", Fault: "RuntimeError"}, // it waits for response.completed
		"broken":    {Text: "Half of ", Fault: "APIError: The model server broke off its answer."},
		"fault":     {Text: "Half of ", Fault: "APIError: The model server broke off its answer."},
	} {
		t.Run(play, func(t *testing.T) {
			t.Parallel()
			model := "scripted"
			if want.Fault != "" {
				model = "flaky"
			}
			res, err := post(t.Context(), r.url+"/v1/responses", r.key, `{"model":"`+model+`","stream":true,"input":"[play `+play+`]"}`)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			raw, err := io.ReadAll(res.Body)
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("%d %s %v", res.StatusCode, raw, err)
			}
			if got := readAsPython(raw); got.Text != want.Text || got.Fault != want.Fault {
				t.Errorf("read as %+v, want %+v", got, want)
			}
		})
	}
}
