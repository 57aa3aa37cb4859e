package responses

import (
	"slices"

	"github.com/tidwall/gjson"
)

// item is one item of the answer while it grows.
type item struct {
	id    string
	kind  string
	index int

	parts [][]byte // done, as JSON
	part  partKind // that is open
	grown []byte   // text of the open part, escaped; or a call's payload
	probs []byte   // log probabilities of the open part, joined

	tool   tool
	callID string
	custom *unwrapper // of a custom tool's arguments

	final []byte // the whole item, once it is done
}

// partKind is a kind of content.
type partKind int

const (
	partNone partKind = iota
	partText
	partRefusal
	partReasoning
)

// member is the name of the part's text in events and in the part.
func (k partKind) member() string {
	if k == partRefusal {
		return "refusal"
	}
	return "text"
}

// family is the first part of the names of the part's events.
func (k partKind) family() string {
	switch k {
	case partRefusal:
		return "response.refusal"
	case partReasoning:
		return "response.reasoning_text"
	default:
		return "response.output_text"
	}
}

func (k partKind) render(text, probs []byte) string {
	switch k {
	case partRefusal:
		return `{"type":"refusal","refusal":"` + string(text) + `"}`
	case partReasoning:
		return `{"type":"reasoning_text","text":"` + string(text) + `"}`
	default:
		return `{"type":"output_text","text":"` + string(text) + `","annotations":[],"logprobs":[` + string(probs) + `]}`
	}
}

// open begins an item.
func (s *stream) open(kind string) *item {
	it := &item{kind: kind, index: len(s.items)}
	switch kind {
	case typeReasoning:
		it.id = newID(reasoningPrefix)
	case typeCall:
		it.id = newID(callPrefix)
	case typeCustomCall:
		it.id = newID(customCallPrefix)
	default:
		it.id = newID(messagePrefix)
	}
	s.items = append(s.items, it)
	if kind == typeMessage || kind == typeReasoning {
		s.text = it
		s.itemEvent("response.output_item.added", it, it.render(InProgress, ""))
	}
	return it
}

// render is the item as JSON in the given status.
func (it *item) render(status, sealed string) []byte {
	b := []byte(`{"id":"` + it.id + `","type":"` + it.kind + `","status":"` + status + `"`)
	switch it.kind {
	case typeMessage:
		b = append(b, `,"role":"assistant","content":[`...)
		b = append(appendParts(b, it.parts), ']')
	case typeReasoning:
		b = append(b, `,"summary":[],"content":[`...)
		b = append(appendParts(b, it.parts), ']')
		if sealed != "" {
			b = member(b, "encrypted_content", quote(sealed))
		}
	default:
		b = member(b, "call_id", quote(it.callID))
		b = member(b, "name", quote(it.tool.name))
		if it.tool.namespace != "" {
			b = member(b, "namespace", quote(it.tool.namespace))
		}
		b = append(append(append(b, `,"`+it.payload()+`":"`...), it.grown...), '"')
	}
	return append(b, '}')
}

// payload is the member that holds what a call is called with.
func (it *item) payload() string {
	if it.kind == typeCustomCall {
		return "input"
	}
	return "arguments"
}

func appendParts(b []byte, parts [][]byte) []byte {
	for i, p := range parts {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, p...)
	}
	return b
}

// reasoning takes a piece of the model's reasoning.
func (s *stream) reasoning(escaped string) {
	if escaped == "" {
		return
	}
	if s.text == nil || s.text.kind != typeReasoning {
		s.closeText(false)
		s.held = ""
		s.open(typeReasoning)
	}
	s.part(partReasoning)
	s.grow(escaped, nil)
}

// message takes a piece of text. White space that begins a message is held
// back: before a call, or behind reasoning, it is no message.
func (s *stream) message(kind partKind, escaped string, probs gjson.Result) {
	if escaped == "" {
		return
	}
	if s.text == nil || s.text.kind != typeMessage {
		if blank(s.held + escaped) {
			s.held += escaped
			return
		}
		escaped, s.held = s.held+escaped, ""
		s.closeText(false)
		s.open(typeMessage)
	}
	s.part(kind)
	var raw []byte
	if probs.IsArray() {
		raw = []byte(inner(probs.Raw))
	}
	s.grow(escaped, raw)
}

// part opens a part of the open item, unless it is open.
func (s *stream) part(kind partKind) {
	it := s.text
	if it.part == kind {
		return
	}
	s.closePart(it)
	it.part = kind
	s.partEvent("response.content_part.added", it, kind.render(nil, nil))
}

// grow appends a delta of the open part.
func (s *stream) grow(escaped string, probs []byte) {
	it := s.text
	it.grown = append(it.grown, escaped...)
	s.event(it.part.family() + ".delta")
	s.placePart(it)
	s.textMember("delta", escaped)
	if it.part == partText {
		s.out = append(append(append(s.out, `,"logprobs":[`...), probs...), ']')
		if len(probs) > 0 {
			if len(it.probs) > 0 {
				it.probs = append(it.probs, ',')
			}
			it.probs = append(it.probs, probs...)
		}
	}
	s.endEvent()
}

func (s *stream) closePart(it *item) {
	if it.part == partNone {
		return
	}
	s.event(it.part.family() + ".done")
	s.placePart(it)
	s.textMember(it.part.member(), string(it.grown))
	if it.part == partText {
		s.out = append(append(append(s.out, `,"logprobs":[`...), it.probs...), ']')
	}
	s.endEvent()
	part := it.part.render(it.grown, it.probs)
	s.partEvent("response.content_part.done", it, part)
	it.parts = append(it.parts, []byte(part))
	it.part, it.grown, it.probs = partNone, nil, nil
}

// closeText ends the open message or reasoning item.
func (s *stream) closeText(incomplete bool) {
	it := s.text
	if it == nil {
		return
	}
	s.text = nil
	reasoning := string(it.grown)
	s.closePart(it)
	sealed := ""
	if it.kind == typeReasoning && s.seal != nil && !incomplete {
		sealed = s.seal(gjson.Parse(`"` + reasoning + `"`).String())
	}
	s.done(it, incomplete, sealed)
}

func (s *stream) done(it *item, incomplete bool, sealed string) {
	status := Completed
	if incomplete {
		status = Incomplete
	}
	it.final = it.render(status, sealed)
	s.itemEvent("response.output_item.done", it, it.final)
}

// close ends all that is open, in the order of the items.
func (s *stream) close(incomplete bool) {
	if s.held != "" && len(s.items) == 0 {
		held := s.held
		s.held = ""
		s.open(typeMessage)
		s.part(partText)
		s.grow(held, nil)
	}
	for _, it := range s.items {
		switch {
		case it.final != nil:
		case it == s.text:
			s.closeText(incomplete)
		default:
			s.closeCall(it, incomplete)
		}
	}
	s.calls = nil
}

// abandon ends what is open in silence. Clients act on an item that is done,
// whatever its status: they would run half a call, and repeat half a message
// when they try again. What was said so far stays in the response.
func (s *stream) abandon() {
	s.held = ""
	s.items = slices.DeleteFunc(s.items, func(it *item) bool { return it.final == nil && it != s.text })
	sent, seq := len(s.out), s.seq
	s.close(true)
	s.out, s.seq = s.out[:sent], seq
}
