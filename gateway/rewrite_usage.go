package gateway

import (
	"bytes"

	"github.com/tidwall/gjson"
)

// usageShown is what the caller sees of a chunk's usage.
type usageShown int

const (
	usageStays usageShown = iota
	usageCut
	usageNull
	usageDropsChunk // it is all that the chunk has
)

// noteUsage takes in what the engine counted in a chunk, and decides how much
// of it the caller sees.
func (r *rewriter) noteUsage(p []byte) usageShown {
	u := usageMember(p)
	if !u.found() {
		return usageStays
	}
	counted := p[u.value] == '{'
	if counted {
		r.meter.saw(p[u.value:u.end])
	}
	switch {
	case counted && lastChunk(p):
		again := r.closed
		r.closed = true
		if again || !r.usage {
			return usageDropsChunk
		}
		return usageStays
	case !r.usage:
		return usageCut
	case counted:
		return usageNull
	default:
		return usageStays
	}
}

func (r *rewriter) editUsage(p []byte, show usageShown) {
	if show == usageStays {
		return
	}
	u := usageMember(p)
	switch {
	case !u.found():
	case show == usageCut:
		r.edits.add(without(p, u))
	case show == usageNull:
		r.edits.add(splice{from: u.value, to: u.end, with: []byte("null")})
	}
}

// lastChunk reports whether a chunk carries nothing but usage.
func lastChunk(p []byte) bool {
	if bytes.Contains(p, []byte(choicesNone)) {
		return true
	}
	return !bytes.Contains(p, []byte(choicesSome)) && len(gjson.GetBytes(p, "choices").Array()) == 0
}

// closing appends what has to stand before the end marker: the usage chunk
// that the caller asked for, where the engine sent none in its canonical form.
func (r *rewriter) closing(out []byte) []byte {
	if !r.usage || r.closed || r.head == nil {
		return out
	}
	r.closed = true
	out = append(append(out, "data: "...), r.head...)
	out = append(append(out, choicesNone+","+usageKey...), r.meter.json()...)
	return append(out, "}\n\n"...)
}

// learnHead keeps of the first chunk what a chunk of our own needs.
func (r *rewriter) learnHead(p []byte) {
	v := gjson.GetManyBytes(p, "id", "object", "created")
	if !v[0].Exists() {
		return
	}
	r.head = append(r.head, `{"id":`+v[0].Raw...)
	if v[1].Exists() {
		r.head = append(r.head, `,"object":`+v[1].Raw...)
	}
	if v[2].Exists() {
		r.head = append(r.head, `,"created":`+v[2].Raw...)
	}
	r.head = append(append(append(r.head, `,`+modelKey...), r.model...), r.tier...)
	r.head = append(r.head, ',')
}
