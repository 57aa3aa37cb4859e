package responses

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"
)

// chatAnswer puts the chunks of a streamed chat completion together. Texts stay
// escaped, as they came.
type chatAnswer struct {
	head    []string // members that stand before the choices, from the first chunk
	choices []*chatChoice
}

type chatChoice struct {
	index   int
	texts   map[string]*strings.Builder // by member of the message
	calls   []*chatCall
	probs   []string // of the content's tokens, joined lists
	refused []string // of the refusal's
	finish  string
}

type chatCall struct {
	index     int
	id, name  string // as JSON
	arguments strings.Builder
}

// chatTexts are the members of a message that grow, in their order.
func chatTexts() []string { return []string{"content", "refusal", "reasoning", "reasoning_content"} }

// chunk takes one chunk.
func (a *chatAnswer) chunk(v gjson.Result) {
	if a.head == nil {
		for _, name := range []string{"id", "created", "model", "service_tier", "system_fingerprint"} {
			if x := v.Get(name); !absent(x) {
				a.head = append(a.head, quote(name)+":"+x.Raw)
			}
		}
	}
	v.Get("choices").ForEach(func(_, c gjson.Result) bool {
		a.choice(int(c.Get("index").Int())).add(c)
		return true
	})
}

func (a *chatAnswer) choice(index int) *chatChoice {
	for _, c := range a.choices {
		if c.index == index {
			return c
		}
	}
	c := &chatChoice{index: index, texts: map[string]*strings.Builder{}}
	a.choices = append(a.choices, c)
	return c
}

func (c *chatChoice) add(v gjson.Result) {
	delta := v.Get("delta")
	for _, name := range chatTexts() {
		x := delta.Get(name)
		if x.Type != gjson.String {
			continue
		}
		if c.texts[name] == nil {
			c.texts[name] = &strings.Builder{}
		}
		_, _ = c.texts[name].WriteString(inner(x.Raw)) // never fails
	}
	delta.Get("tool_calls").ForEach(func(_, call gjson.Result) bool {
		c.call(int(call.Get("index").Int())).add(call)
		return true
	})
	if p := v.Get("logprobs.content"); p.IsArray() {
		c.probs = append(c.probs, inner(p.Raw))
	}
	if p := v.Get("logprobs.refusal"); p.IsArray() {
		c.refused = append(c.refused, inner(p.Raw))
	}
	if f := v.Get("finish_reason"); f.Type == gjson.String {
		c.finish = f.Raw
	}
}

func (c *chatChoice) call(index int) *chatCall {
	for _, call := range c.calls {
		if call.index == index {
			return call
		}
	}
	call := &chatCall{index: index}
	c.calls = append(c.calls, call)
	return call
}

func (c *chatCall) add(v gjson.Result) {
	if id := v.Get("id"); id.Type == gjson.String && c.id == "" {
		c.id = id.Raw
	}
	if name := v.Get("function.name"); name.Type == gjson.String && c.name == "" {
		c.name = name.Raw
	}
	if args := v.Get("function.arguments"); args.Type == gjson.String {
		c.arguments.WriteString(inner(args.Raw))
	}
}

// object is the completion as one document.
func (a *chatAnswer) object(usage []byte) []byte {
	b := []byte(`{"object":"chat.completion"`)
	for _, m := range a.head {
		b = append(append(b, ','), m...)
	}
	b = append(b, `,"choices":[`...)
	slices.SortFunc(a.choices, func(x, y *chatChoice) int { return x.index - y.index })
	for i, c := range a.choices {
		if i > 0 {
			b = append(b, ',')
		}
		b = c.append(b)
	}
	b = append(b, ']')
	if len(usage) > 0 {
		b = member(b, "usage", string(usage))
	}
	return end(b)
}

func (c *chatChoice) append(b []byte) []byte {
	b = appendInt(append(b, `{"index":`...), c.index)
	b = append(b, `,"message":{"role":"assistant"`...)
	for _, name := range chatTexts() {
		switch text := c.texts[name]; {
		case text != nil && (text.Len() > 0 || len(c.calls) == 0):
			b = member(b, name, `"`+text.String()+`"`)
		case name == "content" || name == "refusal":
			b = member(b, name, "null")
		}
	}
	for i, call := range c.calls {
		before := ","
		if i == 0 {
			before = `,"tool_calls":[`
		}
		b = append(b, before+`{"id":`+orNull(call.id)+`,"type":"function","function":{"name":`+orNull(call.name)+`,"arguments":"`+call.arguments.String()+`"}}`...)
	}
	if len(c.calls) > 0 {
		b = append(b, ']')
	}
	b = append(b, '}')
	if c.probs == nil && c.refused == nil {
		b = member(b, "logprobs", "null")
	} else {
		b = member(b, "logprobs", `{"content":`+list(c.probs)+`,"refusal":`+list(c.refused)+`}`)
	}
	return end(member(b, "finish_reason", orNull(c.finish)))
}

// list joins the insides of arrays.
func list(insides []string) string {
	if insides == nil {
		return "null"
	}
	return "[" + strings.Join(slices.DeleteFunc(insides, func(s string) bool { return strings.TrimSpace(s) == "" }), ",") + "]"
}
