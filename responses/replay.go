package responses

import (
	"github.com/tidwall/gjson"
	"github.com/tidwall/sjson"
)

// replay makes the events of a finished response from its object: those that a
// stream would have had if each text had come in one piece.
func replay(object []byte) []byte {
	v := gjson.ParseBytes(object)
	s := &stream{}
	early := object
	for name, raw := range map[string]string{
		"status": `"in_progress"`, "completed_at": "null", "error": "null", "incomplete_details": "null", "output": "[]", "usage": "null",
	} {
		if changed, err := sjson.SetRawBytes(early, name, []byte(raw)); err == nil {
			early = changed
		}
	}
	for _, name := range []string{"response.created", "response.in_progress"} {
		s.event(name)
		s.out = append(append(s.out, `,"response":`...), early...)
		s.endEvent()
	}
	for i, it := range v.Get("output").Array() {
		s.replayItem(i, it)
	}
	s.terminalOf(object)
	return s.out
}

func (s *stream) replayItem(index int, v gjson.Result) {
	it := &item{id: v.Get("id").Str, index: index, kind: v.Get("type").Str}
	body := "content"
	switch it.kind {
	case typeCall:
		body = "arguments"
	case typeCustomCall:
		body = "input"
	}
	begun := []byte(v.Raw)
	empty := `""`
	if body == "content" {
		empty = "[]"
	}
	for name, raw := range map[string]string{"status": `"in_progress"`, body: empty} {
		if !v.Get(name).Exists() {
			continue
		}
		if changed, err := sjson.SetRawBytes(begun, name, []byte(raw)); err == nil {
			begun = changed
		}
	}
	s.itemEvent("response.output_item.added", it, begun)
	if body == "content" {
		for _, part := range v.Get("content").Array() {
			s.replayPart(it, part)
		}
	} else {
		s.replayCall(it, v, body)
	}
	s.itemEvent("response.output_item.done", it, []byte(v.Raw))
}

func (s *stream) replayPart(it *item, part gjson.Result) {
	family, text := "response.output_text", "text"
	switch part.Get("type").Str {
	case "refusal":
		family, text = "response.refusal", "refusal"
	case "reasoning_text":
		family = "response.reasoning_text"
	}
	empty, err := sjson.SetBytes([]byte(part.Raw), text, "")
	if err != nil {
		empty = []byte(part.Raw)
	}
	said := inner(part.Get(text).Raw)
	s.partEvent("response.content_part.added", it, string(empty))
	for _, e := range [][2]string{{".delta", "delta"}, {".done", text}} {
		if e[0] == ".delta" && said == "" {
			continue
		}
		s.event(family + e[0])
		s.placePart(it)
		s.textMember(e[1], said)
		if family == "response.output_text" {
			s.out = append(s.out, `,"logprobs":[]`...)
		}
		s.endEvent()
	}
	s.partEvent("response.content_part.done", it, part.Raw)
	it.parts = append(it.parts, nil)
}

func (s *stream) replayCall(it *item, v gjson.Result, body string) {
	family := "response.function_call_arguments"
	if body == "input" {
		family = "response.custom_tool_call_input"
	}
	said := inner(v.Get(body).Raw)
	if said != "" {
		s.event(family + ".delta")
		s.place(it)
		s.textMember("delta", said)
		s.endEvent()
	}
	s.event(family + ".done")
	s.place(it)
	if body == "arguments" {
		s.textMember("name", inner(v.Get("name").Raw))
	}
	s.textMember(body, said)
	s.endEvent()
}
