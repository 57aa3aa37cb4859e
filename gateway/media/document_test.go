package media

import (
	"bytes"
	"compress/zlib"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// TestMain lets this test's program be the one that reads documents.
func TestMain(m *testing.M) {
	if os.Args[0] == "extract-test" {
		if err := Extract(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func newExtractor(t *testing.T) *Extractor {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return NewExtractor(self, "extract-test")
}

// document is a PDF document with one page for each content, in Helvetica (F1)
// and a composite font (F2) that shows letters by the numbers of its glyphs.
func document(contents ...string) []byte {
	return documentOf("", contents...)
}

func documentOf(filter string, contents ...string) []byte {
	cmap := "begincmap 1 begincodespacerange <0000> <FFFF> endcodespacerange 2 beginbfchar <0001> <0041> <0002> <00C4> endbfchar endcmap"
	objects := []string{
		"<</Type/Catalog/Pages 2 0 R>>",
		"", // the pages
		"<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding/FirstChar 32/LastChar 126/Widths[" + strings.Repeat("500 ", 95) + "]>>",
		"<</Type/Font/Subtype/Type0/BaseFont/X/Encoding/Identity-H/DescendantFonts[5 0 R]/ToUnicode 6 0 R>>",
		"<</Type/Font/Subtype/CIDFontType2/BaseFont/X/DW 1000/W[1 [600] 2 3 700]>>",
		fmt.Sprintf("<</Length %d>>stream\n%s\nendstream", len(cmap), cmap),
		"<</Type/XObject/Subtype/Form/BBox[0 0 9 9]/Length 41>>stream\nBT /F1 12 Tf 10 500 Td (in a form) Tj ET  \nendstream",
	}
	var kids strings.Builder
	for _, c := range contents {
		n := len(objects) + 1
		objects = append(objects,
			fmt.Sprintf("<</Type/Page/Parent 2 0 R/Contents %d 0 R/Resources<</Font<</F1 3 0 R/F2 4 0 R>>/XObject<</Fm 7 0 R>>>>>>", n+1),
			fmt.Sprintf("<</Length %d%s>>stream\n%s\nendstream", len(c), filter, c))
		fmt.Fprintf(&kids, "%d 0 R ", n)
	}
	objects[1] = fmt.Sprintf("<</Type/Pages/Kids[%s]/Count %d>>", kids.String(), len(contents))
	var b bytes.Buffer
	b.WriteString("%PDF-1.4\n")
	offsets := make([]int, len(objects))
	for i, o := range objects {
		offsets[i] = b.Len()
		fmt.Fprintf(&b, "%d 0 obj\n%s\nendobj\n", i+1, o)
	}
	at := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(objects)+1)
	for _, o := range offsets {
		fmt.Fprintf(&b, "%010d 00000 n \n", o)
	}
	fmt.Fprintf(&b, "trailer\n<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n", len(objects)+1, at)
	return b.Bytes()
}

func deflate(t *testing.T, pieces ...string) string {
	t.Helper()
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	for _, p := range pieces {
		if _, err := w.Write([]byte(p)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTextIsReadAsItStandsOnThePage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, content, want string }{
		{"a line", "BT /F1 12 Tf 72 700 Td (Hello) Tj ET", "Hello"},
		{"kerning is no space", "BT /F1 12 Tf 72 700 Td [(Wa) 80 (ter)] TJ ET", "Water"},
		{"a wide gap in a line is a space", "BT /F1 12 Tf 72 700 Td [(two) -300 (words)] TJ ET", "two words"},
		{"a space is not doubled", "BT /F1 12 Tf 72 700 Td [(two) -300 ( words)] TJ ET", "two words"},
		{"a move down is a line", "BT /F1 12 Tf 72 700 Td (one) Tj 0 -14 Td (two) Tj ET", "one\ntwo"},
		{"leading", "BT /F1 12 Tf 14 TL 72 700 Td (one) Tj T* (two) Tj (three) ' 1 2 (four) \" ET", "one\ntwo\nthree\nfour"},
		{"TD sets the leading", "BT /F1 12 Tf 72 700 Td (one) Tj 0 -14 TD (two) Tj T* (three) Tj ET", "one\ntwo\nthree"},
		{"a superscript stays in its line", "BT /F1 12 Tf 72 700 Td (x) Tj /F1 8 Tf 6 4 Td (2) Tj ET", "x2"},
		{"pieces that touch are a word", "BT /F1 12 Tf 72 700 Td (foot) Tj 24 0 Td (ball) Tj ET", "football"},
		{"columns of a table", "BT /F1 12 Tf 72 700 Td (a) Tj 100 0 Td (b) Tj ET", "a b"},
		{"a scaled page", "q 2 0 0 2 0 0 cm BT /F1 6 Tf 36 350 Td (small) Tj 0 -7 Td (print) Tj ET Q", "small\nprint"},
		{"a text matrix", "BT /F1 1 Tf 12 0 0 12 72 700 Tm (by) Tj 12 0 0 12 90 700 Tm (Tm) Tj ET", "by Tm"},
		{"glyphs by number", "BT /F2 12 Tf 72 700 Td <00010002> Tj ET", "AÄ"},
		{"a form", "BT /F1 12 Tf 72 700 Td (page,) Tj ET /Fm Do", "page,\nin a form"},
		{"no font", "BT 72 700 Td (lost) Tj ET", ""},
		{"operators without what they need", "Q Td Q Tm Tf BT Tj ' \" TJ /F1 12 Tf ET", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := pdfText(document(tt.content))
			if err != nil || got != tt.want {
				t.Errorf("%q, %v; want %q", got, err, tt.want)
			}
		})
	}
	got, err := pdfText(document("BT /F1 12 Tf 72 700 Td (page one) Tj ET", "BT /F1 12 Tf 72 700 Td (page two) Tj ET"))
	if err != nil || got != "page one\npage two" {
		t.Errorf("two pages: %q, %v", got, err)
	}
}

func TestDocumentsAreReadInAProcessOfTheirOwn(t *testing.T) {
	t.Parallel()
	x := newExtractor(t)
	text, err := x.text(t.Context(), documentOf("/Filter/FlateDecode", deflate(t, "BT /F1 12 Tf 72 700 Td (Hello) Tj ET")))
	if err != nil || text != "Hello" {
		t.Fatalf("%q, %v", text, err)
	}
	if _, err := x.text(t.Context(), document("0 0 9 9 re f")); !errors.Is(err, errNoText) {
		t.Errorf("a scan: %v", err)
	}
	long := strings.Repeat("a", 1<<20)
	for name, bomb := range map[string][]byte{
		"more text than a document has": documentOf("/Filter/FlateDecode", deflate(t, "BT /F1 12 Tf ", strings.Repeat("("+long+") Tj ", 5), "ET")),
		"a string beyond all memory":    documentOf("/Filter/FlateDecode", deflate(t, "BT /F1 12 Tf (", strings.Repeat(long, 700), ") Tj ET")),
		"forms without end":             bytes.Replace(document("/Fm Do"), []byte("BT /F1 12 Tf 10 500 Td (in a form) Tj ET  "), []byte(strings.Repeat("/Fm Do ", 5)+"      "), 1),
		"nothing":                       nil,
		"a header alone":                []byte("%PDF-1.7\n"),
	} {
		if text, err := x.text(t.Context(), bomb); err == nil {
			t.Errorf("%s: %d bytes", name, len(text))
		} else if !errors.Is(err, errUnreadable) && !errors.Is(err, errNoText) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.text(ctx, document("")); !errors.Is(err, context.Canceled) {
		t.Errorf("for a caller that left: %v", err)
	}
	if _, err := NewExtractor("/nonexistent/weir", "weir").text(t.Context(), document("")); err == nil || errors.Is(err, errUnreadable) {
		t.Errorf("a program that isn't there is the document's fault: %v", err)
	}
}

// broken returns a document with some bytes changed, cut or doubled.
func broken(whole []byte, r *rand.Rand) []byte {
	b := bytes.Clone(whole)
	for range 1 + r.IntN(8) {
		at := r.IntN(len(b))
		switch r.IntN(4) {
		case 0:
			b[at] = byte(r.Uint32())
		case 1:
			b = b[:max(at, 1)]
		case 2:
			b = append(b[:at:at], b[min(at+r.IntN(64), len(b)-1):]...)
		default:
			b = append(b[:at:at], append(bytes.Clone(b[at:min(at+64, len(b))]), b[at:]...)...)
		}
	}
	return b
}

func TestABrokenDocumentIsAnErrorAndNothingElse(t *testing.T) {
	t.Parallel()
	x := newExtractor(t)
	whole := document("BT /F1 12 Tf 72 700 Td [(Wa) 80 (ter)] TJ ET /Fm Do", "BT /F2 12 Tf <00010002> Tj ET")
	r := rand.New(rand.NewPCG(1, 2))
	failed := 0
	for range 60 {
		_, err := x.text(t.Context(), broken(whole, r))
		if err != nil && !errors.Is(err, errUnreadable) && !errors.Is(err, errNoText) {
			t.Fatal(err)
		}
		if err != nil {
			failed++
		}
	}
	if failed == 0 {
		t.Error("no document was broken enough to test anything")
	}
}

// FuzzDocuments looks for what kills the process that reads a document: an
// error is fine, and a panic is one.
func FuzzDocuments(f *testing.F) {
	f.Add(document("BT /F1 12 Tf 72 700 Td [(Wa) 80 (ter)] TJ ET /Fm Do"))
	f.Add(document("BT /F2 12 Tf <00010002> Tj ET", "q 2 0 0 2 0 0 cm Q"))
	f.Add([]byte("%PDF-1.4\ntrailer<</Root 1 0 R>>\nstartxref\n9\n%%EOF"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		text, err := pdfText(raw)
		if err == nil && strings.ContainsFunc(text, func(r rune) bool { return r == 0 || r == '\uFFFD' }) {
			t.Errorf("%q", text)
		}
	})
}
