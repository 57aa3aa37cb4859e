package jsonscan

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math/bits"
)

const (
	lowBits  = 0x0101010101010101
	highBits = 0x8080808080808080
)

// nextStop finds the first quote, backslash or control character at or after
// i, eight bytes at a time, and adds the bytes it passed to seen (so that the
// caller knows whether any was beyond ASCII). It returns len(data) when there
// is none.
func nextStop(data []byte, i int, seen uint64) (int, uint64) {
	for ; i+8 <= len(data); i += 8 {
		w := binary.LittleEndian.Uint64(data[i:])
		seen |= w
		// A subtraction borrows only from a byte that is itself a stop, so
		// the lowest mark is always a true one.
		quote := w ^ '"'*lowBits
		slash := w ^ '\\'*lowBits
		marks := ((quote - lowBits) &^ quote) | ((slash - lowBits) &^ slash) | ((w - ' '*lowBits) &^ w)
		if marks &= highBits; marks != 0 {
			return i + bits.TrailingZeros64(marks)/8, seen
		}
	}
	for ; i < len(data); i++ {
		b := data[i]
		if b == '"' || b == '\\' || b < ' ' {
			return i, seen
		}
		seen |= uint64(b)
	}
	return i, seen
}

// escape returns the length of the escape sequence at the start of s, or 0 and
// what is wrong with it. A surrogate pair is one sequence.
func escape(s []byte) (int, Reason) {
	if len(s) < 2 {
		return 0, Syntax
	}
	switch s[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2, ""
	case 'u':
	default:
		return 0, Syntax
	}
	r, ok := hex4(s)
	switch {
	case !ok:
		return 0, Syntax
	case r == 0:
		return 0, NULCharacter
	case r < 0xD800 || r > 0xDFFF:
		return 6, ""
	}
	if low, ok := hex4(s[6:]); !ok || r > 0xDBFF || low < 0xDC00 || low > 0xDFFF {
		return 0, LoneSurrogate
	}
	return 12, ""
}

// hex4 reads \uXXXX.
func hex4(s []byte) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, b := range s[2:6] {
		switch {
		case isDigit(b):
			r = r<<4 | rune(b-'0')
		case 'a' <= b|0x20 && b|0x20 <= 'f':
			r = r<<4 | rune(b|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// Unquote decodes what Text returned. Without escapes it is the text itself.
func Unquote(text []byte) []byte {
	if bytes.IndexByte(text, '\\') >= 0 {
		return unquote(text)
	}
	return text
}

func unquote(text []byte) []byte {
	quoted := make([]byte, 0, len(text)+2)
	quoted = append(append(append(quoted, '"'), text...), '"')
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return text // not reached: Text has checked it
	}
	return []byte(s)
}
