package jsonscan

import (
	"fmt"
	"strconv"
)

// Reason is what is wrong with a document.
type Reason string

// The reasons for which a document is refused.
const (
	Syntax           Reason = "is not valid JSON"
	InvalidUTF8      Reason = "is not valid UTF-8"
	ControlCharacter Reason = "holds a control character that is not escaped"
	NULCharacter     Reason = "holds a NUL character (\\u0000)"
	LoneSurrogate    Reason = "holds half of a surrogate pair"
	LongNumber       Reason = "is a number with too many characters"
	TooDeep          Reason = "is nested too deeply"
	TooManyNodes     Reason = "has too many members"
)

// Error is why a document is refused, and where.
type Error struct {
	Offset int
	Reason Reason
}

func (e *Error) Error() string {
	return fmt.Sprintf("the JSON %s (at byte %d)", e.Reason, e.Offset)
}

const (
	maxPath = 256
	maxName = 64
)

// Path names the value that has the offset in it, such as
// "messages[1].content"; the document itself is "". It walks the document up
// to there: it is meant for error messages. Long names and paths are cut.
func Path(data []byte, offset int) string {
	c := New(data)
	path, _ := c.locate(offset, nil)
	return string(path[:min(len(path), maxPath)])
}

// locate looks for the offset in the next value, whose path is given, and says
// whether it is there.
func (c *Cursor) locate(offset int, path []byte) ([]byte, bool) {
	kind, n := c.Kind(), len(path)
	if offset <= c.pos {
		return path, true
	}
	switch kind {
	case Object:
		for m := c.Object(); m.Next(); {
			if n > 0 {
				path = append(path, '.')
			}
			path = append(path, m.key[:min(len(m.key), maxName)]...)
			if found, ok := c.locate(offset, path); ok {
				return found, true
			}
			path = path[:n]
		}
	case Array:
		for e := c.Array(); e.Next(); {
			path = append(path, '[')
			path = append(strconv.AppendInt(path, int64(e.n), 10), ']')
			if found, ok := c.locate(offset, path); ok {
				return found, true
			}
			path = path[:n]
		}
	default:
		c.Skip()
	}
	return path, c.err != nil || offset < c.pos
}
