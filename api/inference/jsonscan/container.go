package jsonscan

// Members walks an object. After each Next the cursor stands before the
// member's value, which must be read before the next Next.
type Members struct {
	c    *Cursor
	key  []byte
	at   int
	more bool
}

// Object enters the object before which the cursor stands.
func (c *Cursor) Object() Members {
	if c.Kind() != Object {
		c.stop(c.pos, Syntax)
	}
	c.enter()
	return Members{c: c}
}

// Next goes to the next member; false means that the object, or the walk, has
// ended.
func (m *Members) Next() bool {
	c := m.c
	if !c.element('}', m.more) {
		return false
	}
	m.more = true
	m.at = c.pos
	m.key = c.Text()
	c.space()
	if c.err == nil && (c.pos == len(c.data) || c.data[c.pos] != ':') {
		c.stop(c.pos, Syntax)
	}
	c.count()
	if c.err != nil {
		return false
	}
	c.pos++
	c.space()
	return true
}

// Name is the member's name, decoded. It is valid as long as the document.
func (m *Members) Name() []byte { return Unquote(m.key) }

// At is where the member's name starts, at its quote.
func (m *Members) At() int { return m.at }

// Elements walks an array as Members walks an object.
type Elements struct {
	c *Cursor
	n int
}

// Array enters the array before which the cursor stands.
func (c *Cursor) Array() Elements {
	if c.Kind() != Array {
		c.stop(c.pos, Syntax)
	}
	c.enter()
	return Elements{c: c, n: -1}
}

// Next goes to the next element; false means that the array, or the walk, has
// ended.
func (e *Elements) Next() bool {
	if !e.c.element(']', e.n >= 0) {
		if e.c.err == nil {
			e.n++
		}
		return false
	}
	e.n++
	return true
}

// N is the index of the current element and, after the last, the length.
func (e *Elements) N() int { return e.n }

// enter passes the opening bracket.
func (c *Cursor) enter() {
	c.count()
	c.depth++
	if c.depth > MaxDepth {
		c.stop(c.pos, TooDeep)
	}
	if c.err == nil {
		c.pos++
	}
}

func (c *Cursor) count() {
	c.nodes++
	if c.nodes > MaxNodes {
		c.stop(c.pos, TooManyNodes)
	}
}

// element passes what stands between two elements, or the closing bracket.
func (c *Cursor) element(closing byte, more bool) bool {
	if c.err != nil {
		return false
	}
	c.space()
	if c.pos == len(c.data) {
		c.stop(c.pos, Syntax)
		return false
	}
	switch {
	case c.data[c.pos] == closing:
		c.pos++
		c.depth--
		return false
	case !more:
		return true
	case c.data[c.pos] != ',':
		c.stop(c.pos, Syntax)
		return false
	}
	c.pos++
	c.space()
	if c.pos < len(c.data) && c.data[c.pos] == closing { // a trailing comma
		c.stop(c.pos, Syntax)
		return false
	}
	return true
}
