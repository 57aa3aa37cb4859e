package gateway

import (
	"bytes"
	"strconv"
	"time"

	"github.com/tidwall/gjson"
)

// usageShown is what the caller sees of a chunk's usage.
type usageShown int

const (
	usageStays usageShown = iota
	usageTimed            // with our queue time added
	usageCut
	usageNull
	usageDropsChunk // it is all that the chunk has
)

// noteUsage takes in what the engine counted in a chunk, and decides how much
// of it the caller sees.
func (r *rewriter) noteUsage(p []byte) usageShown {
	u := usageMember(p)
	extended := r.meter.noteTiers(p)
	if !u.found() {
		if extended && bytes.Contains(p, []byte(choicesNone)) {
			return usageDropsChunk // it tells us something, and callers nothing
		}
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
		return usageTimed
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
	case show == usageTimed:
		if p[u.value] == '{' {
			r.edits.overlap = r.edits.overlap || r.edits.within(u)
			r.edits.add(appended(p, u, r.queue))
		}
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
	if !r.usage || r.closed || r.ownHead() == nil {
		return out
	}
	r.closed = true
	out = append(append(out, "data: "...), r.head...)
	out = append(append(out, choicesNone+","+usageKey...), r.timed(r.meter.json())...)
	return append(out, "}\n\n"...)
}

// queueMember writes how long the exchange waited for capacity, in seconds.
func queueMember(waited time.Duration) []byte {
	return strconv.AppendFloat([]byte(`"queue_time":`), waited.Seconds(), 'f', 6, 64)
}

// timed adds the queue time to a usage object of its own.
func (r *rewriter) timed(usage []byte) []byte {
	r.edits.reset()
	r.edits.cut(usage, r.isNoise)
	usage = r.edits.apply(nil, usage)
	r.edits.reset()
	r.edits.add(appended(usage, span{end: len(usage)}, r.queue))
	return r.edits.apply(nil, usage)
}

// appended is the splice that adds a member at the end of the object whose
// place is s.
func appended(p []byte, s span, member []byte) splice {
	at := s.end - 1
	if len(bytes.TrimSpace(p[s.value+1:at])) > 0 {
		member = append([]byte{','}, member...)
	}
	return splice{from: at, to: at, with: member}
}

// maxFirst is up to how many bytes the first chunk is kept whole: few streams
// need a chunk of our own, and those do at their end.
const maxFirst = 1 << 10

func (r *rewriter) keepFirst(p []byte) {
	if len(p) <= maxFirst {
		r.first = bytes.Clone(p)
		return
	}
	r.first = []byte{}
	r.learnHead(p)
}

// ownHead is the start of a chunk of our own; nil where no chunk came, or one
// without an id.
func (r *rewriter) ownHead() []byte {
	if r.head == nil && len(r.first) > 0 {
		r.learnHead(r.first)
	}
	return r.head
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
