package enginesim

import (
	"unicode/utf8"
)

// token is one unit of text. The tokenizer is simple and reversible: text is
// cut, from the left, into pieces of at most six bytes; a piece is a run of
// letters and digits with the space before it, or one other character. English
// prose comes to about four characters a token. A word's pieces don't depend
// on what follows the word, so the tokens of a text are a prefix of the tokens
// of the text continued at a word's end: what a prefix cache needs.
//
// A token's number holds its piece: the length in bits 48 to 50, the bytes
// below. It stays under 2^53, the largest integer that every JSON reader keeps.
type token uint64

const pieceMax = 6

// Marks around a message, as in ChatML. Their length field is 7, which no piece has.
const (
	startMark token = 7<<48 | iota
	endMark
)

// pieceLen returns the length of the first piece of s, which isn't empty.
func pieceLen(s string) int {
	i := 0
	if s[0] == ' ' {
		i = 1
	}
	for i < len(s) && i < pieceMax {
		c := s[i]
		if c >= utf8.RuneSelf {
			_, n := utf8.DecodeRuneInString(s[i:])
			if i+n > pieceMax {
				break
			}
			i += n
			continue
		}
		if !alphanumeric(c) {
			break
		}
		i++
	}
	return max(i, 1)
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

func packToken(piece string) token {
	t := token(len(piece)) << 48
	for i := range len(piece) {
		t |= token(piece[i]) << (8 * i)
	}
	return t
}

// appendTokens adds the tokens of text to ts.
func appendTokens(ts []token, text string) []token {
	for text != "" {
		n := pieceLen(text)
		ts = append(ts, packToken(text[:n]))
		text = text[n:]
	}
	return ts
}

// pieceEnds returns where each piece of text ends.
func pieceEnds(text string) []int32 {
	ends := make([]int32, 0, len(text)/4+1)
	for at := 0; at < len(text); {
		at += pieceLen(text[at:])
		ends = append(ends, int32(at)) //nolint:gosec // texts are bounded by the context length
	}
	return ends
}

// appendPiece adds a token's text to b. Marks and foreign numbers have none.
func appendPiece(b []byte, t token) []byte {
	n := int(t >> 48)
	if n > pieceMax {
		return b
	}
	for range n {
		b = append(b, byte(t&0xff))
		t >>= 8
	}
	return b
}
