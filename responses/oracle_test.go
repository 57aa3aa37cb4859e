package responses

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// oracle reads a stream as the strictest clients do and finds the first thing
// that one of them would trip over.
type oracle struct {
	seq      int
	id       string
	items    []*seenItem
	ids      map[string]bool
	terminal string
	done     bool
}

type seenItem struct {
	id, kind, callID string
	parts            []string // types
	open             bool     // the last part
	text             string   // of the open part, or the payload of a call
	final            json.RawMessage
}

type seenEvent struct {
	Type     string `json:"type"`
	Seq      *int   `json:"sequence_number"`
	Response *struct {
		ID     string            `json:"id"`
		Object string            `json:"object"`
		Status string            `json:"status"`
		Model  string            `json:"model"`
		Output []json.RawMessage `json:"output"`
		Usage  json.RawMessage   `json:"usage"`
	} `json:"response"`
	OutputIndex  *int            `json:"output_index"`
	ContentIndex *int            `json:"content_index"`
	ItemID       string          `json:"item_id"`
	Item         json.RawMessage `json:"item"`
	Part         *struct {
		Type string `json:"type"`
	} `json:"part"`
	Delta     *string         `json:"delta"`
	Text      *string         `json:"text"`
	Refusal   *string         `json:"refusal"`
	Arguments *string         `json:"arguments"`
	Input     *string         `json:"input"`
	Logprobs  json.RawMessage `json:"logprobs"`
}

// read checks all of a stream.
func (o *oracle) read(stream []byte) error {
	o.ids = map[string]bool{}
	for raw := range bytes.SplitSeq(stream, []byte("\n\n")) {
		if len(raw) == 0 {
			continue
		}
		if o.done {
			return fmt.Errorf("%q after [DONE]", raw)
		}
		if string(raw) == "data: [DONE]" {
			o.done = true
			continue
		}
		name, data, ok := bytes.Cut(raw, []byte("\ndata: "))
		if !ok || bytes.ContainsAny(data, "\n\r") {
			return fmt.Errorf("%q is no event", raw)
		}
		var e seenEvent
		if err := json.Unmarshal(data, &e); err != nil {
			return fmt.Errorf("%s: %w", data, err)
		}
		if string(name) != "event: "+e.Type {
			return fmt.Errorf("%q names the event %q", name, e.Type)
		}
		if err := o.event(&e); err != nil {
			return fmt.Errorf("%s: %w", data, err)
		}
	}
	if !o.done || o.terminal == "" {
		return fmt.Errorf("the stream has no end (terminal %q, done %v)", o.terminal, o.done)
	}
	return nil
}

func (o *oracle) event(e *seenEvent) error {
	switch {
	case e.Seq == nil || *e.Seq != o.seq:
		return fmt.Errorf("sequence number, want %d", o.seq)
	case o.seq == 0 && e.Type != "response.created":
		return fmt.Errorf("the first event is not response.created")
	case o.terminal != "":
		return fmt.Errorf("an event after %s", o.terminal)
	}
	o.seq++
	switch e.Type {
	case "response.created", "response.queued", "response.in_progress":
		return o.object(e, false)
	case "response.completed", "response.incomplete", "response.failed":
		o.terminal = e.Type
		return o.object(e, true)
	case "error", "keepalive":
		return nil
	case "response.output_item.added":
		return o.added(e)
	}
	if e.OutputIndex == nil || *e.OutputIndex >= len(o.items) || *e.OutputIndex < 0 {
		return fmt.Errorf("no such output_index")
	}
	return o.items[*e.OutputIndex].event(e)
}

func (o *oracle) object(e *seenEvent, terminal bool) error {
	r := e.Response
	if r == nil || r.ID == "" || r.Object != "response" || r.Model == "" || r.Output == nil {
		return fmt.Errorf("no whole response")
	}
	if o.id == "" {
		o.id = r.ID
	}
	if r.ID != o.id {
		return fmt.Errorf("the id changed from %s", o.id)
	}
	if !terminal {
		return nil
	}
	if r.Status == Failed {
		return o.broken(r.Output)
	}
	if len(r.Output) != len(o.items) {
		return fmt.Errorf("%d items in the output, %d were announced", len(r.Output), len(o.items))
	}
	for i, it := range o.items {
		if it.final == nil {
			return fmt.Errorf("item %d is not done", i)
		}
		if !bytes.Equal(it.final, r.Output[i]) {
			return fmt.Errorf("item %d differs from its output_item.done %s", i, it.final)
		}
	}
	return nil
}

// broken checks the output of a failed response: all that was done, and of the
// rest at most the beginning of a text. Clients act on what is done.
func (o *oracle) broken(output []json.RawMessage) error {
	for _, it := range o.items {
		var shown itemShape
		if len(output) > 0 {
			if err := json.Unmarshal(output[0], &shown); err != nil {
				return err
			}
		}
		if shown.ID != it.id && it.final == nil {
			continue
		}
		switch {
		case shown.ID != it.id:
			return fmt.Errorf("item %s was done and is not in the output", it.id)
		case it.final != nil && !bytes.Equal(it.final, output[0]):
			return fmt.Errorf("item %s differs from its output_item.done %s", it.id, it.final)
		case it.final == nil && (shown.Status != Incomplete || it.callID != ""):
			return fmt.Errorf("item %s was never done", it.id)
		}
		output = output[1:]
	}
	if len(output) > 0 {
		return fmt.Errorf("%s was never announced", output[0])
	}
	return nil
}

type itemShape struct {
	ID        string          `json:"id"`
	Type      string          `json:"type"`
	Status    string          `json:"status"`
	Role      string          `json:"role"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments *string         `json:"arguments"`
	Input     *string         `json:"input"`
	Content   json.RawMessage `json:"content"`
	Summary   json.RawMessage `json:"summary"`
}

func (o *oracle) added(e *seenEvent) error {
	var it itemShape
	if err := json.Unmarshal(e.Item, &it); err != nil {
		return err
	}
	switch {
	case e.OutputIndex == nil || *e.OutputIndex != len(o.items):
		return fmt.Errorf("output_index, want %d", len(o.items))
	case it.ID == "" || o.ids[it.ID]:
		return fmt.Errorf("the id is missing or taken")
	case it.CallID != "" && o.ids[it.CallID]:
		return fmt.Errorf("the call_id is taken")
	case it.Type == typeMessage && (it.Role != "assistant" || string(it.Content) != "[]"):
		return fmt.Errorf("a message begins with no content")
	case it.Type == typeCall && (it.CallID == "" || it.Name == "" || it.Arguments == nil || *it.Arguments != ""):
		return fmt.Errorf("a call begins with a name and without arguments")
	}
	o.ids[it.ID], o.ids[it.CallID] = true, it.CallID != ""
	o.items = append(o.items, &seenItem{id: it.ID, kind: it.Type, callID: it.CallID})
	return nil
}

func (it *seenItem) event(e *seenEvent) error {
	if e.Type != "response.output_item.done" && e.ItemID != it.id {
		return fmt.Errorf("item_id, want %s", it.id)
	}
	if it.final != nil {
		return fmt.Errorf("an event after the item was done")
	}
	name := strings.TrimPrefix(e.Type, "response.")
	switch name {
	case "content_part.added":
		if it.open || e.ContentIndex == nil || *e.ContentIndex != len(it.parts) || e.Part == nil {
			return fmt.Errorf("content_index, want %d, and no open part", len(it.parts))
		}
		it.open, it.text = true, ""
		it.parts = append(it.parts, e.Part.Type)
		return nil
	case "output_item.done":
		return it.finish(e)
	case "function_call_arguments.delta", "custom_tool_call_input.delta":
		if e.Delta == nil || it.callID == "" {
			return fmt.Errorf("no delta of a call")
		}
		it.text += *e.Delta
		return nil
	case "function_call_arguments.done", "custom_tool_call_input.done":
		got := e.Arguments
		if it.kind == typeCustomCall {
			got = e.Input
		}
		if got == nil || it.kind == typeCall && *got != it.text || !strings.HasPrefix(*got, it.text) {
			return fmt.Errorf("the payload is not what the deltas said: %q", it.text)
		}
		it.text = *got
		return nil
	}
	if e.ContentIndex == nil || *e.ContentIndex != len(it.parts)-1 {
		return fmt.Errorf("content_index, want %d", len(it.parts)-1)
	}
	return it.partEvent(name, e)
}

func (it *seenItem) partEvent(name string, e *seenEvent) error {
	kind := it.parts[len(it.parts)-1]
	family, event, _ := strings.Cut(name, ".")
	if family != "content_part" && family != kind {
		return fmt.Errorf("in a part of type %s", kind)
	}
	switch event {
	case "delta":
		if !it.open || e.Delta == nil {
			return fmt.Errorf("no delta of an open part")
		}
		if family == "output_text" && (len(e.Logprobs) == 0 || e.Logprobs[0] != '[') {
			return fmt.Errorf("no logprobs")
		}
		it.text += *e.Delta
	case "done":
		if family == "content_part" {
			if !it.open {
				return fmt.Errorf("the part is not open")
			}
			it.open = false
			return nil
		}
		text := e.Text
		if family == "refusal" {
			text = e.Refusal
		}
		if text == nil || *text != it.text {
			return fmt.Errorf("the text is not what the deltas said: %q", it.text)
		}
	default:
		return fmt.Errorf("unknown event")
	}
	return nil
}

func (it *seenItem) finish(e *seenEvent) error {
	var got itemShape
	if err := json.Unmarshal(e.Item, &got); err != nil {
		return err
	}
	switch {
	case it.open:
		return fmt.Errorf("a part is open")
	case got.ID != it.id || got.Type != it.kind || got.CallID != it.callID:
		return fmt.Errorf("the item is not the one that was added")
	case got.Status != Completed && got.Status != Incomplete:
		return fmt.Errorf("status %q", got.Status)
	case it.kind == typeCall && (got.Arguments == nil || *got.Arguments != it.text):
		return fmt.Errorf("the arguments are not those of the deltas")
	}
	it.final = e.Item
	return nil
}
