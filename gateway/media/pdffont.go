package media

import "github.com/ledongthuc/pdf"

// pdfFont decodes what a page shows in one font, and knows how wide it is.
type pdfFont struct {
	font    pdf.Font
	wide    bool            // codes of two bytes (a composite font)
	widths  map[int]float64 // by code, in thousandths of the size
	usual   float64         // width of the others
	letters [256]string     // of a simple font, decoded once
	known   [256]bool
}

// fontOf finds a font of the page, or makes it of the page's resources.
func (p *pdfPage) fontOf(name string, resources pdf.Value) *pdfFont {
	if f := p.fonts[name]; f != nil {
		return f
	}
	v := resources.Key("Font").Key(name)
	f := &pdfFont{font: pdf.Font{V: v}, widths: map[int]float64{}, usual: 500}
	if v.Key("Subtype").Name() == "Type0" {
		f.wide, f.usual = true, 1000
		f.readWide(v.Key("DescendantFonts").Index(0))
	} else {
		first, widths := int(v.Key("FirstChar").Int64()), v.Key("Widths")
		for i := range min(widths.Len(), 256) {
			f.widths[first+i] = widths.Index(i).Float64()
		}
	}
	p.fonts[name] = f
	return f
}

// readWide reads the widths of a composite font: runs of "code [width ...]" and
// "first last width" (ISO 32000-1, 9.7.4.3). Codes are taken for the numbers of
// glyphs, as they are in all but few documents.
func (f *pdfFont) readWide(v pdf.Value) {
	if usual := v.Key("DW"); usual.Kind() == pdf.Integer || usual.Kind() == pdf.Real {
		f.usual = usual.Float64()
	}
	list := v.Key("W")
	for i := 0; i+1 < list.Len(); {
		first, next := int(list.Index(i).Int64()), list.Index(i+1)
		if next.Kind() == pdf.Array {
			for j := range min(next.Len(), 1<<16) {
				f.widths[first+j] = next.Index(j).Float64()
			}
			i += 2
			continue
		}
		for code := max(first, 0); code <= min(int(next.Int64()), 1<<16); code++ {
			f.widths[code] = list.Index(i + 2).Float64()
		}
		i += 3
	}
}

// decode returns the text of codes, its width and the number of its letters.
func (f *pdfFont) decode(codes string) (text string, width float64, n int) {
	if f.wide {
		for i := 0; i+1 < len(codes); i += 2 {
			width += f.width(int(codes[i])<<8 | int(codes[i+1]))
			n++
		}
		return f.font.Encoder().Decode(codes), width, n
	}
	var b []byte
	for i := range len(codes) {
		c := codes[i]
		if !f.known[c] {
			f.known[c], f.letters[c] = true, f.font.Encoder().Decode(codes[i:i+1])
		}
		b = append(b, f.letters[c]...)
		width += f.width(int(c))
	}
	return string(b), width, len(codes)
}

func (f *pdfFont) width(code int) float64 {
	if w, ok := f.widths[code]; ok {
		return w
	}
	return f.usual
}
