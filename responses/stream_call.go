package responses

import (
	"strings"

	"github.com/tidwall/gjson"
)

// call takes a fragment of a tool call.
func (s *stream) call(v gjson.Result) {
	at := int(v.Get("index").Int())
	it := s.calls[at]
	if it == nil {
		name := v.Get("function.name").String()
		if name == "" || s.serial && len(s.calls) > 0 {
			return // nobody could answer a call of nothing
		}
		it = s.openCall(at, v.Get("id").String(), name)
	}
	s.growCall(it, v.Get("function.arguments"))
}

// openCall ends a message that stands before the call.
func (s *stream) openCall(at int, id, name string) *item {
	s.closeText(false)
	s.held = ""
	what := s.tools.find(name)
	kind := typeCall
	if what.custom {
		kind = typeCustomCall
	}
	it := s.open(kind)
	it.tool, it.callID = what, s.freshCallID(id)
	if what.custom {
		it.custom = &unwrapper{}
	}
	if s.calls == nil {
		s.calls = map[int]*item{}
	}
	s.calls[at] = it
	s.itemEvent("response.output_item.added", it, it.render(InProgress, ""))
	return it
}

// freshCallID is the engine's id, unless another call of the answer has it:
// clients join outputs to calls by it.
func (s *stream) freshCallID(id string) string {
	for _, it := range s.items {
		if it.callID == id {
			id = ""
			break
		}
	}
	if id == "" || len(id) > 64 {
		return newID("call_")
	}
	return id
}

// growCall takes a piece of a call's arguments: a JSON string that holds a
// part of a JSON text. Some engines send the arguments as an object.
func (s *stream) growCall(it *item, arguments gjson.Result) {
	escaped := ""
	switch {
	case arguments.Type == gjson.String:
		escaped = inner(arguments.Raw)
	case arguments.IsObject():
		escaped = inner(quote(arguments.Raw))
	}
	if escaped == "" {
		return
	}
	family := "response.function_call_arguments"
	if it.custom != nil {
		family = "response.custom_tool_call_input"
		escaped = it.custom.next(gjson.Parse(`"` + escaped + `"`).String())
		if escaped == "" {
			return
		}
	}
	it.grown = append(it.grown, escaped...)
	s.event(family + ".delta")
	s.place(it)
	s.textMember("delta", escaped)
	s.endEvent()
}

func (s *stream) closeCall(it *item, incomplete bool) {
	family := "response.function_call_arguments"
	if it.custom != nil {
		family = "response.custom_tool_call_input"
		it.grown = append(it.grown, it.custom.rest()...)
	}
	s.event(family + ".done")
	s.place(it)
	if it.custom == nil {
		s.textMember("name", inner(quote(it.tool.name)))
	}
	s.textMember(it.payload(), string(it.grown))
	s.endEvent()
	s.done(it, incomplete, "")
}

// unwrapper finds the one text of a custom tool in the arguments of the
// function that stands for it, {"input":"..."}, as they come in. What it gives
// out is escaped as the model escaped it.
type unwrapper struct {
	seen   strings.Builder // all of the arguments
	at     int             // how much of it was given out or skipped
	inside bool            // of the text
	ended  bool
}

// next takes more of the arguments and returns what it adds to the text, whole
// escapes only.
func (u *unwrapper) next(more string) string {
	u.seen.WriteString(more)
	all := u.seen.String()
	if !u.inside && !u.ended {
		start, found := valueOfInput(all)
		if !found {
			return ""
		}
		u.inside, u.at = true, start
	}
	if u.ended {
		return ""
	}
	return u.escaped(all)
}

// escaped reads on from where it stopped. A model may have left raw control
// characters in a string, or have made up escapes: both are mended, since what
// comes out has to be JSON.
func (u *unwrapper) escaped(all string) string {
	var out strings.Builder
	for u.at < len(all) {
		switch c := all[u.at]; {
		case c == '"':
			u.inside, u.ended = false, true
			return out.String()
		case c < ' ':
			out.WriteString(inner(quote(string(rune(c)))))
			u.at++
		case c != '\\':
			out.WriteByte(c)
			u.at++
		default:
			n, ok := escapeAt(all[u.at:])
			if n == 0 {
				return out.String() // there is more to come
			}
			if !ok {
				out.WriteByte('\\')
			}
			out.WriteString(all[u.at : u.at+n])
			u.at += n
		}
	}
	return out.String()
}

// escapeAt is the length of the escape that s begins with, 0 where it isn't
// whole. One that is none is a backslash alone.
func escapeAt(s string) (n int, ok bool) {
	switch {
	case len(s) < 2:
		return 0, false
	case strings.IndexByte(`"\/bfnrt`, s[1]) >= 0:
		return 2, true
	case s[1] != 'u':
		return 1, false
	}
	for i := 2; i < 6; i++ {
		if i == len(s) {
			return 0, false
		}
		if strings.IndexByte("0123456789abcdefABCDEF", s[i]) < 0 {
			return 1, false
		}
	}
	return 6, true
}

// rest is the text of arguments that have another form: then all of them are.
func (u *unwrapper) rest() string {
	if u.inside || u.ended {
		return ""
	}
	return inner(quote(u.seen.String()))
}

// valueOfInput finds where the text begins.
func valueOfInput(all string) (int, bool) {
	const key = `"input"`
	if head := strings.TrimLeft(all, " \t\r\n"); len(head) > 0 && head[0] != '{' {
		return 0, false
	}
	at := strings.Index(all, key)
	if at < 0 {
		return 0, false
	}
	for i := at + len(key); i < len(all); i++ {
		switch all[i] {
		case ' ', '\t', '\r', '\n', ':':
		case '"':
			return i + 1, true
		default:
			return 0, false
		}
	}
	return 0, false
}
