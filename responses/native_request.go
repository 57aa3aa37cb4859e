package responses

import (
	"strconv"

	"github.com/tidwall/gjson"

	"weir/gateway"
)

// asNative makes of a call that was checked as a Chat request the one that says
// the same to an engine's own /v1/responses: the whole context as its input,
// and nothing kept there. Since it is made of the Chat request, the engine is
// told the same of both, byte for byte from turn to turn; the ids of items,
// which engines want, are their places.
func asNative(c *gateway.Call) {
	n := &nativeRequest{b: make([]byte, 0, len(c.Fields)+len(c.Fields)/8+512)}
	n.b = append(n.b, `"store":false`...)
	var messages gjson.Result
	gjson.Parse("{" + string(c.Fields) + "}").ForEach(func(name, value gjson.Result) bool {
		if name.Str == "messages" {
			messages = value
			return true
		}
		n.member(name.Str, value)
		return true
	})
	n.b = append(n.b, `,"input":`...)
	n.input.from = len(n.b)
	n.items(messages)
	n.input.to = len(n.b)
	c.Operation, c.Fields = gateway.Responses, n.b
	c.Prompt = [2][]byte{n.b[n.tools.from:n.tools.to], n.b[n.input.from:n.input.to]}
}

type nativeRequest struct {
	b            []byte
	tools, input struct{ from, to int } // in b
	n            int                    // items
}

// member adds one of the Chat request's, under its name and in its form here.
func (n *nativeRequest) member(name string, v gjson.Result) {
	switch name {
	case "tools":
		n.b = append(n.b, `,"tools":`...)
		n.tools.from = len(n.b)
		n.functions(v)
		n.tools.to = len(n.b)
	case "tool_choice":
		if v.IsObject() {
			n.put(name, `{"type":"function","name":`+v.Get("function.name").Raw+`}`)
			return
		}
		n.put(name, v.Raw)
	case "max_completion_tokens", "max_tokens":
		n.put("max_output_tokens", v.Raw)
	case "reasoning_effort":
		n.put("reasoning", `{"effort":`+v.Raw+`}`)
	case "logprobs":
		if v.Bool() {
			n.put("include", `["message.output_text.logprobs"]`)
		}
	case "response_format":
		n.put("text", `{"format":`+nativeFormat(v)+`}`)
	default:
		n.put(name, v.Raw)
	}
}

func (n *nativeRequest) put(name, raw string) { n.b = member(n.b, name, raw) }

// nativeFormat is a response_format, flat.
func nativeFormat(v gjson.Result) string {
	schema := v.Get("json_schema")
	if !schema.IsObject() {
		return v.Raw
	}
	b := []byte(`{"type":"json_schema"`)
	schema.ForEach(func(name, value gjson.Result) bool {
		b = member(b, name.Str, value.Raw)
		return true
	})
	return string(end(b))
}

// functions writes the tools, flat. Strict is said of each: left out it means
// yes here, and no in Chat.
func (n *nativeRequest) functions(tools gjson.Result) {
	n.b = append(n.b, '[')
	first := true
	tools.ForEach(func(_, tool gjson.Result) bool {
		if !first {
			n.b = append(n.b, ',')
		}
		first = false
		f := tool.Get("function")
		n.b = append(n.b, `{"type":"function"`...)
		f.ForEach(func(name, value gjson.Result) bool {
			n.put(name.Str, value.Raw)
			return true
		})
		if !f.Get("strict").Exists() {
			n.put("strict", "false")
		}
		n.b = append(n.b, '}')
		return true
	})
	n.b = append(n.b, ']')
}

func (n *nativeRequest) items(messages gjson.Result) {
	n.b = append(n.b, '[')
	messages.ForEach(func(_, m gjson.Result) bool {
		switch role := m.Get("role").Str; role {
		case "assistant":
			n.turn(m)
		case "tool":
			n.item(typeOutput, "fco_")
			n.put("call_id", m.Get("tool_call_id").Raw)
			n.put("output", m.Get("content").Raw)
			n.b = end(n.b)
		default:
			n.item(typeMessage, "")
			n.put("role", `"`+role+`"`)
			n.put("content", nativeContent(m.Get("content")))
			n.b = end(n.b)
		}
		return true
	})
	n.b = append(n.b, ']')
}

// item begins one, with an id where it has a prefix.
func (n *nativeRequest) item(kind, prefix string) {
	if n.n++; n.n > 1 {
		n.b = append(n.b, ',')
	}
	n.b = append(append(append(n.b, `{"type":"`...), kind...), '"')
	if prefix != "" {
		n.put("id", `"`+prefix+strconv.Itoa(n.n)+`"`)
	}
}

// turn writes what the assistant thought, said and called.
func (n *nativeRequest) turn(m gjson.Result) {
	if reasoning := m.Get("reasoning"); reasoning.Exists() {
		n.item(typeReasoning, reasoningPrefix)
		n.put("summary", "[]")
		n.put("content", `[{"type":"reasoning_text","text":`+reasoning.Raw+`}]`)
		n.b = end(n.b)
	}
	if content := m.Get("content"); content.Type == gjson.String {
		n.item(typeMessage, messagePrefix)
		n.put("role", `"assistant"`)
		n.put("status", `"completed"`)
		n.put("content", `[{"type":"output_text","text":`+content.Raw+`,"annotations":[]}]`)
		n.b = end(n.b)
	}
	m.Get("tool_calls").ForEach(func(_, call gjson.Result) bool {
		n.item(typeCall, callPrefix)
		n.put("call_id", call.Get("id").Raw)
		n.put("name", call.Get("function.name").Raw)
		n.put("arguments", call.Get("function.arguments").Raw)
		n.put("status", `"completed"`)
		n.b = end(n.b)
		return true
	})
}

// nativeContent is the content of a message: a text, or parts.
func nativeContent(v gjson.Result) string {
	if !v.IsArray() {
		return v.Raw
	}
	b := []byte{'['}
	v.ForEach(func(_, part gjson.Result) bool {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(b, nativePart(part)...)
		return true
	})
	return string(append(b, ']'))
}

func nativePart(part gjson.Result) string {
	switch part.Get("type").Str {
	case "image_url":
		image := part.Get("image_url")
		return `{"type":"input_image","detail":` + rawOr(image.Get("detail"), `"auto"`) + `,"image_url":` + image.Get("url").Raw + `}`
	case "file":
		b := []byte(`{"type":"input_file"`)
		part.Get("file").ForEach(func(name, value gjson.Result) bool {
			b = member(b, name.Str, value.Raw)
			return true
		})
		return string(end(b))
	case "text":
		return `{"type":"input_text","text":` + part.Get("text").Raw + `}`
	default: // what a response's input can't hold
		return part.Raw
	}
}
