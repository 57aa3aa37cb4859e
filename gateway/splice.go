package gateway

import (
	"bytes"
	"slices"

	"github.com/tidwall/gjson"
)

// The edits below work on the bytes of an engine's JSON, without decoding it.
// They rest on one fact: within a JSON string a quote is always escaped, so
// the bytes "name": (quotes and colon included) can only be a member's key.
// At which depth it stands is for the caller to know.

// splice replaces p[from:to].
type splice struct {
	from, to int
	with     []byte
}

// edits are splices in the order of their place. The zero value is none; reset
// keeps its memory.
type edits struct {
	list    []splice
	overlap bool // two of them want the same bytes, so they can't be done at once
}

func (e *edits) reset() { e.list, e.overlap = e.list[:0], false }

func (e *edits) add(s splice) {
	i := len(e.list)
	for i > 0 && e.list[i-1].from > s.from {
		i--
	}
	e.overlap = e.overlap || i > 0 && e.list[i-1].to > s.from || i < len(e.list) && s.to > e.list[i].from
	e.list = slices.Insert(e.list, i, s)
}

// within reports whether any edit changes the member's value: whether it has
// other members afterwards can't be told from p then.
func (e *edits) within(s span) bool {
	return slices.ContainsFunc(e.list, func(x splice) bool { return x.from >= s.value && x.to <= s.end })
}

// apply appends p with the edits done.
func (e *edits) apply(out, p []byte) []byte {
	at := 0
	for _, s := range e.list {
		out = append(append(out, p[at:s.from]...), s.with...)
		at = s.to
	}
	return append(out, p[at:]...)
}

// applyWithin returns p[lo:hi] with its edits done; false where one of them
// crosses a bound.
func (e *edits) applyWithin(p []byte, lo, hi int) ([]byte, bool) {
	var out []byte
	at := lo
	for _, s := range e.list {
		if s.to <= lo || s.from >= hi {
			continue
		}
		if s.from < lo || s.to > hi {
			return nil, false
		}
		out = append(append(out, p[at:s.from]...), s.with...)
		at = s.to
	}
	return append(out, p[at:hi]...), true
}

// span is where a member stands in its object: its key begins at key, its
// value is p[value:end]. The zero span is none.
type span struct{ key, value, end int }

func (s span) found() bool { return s.end > 0 }

// usageMember finds the usage of the outermost object of p.
func usageMember(p []byte) span {
	const quoted = `"usage"`
	i := bytes.Index(p, []byte(quoted))
	if i < 0 {
		return span{}
	}
	if v := i + len(quoted) + 1; v < len(p) && p[v-1] == ':' {
		// The last member of all stands in the outermost object: the common case.
		if end := skipValue(p, v); end == len(p)-1 {
			for v < end && p[v] == ' ' {
				v++
			}
			return span{i, v, end}
		}
	}
	r := gjson.GetBytes(p, "usage")
	if r.Index == 0 {
		return span{}
	}
	return span{bytes.LastIndex(p[:r.Index], []byte(quoted)), r.Index, r.Index + len(r.Raw)}
}

// without is the splice that removes a member, with the comma that it needs no
// more.
func without(p []byte, s span) splice {
	from, to := s.key, s.end
	before := bytes.TrimRight(p[:from], " \t\r\n")
	if bytes.HasSuffix(before, []byte{','}) {
		return splice{from: len(before) - 1, to: to}
	}
	after := bytes.TrimLeft(p[to:], " \t\r\n")
	if bytes.HasPrefix(after, []byte{','}) {
		to = len(p) - len(after) + 1
	}
	return splice{from: from, to: to}
}

// cut adds the removal of each member, at any depth, whose name is unwanted.
func (e *edits) cut(p []byte, unwanted func(name []byte) bool) {
	for at := 0; ; {
		i := bytes.Index(p[at:], []byte(`":`))
		if i < 0 {
			return
		}
		before, value := p[at:at+i], at+i+len(`":`)
		quote := bytes.LastIndexByte(before, '"')
		key := at + quote
		at = value
		if quote >= 0 && unwanted(before[quote+1:]) {
			at = skipValue(p, value)
			e.add(without(p, span{key: key, end: at}))
		}
	}
}

// skipValue returns the end of the JSON value that begins at or after i. Of
// broken JSON it returns some index up to len(p).
func skipValue(p []byte, i int) int {
	depth := 0
	for i < len(p) {
		switch p[i] {
		case '"':
			i = skipString(p, i)
			if depth == 0 {
				return i
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return len(p)
}

// skipString returns the index after the string that begins at i.
func skipString(p []byte, i int) int {
	for i++; i < len(p); {
		j := bytes.IndexByte(p[i:], '"')
		if j < 0 {
			break
		}
		i += j + 1
		slashes := 0
		for k := i - 2; k >= 0 && p[k] == '\\'; k-- {
			slashes++
		}
		if slashes%2 == 0 {
			return i
		}
	}
	return len(p)
}
