package responses

import (
	"errors"
	"strings"

	"github.com/tidwall/gjson"
)

// An engine's own /v1/responses is one more wire format that the state machine
// reads. Of its events only what the model said is used: ids, indexes, numbers
// and whole objects are made here, because engines get each of them wrong. An
// engine may leave out any event but the last one; what later ones tell again
// fills the gaps, and deltas that were shown are never taken back.

// errNoEvent is what an engine sends that is no event.
var errNoEvent = errors.New("no event of a response")

// nativeItem is an item of the engine's.
type nativeItem struct {
	kind, id, callID string

	said []byte // all of its text or arguments, escaped
	part int    // where in said the present part begins
	it   *item  // ours, of a call whose name is known
	done bool
}

// nativeItems are those of one answer.
type nativeItems struct {
	all []*nativeItem
	at  map[int64]*nativeItem // the last one that was added under an output_index
	now *nativeItem           // whose text came last
}

// native takes one event, as the gateway passes it on.
func (s *stream) native(data []byte) error {
	v := gjson.ParseBytes(data)
	if !v.IsObject() {
		return errNoEvent
	}
	if s.finish != "" {
		return nil
	}
	switch name := strings.TrimPrefix(v.Get("type").Str, "response."); name {
	case "output_item.added":
		s.nativeAdded(v)
	case "output_item.done":
		item := v.Get("item")
		s.nativeDone(s.engine.find(v, item.Get("type").Str, item.Get("id").Str), item)
	case "content_part.added":
		s.nextPart(v)
	case "function_call_arguments.delta":
		s.sayArguments(s.engine.find(v, typeCall, ""), textOf(v, "delta"))
	case "function_call_arguments.done":
		n := s.engine.find(v, typeCall, "")
		s.sayArguments(n, restOf(n.said, v.Get("arguments")))
	case "completed", "incomplete":
		s.noteEnd(v)
		s.nativeEnd(name, v.Get("response"))
	default:
		s.nativeText(name, v)
	}
	return nil
}

// nativeText takes a piece of a part, or the whole of one.
func (s *stream) nativeText(name string, v gjson.Result) {
	family, step, _ := strings.Cut(name, ".")
	kind, part, whole := typeMessage, partText, "text"
	switch family {
	case "output_text":
	case "refusal":
		part, whole = partRefusal, "refusal"
	case "reasoning_text", "reasoning": // OpenAI's name, and Open Responses'
		kind, part = typeReasoning, partReasoning
	default:
		return
	}
	switch step {
	case "delta":
		s.say(s.engine.find(v, kind, ""), part, textOf(v, "delta"), v.Get("logprobs"))
	case "done":
		n := s.engine.find(v, kind, "")
		s.say(n, part, restOf(n.said[n.part:], v.Get(whole)), gjson.Result{})
		n.part = len(n.said)
	}
}

// find returns the item that an event is about; a new one where there is none
// of that kind that could be meant.
func (e *nativeItems) find(v gjson.Result, kind, id string) *nativeItem {
	if id == "" {
		id = v.Get("item_id").Str
	}
	index := v.Get("output_index")
	if index.Type == gjson.Number {
		if n := e.at[index.Int()]; n.open(kind) {
			return n
		}
	}
	for _, n := range e.all {
		if id != "" && n.id == id && n.open(kind) {
			return n
		}
	}
	if index.Type != gjson.Number && e.now.open(kind) {
		return e.now
	}
	return e.add(index, kind, id)
}

func (e *nativeItems) add(index gjson.Result, kind, id string) *nativeItem {
	n := &nativeItem{kind: kind, id: id}
	e.all = append(e.all, n)
	if index.Type == gjson.Number {
		if e.at == nil {
			e.at = map[int64]*nativeItem{}
		}
		e.at[index.Int()] = n
	}
	return n
}

func (n *nativeItem) open(kind string) bool { return n != nil && n.kind == kind && !n.done }

// nativeAdded notes an item. What it holds comes with its first piece, but for
// a call, of which the name is known from now on.
func (s *stream) nativeAdded(v gjson.Result) {
	item := v.Get("item")
	kind, id := item.Get("type").Str, item.Get("id").Str
	if index := v.Get("output_index"); index.Type == gjson.Number {
		if n := s.engine.at[index.Int()]; !n.open(kind) || n.id != id {
			s.engine.add(index, kind, id)
		}
	}
	if kind == typeCall {
		s.nameCall(s.engine.find(v, kind, id), item)
	}
}

// nextPart begins another part of an item that has one.
func (s *stream) nextPart(v gjson.Result) {
	n := s.engine.now
	id := v.Get("item_id").Str
	if n == nil || n.done || s.text == nil || len(s.text.grown) == 0 || id != "" && id != n.id {
		return
	}
	n.part = len(n.said)
	s.closePart(s.text)
}

// say takes a piece of an item's text. Another item's ends here.
func (s *stream) say(n *nativeItem, kind partKind, escaped string, probs gjson.Result) {
	if escaped == "" {
		return
	}
	if s.engine.now != n {
		s.closeText(false)
		s.engine.now = n
	}
	n.said = append(n.said, escaped...)
	if kind == partReasoning {
		s.reasoning(escaped)
		return
	}
	s.message(kind, escaped, probs)
}

// nameCall opens a call, with what of its arguments came before its name.
func (s *stream) nameCall(n *nativeItem, item gjson.Result) {
	name := item.Get("name").String()
	if n.it != nil || n.done || name == "" || s.serial && len(s.calls) > 0 {
		return
	}
	n.callID = item.Get("call_id").String()
	n.it = s.openCall(len(s.calls), n.callID, name)
	s.growCall(n.it, gjson.Parse(`"`+string(n.said)+`"`))
}

func (s *stream) sayArguments(n *nativeItem, escaped string) {
	if escaped == "" {
		return
	}
	n.said = append(n.said, escaped...)
	if n.it != nil {
		s.growCall(n.it, gjson.Parse(`"`+escaped+`"`))
	}
}

// nativeDone takes a whole item: what of it didn't come in pieces is said now.
// One that was cut off stays open until the response ends.
func (s *stream) nativeDone(n *nativeItem, item gjson.Result) {
	switch n.kind {
	case typeMessage:
		s.sayParts(n, item.Get("content"))
	case typeReasoning:
		s.sayParts(n, item.Get("content"))
		if len(n.said) == 0 {
			s.sayParts(n, item.Get("summary"))
		}
	case typeCall:
		s.nameCall(n, item)
		s.sayArguments(n, restOf(n.said, item.Get("arguments")))
	}
	if item.Get("status").Str == Incomplete {
		return
	}
	n.done = true
	if n.it != nil && n.it.final == nil {
		s.closeCall(n.it, false)
	}
	if s.engine.now == n {
		s.closeText(false)
	}
}

// sayParts says what of an item's parts wasn't: all of them, or the end of the
// last one.
func (s *stream) sayParts(n *nativeItem, parts gjson.Result) {
	kind := func(part gjson.Result) partKind {
		switch {
		case n.kind == typeReasoning:
			return partReasoning
		case part.Get("type").Str == "refusal":
			return partRefusal
		default:
			return partText
		}
	}
	if len(n.said) == 0 {
		parts.ForEach(func(_, part gjson.Result) bool {
			s.say(n, kind(part), textOf(part, "text", "refusal"), part.Get("logprobs"))
			return true
		})
		return
	}
	whole, last := "", partNone
	parts.ForEach(func(_, part gjson.Result) bool {
		whole, last = whole+textOf(part, "text", "refusal"), kind(part)
		return true
	})
	s.say(n, last, restOf(n.said, gjson.Parse(`"`+whole+`"`)), gjson.Result{})
}

// nativeEnd takes the last event: how the response ended, what it used, and all
// of it once more.
func (s *stream) nativeEnd(name string, r gjson.Result) {
	if u := r.Get("usage"); u.IsObject() {
		s.state.usage = nativeUsage(u)
	}
	s.engine.claim(r.Get("output").Array(), s.nativeDone)
	s.finish = "stop"
	if name == Incomplete || r.Get("status").Str == Incomplete {
		s.finish = "length"
		if r.Get("incomplete_details.reason").Str == "content_filter" {
			s.finish = "content_filter"
		}
	}
	s.close(s.cutOff())
}

// claim hands each item of the final output over with the one of the stream
// that it is: the one of its id, or of its call, else the first of its kind that
// no other item claims. Some engines give their items new ids at the end, or
// another order.
func (e *nativeItems) claim(output []gjson.Result, each func(*nativeItem, gjson.Result)) {
	own := make([]*nativeItem, len(output))
	claimed := map[*nativeItem]bool{}
	match := func(same func(n *nativeItem, item gjson.Result) bool) {
		for i, item := range output {
			for _, n := range e.all {
				if own[i] == nil && !claimed[n] && n.kind == item.Get("type").Str && same(n, item) {
					own[i], claimed[n] = n, true
				}
			}
		}
	}
	match(func(n *nativeItem, item gjson.Result) bool { return n.id != "" && n.id == item.Get("id").Str })
	match(func(n *nativeItem, item gjson.Result) bool {
		return n.callID != "" && n.callID == item.Get("call_id").Str
	})
	match(func(*nativeItem, gjson.Result) bool { return true })
	for i, item := range output {
		switch n := own[i]; {
		case n == nil:
			each(e.add(gjson.Result{}, item.Get("type").Str, item.Get("id").Str), item)
		case !n.done:
			each(n, item)
		}
	}
}

// restOf is what a whole text has beyond what was said of it, escaped. Where it
// begins otherwise, what was said stands.
func restOf(said []byte, whole gjson.Result) string {
	if whole.Type != gjson.String {
		return ""
	}
	if rest, ok := strings.CutPrefix(inner(whole.Raw), string(said)); ok {
		return rest
	}
	if rest, ok := strings.CutPrefix(whole.String(), gjson.Parse(`"`+string(said)+`"`).String()); ok { // escaped in another way
		return inner(quote(rest))
	}
	return ""
}

func nativeUsage(v gjson.Result) *Usage {
	u := &Usage{Input: max(v.Get("input_tokens").Int(), 0), Output: max(v.Get("output_tokens").Int(), 0)}
	u.Cached = min(max(v.Get("input_tokens_details.cached_tokens").Int(), 0), u.Input)
	u.Reasoning = min(max(v.Get("output_tokens_details.reasoning_tokens").Int(), 0), u.Output)
	return u
}
