package media

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/ledongthuc/pdf"
)

// Bounds of a document. Time and memory are bounded by the process.
const (
	maxPages = 2000
	maxText  = 4 << 20 // bytes
	maxForms = 8       // forms within forms
)

var errTextLong = errors.New("the text is too long")

// pdfText reads the text of a document, page after page. What is broken panics
// in the library more often than not: every panic is an error here.
func pdfText(raw []byte) (text string, err error) {
	defer func() {
		if v := recover(); v != nil {
			text, err = "", fmt.Errorf("read document: %v", v)
		}
	}()
	doc, err := pdf.NewReader(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		return "", fmt.Errorf("open document: %w", err)
	}
	pages := doc.NumPage()
	if pages > maxPages {
		return "", fmt.Errorf("the document has %d pages, more than %d", pages, maxPages)
	}
	p := &pdfPage{fonts: map[string]*pdfFont{}}
	for i := 1; i <= pages; i++ {
		clear(p.fonts) // a name is the page's own
		page := doc.Page(i)
		p.line.begun = false
		p.interpret(page.V.Key("Contents"), page.Resources(), identity(), 0)
		if p.out.Len() > 0 && p.line.begun {
			p.out.WriteByte('\n')
		}
	}
	return strings.TrimSpace(strings.Map(printable, p.out.String())), nil
}

// printable drops what fonts without a table of letters leave behind.
func printable(r rune) rune {
	if r == utf8.RuneError || r < ' ' && r != '\n' && r != '\t' {
		return -1
	}
	return r
}

// pdfPage gathers the text of pages. A page says where each piece of text
// stands, not where words and lines end: that is seen from the gaps.
type pdfPage struct {
	out   strings.Builder
	fonts map[string]*pdfFont
	state textState
	saved []textState
	line  struct {
		begun bool
		x, y  float64 // where the last piece ended
		size  float64 // of its letters
	}
}

// textState is the part of the graphics state that places text (ISO 32000-1,
// 9.3).
type textState struct {
	at, lineAt, page matrix // text, line and transformation matrix
	font             *pdfFont
	size             float64
	chars, words     float64 // spacing
	scale            float64
	leading          float64
}

// matrix is [a b c d e f] of ISO 32000-1, 8.3.3.
type matrix [6]float64

func identity() matrix { return matrix{1, 0, 0, 1, 0, 0} }

func (m matrix) times(n matrix) matrix {
	return matrix{
		m[0]*n[0] + m[1]*n[2], m[0]*n[1] + m[1]*n[3],
		m[2]*n[0] + m[3]*n[2], m[2]*n[1] + m[3]*n[3],
		m[4]*n[0] + m[5]*n[2] + n[4], m[4]*n[1] + m[5]*n[3] + n[5],
	}
}

func (p *pdfPage) interpret(content, resources pdf.Value, from matrix, depth int) {
	if content.IsNull() {
		return
	}
	p.state = textState{at: identity(), lineAt: identity(), page: from, scale: 1}
	p.saved = nil
	pdf.Interpret(content, func(stack *pdf.Stack, op string) {
		args := make([]pdf.Value, stack.Len())
		for i := len(args) - 1; i >= 0; i-- {
			args[i] = stack.Pop()
		}
		if op == "Do" && len(args) == 1 {
			p.form(resources.Key("XObject").Key(args[0].Name()), resources, depth)
			return
		}
		p.operate(op, args, resources)
	})
}

// form draws content that a page shares with others, text included.
func (p *pdfPage) form(form, outer pdf.Value, depth int) {
	if form.Key("Subtype").Name() != "Form" || depth == maxForms {
		return
	}
	resources := form.Key("Resources")
	if resources.IsNull() {
		resources = outer
	}
	state, saved, fonts := p.state, p.saved, p.fonts
	p.fonts = map[string]*pdfFont{}
	p.interpret(form, resources, state.page, depth+1)
	p.state, p.saved, p.fonts = state, saved, fonts
}

func numbers(args []pdf.Value) (n [6]float64) {
	for i := range min(len(args), len(n)) {
		n[i] = args[i].Float64()
	}
	return n
}

// operate runs one operator (ISO 32000-1, annex A); those that place no text do
// nothing.
func (p *pdfPage) operate(op string, args []pdf.Value, resources pdf.Value) {
	s, n := &p.state, numbers(args)
	switch op {
	case "q":
		if len(p.saved) < 1024 {
			p.saved = append(p.saved, *s)
		}
	case "Q":
		if last := len(p.saved) - 1; last >= 0 {
			p.state, p.saved = p.saved[last], p.saved[:last]
		}
	case "cm":
		s.page = matrix(n).times(s.page)
	case "BT":
		s.at, s.lineAt = identity(), identity()
	case "Tc":
		s.chars = n[0]
	case "Tw":
		s.words = n[0]
	case "Tz":
		s.scale = n[0] / 100
	case "TL":
		s.leading = n[0]
	case "Tf":
		if len(args) == 2 {
			s.font, s.size = p.fontOf(args[0].Name(), resources), args[1].Float64()
		}
	case "Tm":
		s.at, s.lineAt = n, n
	case "TD":
		s.leading = -n[1]
		s.move(n[0], n[1])
	case "Td":
		s.move(n[0], n[1])
	case "T*":
		s.move(0, -s.leading)
	default:
		p.show(op, args)
	}
}

func (s *textState) move(x, y float64) {
	s.lineAt = matrix{1, 0, 0, 1, x, y}.times(s.lineAt)
	s.at = s.lineAt
}

// show runs the operators that show text.
func (p *pdfPage) show(op string, args []pdf.Value) {
	s := &p.state
	switch {
	case op == "Tj" && len(args) == 1:
		p.text(args[0].RawString())
	case op == "'" && len(args) == 1:
		s.move(0, -s.leading)
		p.text(args[0].RawString())
	case op == `"` && len(args) == 3:
		s.words, s.chars = args[0].Float64(), args[1].Float64()
		s.move(0, -s.leading)
		p.text(args[2].RawString())
	case op == "TJ" && len(args) == 1:
		for i := range args[0].Len() {
			if piece := args[0].Index(i); piece.Kind() == pdf.String {
				p.text(piece.RawString())
			} else {
				s.at = matrix{1, 0, 0, 1, -piece.Float64() / 1000 * s.size * s.scale, 0}.times(s.at)
			}
		}
	}
}

// Gaps, in sizes of the letters: a new line is another height, a new word a
// step ahead that is wider than kerning, or a step back.
const (
	lineGap = 0.4
	wordGap = 0.15
	backGap = 1.0
)

// text writes one piece, and before it what the gap to the last one means.
func (p *pdfPage) text(codes string) {
	s := &p.state
	if s.font == nil || codes == "" {
		return
	}
	text, width, n := s.font.decode(codes)
	place := s.at.times(s.page)
	size := max(abs(s.size*place[3]), abs(s.size*place[1]), 1)
	if p.line.begun {
		dx, dy := place[4]-p.line.x, abs(place[5]-p.line.y)
		switch letters := max(size, p.line.size); {
		case dy > lineGap*letters:
			p.out.WriteByte('\n')
		case (dx > wordGap*letters || dx < -backGap*letters) && !strings.HasPrefix(text, " "):
			p.out.WriteByte(' ')
		}
	}
	p.out.WriteString(text)
	if p.out.Len() > maxText {
		panic(errTextLong)
	}
	step := (width/1000*s.size + float64(n)*s.chars + float64(strings.Count(codes, " "))*s.words) * s.scale
	s.at = matrix{1, 0, 0, 1, step, 0}.times(s.at)
	end := s.at.times(s.page)
	p.line.begun, p.line.x, p.line.y, p.line.size = true, end[4], end[5], size
}

func abs(x float64) float64 { return max(x, -x) }
