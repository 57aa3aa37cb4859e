package gateway

import (
	"strconv"

	"github.com/tidwall/gjson"
)

// maxCalls bounds how many tool calls of one answer are followed. An engine
// that sends more keeps its own numbers from there on.
const maxCalls = 128

// toolCalls gives each tool call of a stream an index of its own. Some engines
// number every call 0, and clients, which join fragments by index, would melt
// two calls into one.
type toolCalls struct {
	open map[callSlot]*openCall
	next map[int64]int64 // choice -> first index that no call has
}

// callSlot is where an engine says that a fragment belongs.
type callSlot struct{ choice, index int64 }

// openCall is the call that the slot's fragments belong to at present.
type openCall struct {
	id  string
	out int64 // the index that the caller sees
}

// reindex returns p with the indexes corrected; p itself where they are right.
func (t *toolCalls) reindex(p []byte) []byte {
	var renumber edits
	gjson.GetBytes(p, "choices").ForEach(func(_, choice gjson.Result) bool {
		n := choice.Get("index").Int()
		choice.Get("delta.tool_calls").ForEach(func(_, call gjson.Result) bool {
			index := call.Get("index")
			if index.Type != gjson.Number {
				return true
			}
			out := t.place(callSlot{n, index.Int()}, call.Get("id").String(), call.Get("function.name").String())
			if at := index.Index; out != index.Int() && at > 0 {
				renumber.add(splice{at, at + len(index.Raw), strconv.AppendInt(nil, out, 10)})
			}
			return true
		})
		return true
	})
	if len(renumber.list) == 0 {
		return p
	}
	return renumber.apply(nil, p)
}

// place returns the caller's index for a fragment. A fragment with both a name
// and an id that its slot doesn't have yet opens a call; a changed id without
// a name is a whim of some engines and goes on with the open one.
func (t *toolCalls) place(slot callSlot, id, name string) int64 {
	if t.open == nil {
		t.open, t.next = make(map[callSlot]*openCall), make(map[int64]int64)
	}
	call := t.open[slot]
	switch {
	case call == nil && len(t.open) >= maxCalls:
		return slot.index
	case call == nil:
		call = &openCall{id: id, out: slot.index}
		if t.taken(slot) {
			call.out = t.next[slot.choice]
		}
		t.open[slot] = call
	case id != "" && name != "" && call.id != "" && id != call.id:
		call.id, call.out = id, t.next[slot.choice]
	case call.id == "":
		call.id = id
	}
	t.next[slot.choice] = max(t.next[slot.choice], call.out+1)
	return call.out
}

// taken reports whether another call of the choice has this slot's index.
func (t *toolCalls) taken(slot callSlot) bool {
	for s, c := range t.open {
		if s.choice == slot.choice && c.out == slot.index {
			return true
		}
	}
	return false
}
