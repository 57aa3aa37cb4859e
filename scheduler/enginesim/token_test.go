package enginesim

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestTokensGiveTheTextBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		var back []byte
		for _, tok := range appendTokens(nil, text) {
			if tok >= 1<<53 {
				t.Fatalf("token %d is too large for JSON", tok)
			}
			back = appendPiece(back, tok)
		}
		if string(back) != text {
			t.Fatalf("%q came back as %q", text, back)
		}
	})
}

func TestPiecesNeverCutACharacter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.String().Draw(t, "text")
		from := int32(0)
		for _, end := range pieceEnds(text) {
			if p := text[from:end]; p == "" || len(p) > pieceMax || utf8.ValidString(text) && !utf8.ValidString(p) {
				t.Fatalf("piece %q of %q", p, text)
			}
			from = end
		}
	})
}

func TestATextContinuedAtAWordKeepsItsTokens(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		words := rapid.SliceOfN(rapid.StringMatching(`[A-Za-zé]{1,14}[.,]?`), 2, 30).Draw(t, "words")
		cut := rapid.IntRange(1, len(words)-1).Draw(t, "cut")
		head := appendTokens(nil, strings.Join(words[:cut], " "))
		all := appendTokens(nil, strings.Join(words, " "))
		for i, tok := range head {
			if all[i] != tok {
				t.Fatalf("token %d differs", i)
			}
		}
	})
}

func TestProseIsAboutFourCharactersAToken(t *testing.T) {
	t.Parallel()
	text := newVocabulary().prose(newRand(1), "", 2000)
	if per := float64(len(text)) / float64(len(pieceEnds(text))); per < 3.3 || per > 4.7 {
		t.Errorf("%.2f characters a token", per)
	}
}
