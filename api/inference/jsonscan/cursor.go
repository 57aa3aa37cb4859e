// Package jsonscan walks a JSON document once, from front to back, without
// decoding it. It validates all that it passes over: grammar, UTF-8, escapes,
// depth and size. Callers get spans of the original bytes, so that what they
// don't change can be forwarded as it came.
package jsonscan

import (
	"bytes"
	"unicode/utf8"
)

// Bounds of a document. Engines decode bodies into objects that weigh a
// hundred times their text, so structure is bounded apart from length.
const (
	MaxDepth  = 64
	MaxNodes  = 1 << 18 // objects, arrays and members; plain elements of arrays are bounded by the body's length
	MaxNumber = 128     // characters of one number
)

// Kind is what a value is.
type Kind uint8

// The kinds of values; Invalid also stands for the end of the document.
const (
	Invalid Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

// String returns the kind as a noun with its article, for messages.
func (k Kind) String() string {
	switch k {
	case Null:
		return "null"
	case Bool:
		return "a boolean"
	case Number:
		return "a number"
	case String:
		return "a string"
	case Array:
		return "an array"
	case Object:
		return "an object"
	default:
		return "nothing"
	}
}

// Cursor stands before a value of a document. Reading a value moves it behind
// the value. The first error stays: after it every read does nothing and every
// loop ends, so callers look at Err once. Copying a Cursor makes a bookmark.
type Cursor struct {
	data  []byte
	pos   int
	depth int
	nodes int
	err   error
}

// New returns a cursor before the document's value.
func New(data []byte) Cursor { return Cursor{data: data} }

// Err is the first error: an *Error, or what Fail was given.
func (c *Cursor) Err() error { return c.err }

// Fail stops the walk with an error of the caller's. An earlier error stays.
func (c *Cursor) Fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// Offset is where the cursor stands, in bytes from the document's start.
func (c *Cursor) Offset() int { return c.pos }

// Slice returns the document's bytes from one offset to another.
func (c *Cursor) Slice(from, to int) []byte { return c.data[from:to] }

func (c *Cursor) stop(offset int, reason Reason) {
	c.Fail(&Error{Offset: offset, Reason: reason})
}

func (c *Cursor) space() {
	for c.pos < len(c.data) {
		switch c.data[c.pos] {
		case ' ', '\n', '\r', '\t':
			c.pos++
		default:
			return
		}
	}
}

// Kind says what the next value is, by its first character; white space before
// it is skipped, so that Offset is where the value starts.
func (c *Cursor) Kind() Kind {
	if c.err != nil {
		return Invalid
	}
	c.space()
	if c.pos == len(c.data) {
		return Invalid
	}
	switch b := c.data[c.pos]; b {
	case '"':
		return String
	case '{':
		return Object
	case '[':
		return Array
	case 't', 'f':
		return Bool
	case 'n':
		return Null
	default:
		if b == '-' || isDigit(b) {
			return Number
		}
		return Invalid
	}
}

// Skip validates the next value, whatever it is.
func (c *Cursor) Skip() {
	switch c.Kind() {
	case String:
		c.Text()
	case Number:
		c.Number()
	case Object:
		for m := c.Object(); m.Next(); {
			c.Skip()
		}
	case Array:
		for e := c.Array(); e.Next(); {
			c.Skip()
		}
	case Bool:
		c.Bool()
	case Null:
		c.Null()
	default:
		c.stop(c.pos, Syntax)
	}
}

// End demands that nothing but white space follows.
func (c *Cursor) End() {
	if c.err != nil {
		return
	}
	c.space()
	if c.pos != len(c.data) {
		c.stop(c.pos, Syntax)
	}
}

// Null reads a null.
func (c *Cursor) Null() { c.literal("null") }

// Bool reads a boolean.
func (c *Cursor) Bool() bool {
	if c.Kind() == Bool && c.data[c.pos] == 't' {
		c.literal("true")
		return c.err == nil
	}
	c.literal("false")
	return false
}

func (c *Cursor) literal(word string) {
	if c.err != nil {
		return
	}
	c.space()
	if !bytes.HasPrefix(c.data[c.pos:], []byte(word)) {
		c.stop(c.pos, Syntax)
		return
	}
	c.pos += len(word)
}

// Number reads a number and returns its text.
func (c *Cursor) Number() []byte {
	if c.Kind() != Number {
		c.stop(c.pos, Syntax)
		return nil
	}
	start, i := c.pos, c.pos
	if c.data[i] == '-' {
		i++
	}
	integer := i
	i = c.digits(i)
	if i > integer+1 && c.data[integer] == '0' {
		c.stop(integer, Syntax)
		return nil
	}
	if i < len(c.data) && c.data[i] == '.' {
		i = c.digits(i + 1)
	}
	if i < len(c.data) && c.data[i]|0x20 == 'e' {
		i++
		if i < len(c.data) && (c.data[i] == '+' || c.data[i] == '-') {
			i++
		}
		i = c.digits(i)
	}
	if i-start > MaxNumber {
		c.stop(start, LongNumber)
	}
	if c.err != nil {
		return nil
	}
	c.pos = i
	return c.data[start:i]
}

// digits demands at least one.
func (c *Cursor) digits(i int) int {
	start := i
	for i < len(c.data) && isDigit(c.data[i]) {
		i++
	}
	if i == start {
		c.stop(i, Syntax)
	}
	return i
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }

// Text reads a string and returns what stands between its quotes, escapes and
// all. Unquote decodes it.
func (c *Cursor) Text() []byte {
	if c.Kind() != String {
		c.stop(c.pos, Syntax)
		return nil
	}
	open := c.pos
	start := open + 1
	var seen uint64
	for i := start; ; {
		i, seen = nextStop(c.data, i, seen)
		if i == len(c.data) {
			c.stop(i, Syntax)
			return nil
		}
		switch c.data[i] {
		case '"':
			text := c.data[start:i]
			// Quotes and escapes are ASCII, so the text is valid UTF-8 as a whole or not at all.
			if seen&highBits != 0 && !utf8.Valid(text) {
				c.stop(open, InvalidUTF8)
				return nil
			}
			c.pos = i + 1
			return text
		case '\\':
			n, reason := escape(c.data[i:])
			if n == 0 {
				c.stop(open, reason)
				return nil
			}
			i += n
		default:
			c.stop(open, ControlCharacter)
			return nil
		}
	}
}
