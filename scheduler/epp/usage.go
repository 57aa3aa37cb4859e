package epp

import (
	"bytes"

	"github.com/tidwall/gjson"
)

const (
	maxLine     = 256 << 10 // bytes of an event's line that are looked into
	maxDocument = 4 << 20   // bytes of an answer in one piece
)

// usage is what an answer says it cost, in tokens. Input is what was not cached.
type usage struct{ input, cached, output int }

// usageScanner finds the usage in an answer, however it is cut.
type usageScanner struct {
	stream bool
	rest   []byte // of a line, or the document so far
	skip   bool   // what comes is too long to be kept: until the line's end, or at all
	found  usage
}

// add takes the next piece, and reports whether usage was found in it.
func (s *usageScanner) add(piece []byte) (found bool) {
	if !s.stream {
		if s.skip = s.skip || len(s.rest)+len(piece) > maxDocument; s.skip {
			s.rest = nil
		} else {
			s.rest = append(s.rest, piece...)
		}
		return false
	}
	for len(piece) > 0 {
		line, rest, whole := bytes.Cut(piece, []byte("\n"))
		piece = rest
		switch {
		case s.skip:
			s.skip = !whole
		case !whole && len(s.rest)+len(line) > maxLine:
			s.rest, s.skip = s.rest[:0], true
		case !whole:
			s.rest = append(s.rest, line...)
		case len(s.rest) > 0:
			found = s.line(append(s.rest, line...)) || found
			s.rest = s.rest[:0]
		default:
			found = s.line(line) || found
		}
	}
	return found
}

// end looks at what has no end of its own.
func (s *usageScanner) end() {
	if s.stream {
		_ = s.line(s.rest)
	} else {
		_ = s.look(s.rest)
	}
	s.rest = nil
}

func (s *usageScanner) line(line []byte) bool {
	data, ok := bytes.CutPrefix(line, []byte("data:"))
	return ok && s.look(data)
}

// look reads the usage of a document, of a chat's or of the Responses API.
func (s *usageScanner) look(doc []byte) bool {
	if !bytes.Contains(doc, []byte(`"usage"`)) {
		return false
	}
	u := gjson.GetBytes(doc, "usage")
	if !u.IsObject() {
		u = gjson.GetBytes(doc, "response.usage")
	}
	if !u.IsObject() {
		return false
	}
	number := func(names ...string) int {
		for _, name := range names {
			if v := u.Get(name); v.Exists() {
				return int(min(max(v.Int(), 0), maxOutput))
			}
		}
		return 0
	}
	input := number("prompt_tokens", "input_tokens")
	s.found.cached = min(number("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens"), input)
	s.found.input = input - s.found.cached
	s.found.output = number("completion_tokens", "output_tokens")
	return true
}
