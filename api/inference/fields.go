package inference

import "weir/api/inference/jsonscan"

// member is a top-level member of the body. Its text is the body's from start
// to end, or, where text is set, that.
type member struct {
	name  string
	start int // of the name's quote
	value int // where the value starts
	end   int
	keep  bool
	text  []byte // name and value; nil: as it came
	to    span   // the value's place in the joined fields
}

// span is a part of the joined fields.
type span struct{ from, to int }

// edit replaces a span of the body.
type edit struct {
	from, to int
	with     string
	role     bool // of a developer, whom the model may know after all
}

// find returns the member of that name, or nil where it is absent or null.
func (p *parse) find(name string) *member {
	for i := range p.members {
		if m := &p.members[i]; m.name == name {
			if m.value < len(p.body) && p.body[m.value] == 'n' {
				return nil
			}
			return m
		}
	}
	return nil
}

// replace puts a text in the place of the body's bytes from one offset to the
// other. Edits come in the order of the walk.
func (p *parse) replace(from, to int, with string) {
	p.edits = append(p.edits, edit{from: from, to: to, with: with})
}

// fields joins the kept members. Where they stand together unchanged, as in
// most requests, it is a part of the body itself.
func (p *parse) fields() []byte {
	first, last, size, whole := -1, 0, 0, len(p.edits) == 0
	for i, m := range p.members {
		if !m.keep {
			continue
		}
		if first < 0 {
			first = i
		} else if last != i-1 {
			whole = false
		}
		last = i
		whole = whole && m.text == nil
		size += m.end - m.start + len(m.text) + 1
	}
	if first < 0 {
		return nil
	}
	if whole {
		from := p.members[first].start
		for i := first; i <= last; i++ {
			m := &p.members[i]
			m.to = span{m.value - from, m.end - from}
		}
		return p.body[from:p.members[last].end]
	}
	for _, e := range p.edits {
		size += len(e.with)
	}
	return p.join(p.alloc(size)[:0])
}

func (p *parse) join(out []byte) []byte {
	edits := p.edits
	for i := range p.members {
		m := &p.members[i]
		for len(edits) > 0 && edits[0].from < m.start {
			edits = edits[1:]
		}
		if !m.keep {
			continue
		}
		if len(out) > 0 {
			out = append(out, ',')
		}
		if m.text != nil {
			out = append(out, m.text...)
			continue
		}
		at := m.start
		m.to.from = len(out) + m.value - m.start // a name is never edited
		for len(edits) > 0 && edits[0].from < m.end {
			out = append(append(out, p.body[at:edits[0].from]...), edits[0].with...)
			at, edits = edits[0].to, edits[1:]
		}
		out = append(out, p.body[at:m.end]...)
		m.to.to = len(out)
	}
	return out
}

// prompt finds the prompt in the joined fields, in the order in which a chat
// template puts it.
func (p *parse) prompt(fields []byte) (parts [2][]byte) {
	for i, name := range [...]string{"tools", promptMember(p.in.Operation)} {
		if m := p.find(name); m != nil && m.keep {
			parts[i] = fields[m.to.from:m.to.to]
		}
	}
	return parts
}

func (p *parse) alloc(n int) []byte {
	if p.in.Alloc != nil {
		return p.in.Alloc(n)
	}
	return make([]byte, n)
}

// object reads an object inside a kept member, of which only those members go
// to the engine that read takes. What read returns false for, without having
// read its value, is dropped: a null in silence, anything else named as
// label.name in x-weir-ignored. It returns where the object starts.
func (p *parse) object(label string, read func(name []byte) (keep bool)) int {
	return p.objectWithNulls(label, func(name []byte) bool {
		return p.Kind() != jsonscan.Null && read(name)
	})
}

// objectWithNulls is object for a read that wants to see nulls.
func (p *parse) objectWithNulls(label string, read func(name []byte) (keep bool)) int {
	if !p.expect(jsonscan.Object) {
		return p.Offset()
	}
	at := p.Offset()
	kept, lastEnd := false, 0
	for m := p.Object(); m.Next(); {
		name, null := m.Name(), p.Kind() == jsonscan.Null
		if read(name) {
			kept, lastEnd = true, p.Offset()
			continue
		}
		if !null {
			p.ignore(label + "." + string(name))
		}
		p.Skip()
		if kept {
			p.cut(lastEnd, p.Offset())
		} else {
			p.cut(m.At(), p.nextMember())
		}
		lastEnd = p.Offset()
	}
	return at
}

// cut removes a span; one that touches the last one joins it.
func (p *parse) cut(from, to int) {
	if i := len(p.edits) - 1; i >= 0 && p.edits[i].to == from && p.edits[i].with == "" {
		p.edits[i].to = to
		return
	}
	p.replace(from, to, "")
}

// nextMember is where the member after the cursor starts; the cursor's own
// place where none follows.
func (p *parse) nextMember() int {
	i := p.skipSpace(p.Offset())
	if i == len(p.body) || p.body[i] != ',' {
		return p.Offset()
	}
	return p.skipSpace(i + 1)
}

func (p *parse) skipSpace(i int) int {
	for i < len(p.body) && (p.body[i] == ' ' || p.body[i] == '\n' || p.body[i] == '\r' || p.body[i] == '\t') {
		i++
	}
	return i
}
