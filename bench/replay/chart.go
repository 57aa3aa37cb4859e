package main

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// chart is a plot of lines, written as SVG.
type chart struct {
	title, x, y string
	logX, logY  bool
	ticks       []float64 // of x; none: chosen
	lines       []curve
	limits      []limit
}

// curve is one named line.
type curve struct {
	name string
	xy   [][2]float64
}

// limit is a level that the reader should see.
type limit struct {
	name string
	y    float64
}

const (
	chartWidth, chartHeight                     = 640, 380
	chartLeft, chartRight, chartTop, chartBelow = 64, 140, 36, 48
)

// palette is told apart without red and green (Okabe and Ito).
func palette() []string {
	return []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000"}
}

// svg draws the chart.
func (c chart) svg() string {
	var w strings.Builder
	fmt.Fprintf(&w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", chartWidth, chartHeight)
	fmt.Fprintf(&w, `<title>%s</title><rect width="100%%" height="100%%" fill="#fff"/>`+"\n", html.EscapeString(c.title))
	fmt.Fprintf(&w, `<text x="%d" y="20" font-size="14" font-weight="bold">%s</text>`+"\n", chartLeft, html.EscapeString(c.title))
	xs, ys := c.scales()
	c.axes(&w, xs, ys)
	for i, l := range c.lines {
		l.draw(&w, palette()[i%len(palette())], i, xs, ys)
	}
	for _, l := range c.limits {
		y := ys.at(l.y)
		fmt.Fprintf(&w, `<path d="M%d %.1fH%d" stroke="#888" stroke-dasharray="5 4" fill="none"/><text x="%d" y="%.1f" fill="#666" font-size="11">%s</text>`+"\n",
			chartLeft, y, chartWidth-chartRight, chartLeft+6, y-4, html.EscapeString(l.name))
	}
	w.WriteString("</svg>\n")
	return w.String()
}

// draw writes a line, its points and its name.
func (l curve) draw(w *strings.Builder, colour string, i int, xs, ys scale) {
	var d strings.Builder
	for j, p := range l.xy {
		step := 'L'
		if j == 0 {
			step = 'M'
		}
		fmt.Fprintf(&d, "%c%.1f %.1f", step, xs.at(p[0]), ys.at(p[1]))
	}
	fmt.Fprintf(w, `<path d="%s" stroke="%s" stroke-width="2" fill="none"/>`+"\n", d.String(), colour)
	for _, p := range l.xy {
		fmt.Fprintf(w, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, xs.at(p[0]), ys.at(p[1]), colour)
	}
	y := chartTop + 8 + 20*i
	fmt.Fprintf(w, "\n"+`<path d="M%d %dh18" stroke="%s" stroke-width="2"/><text x="%d" y="%d">%s</text>`+"\n",
		chartWidth-chartRight+12, y, colour, chartWidth-chartRight+36, y+4, html.EscapeString(l.name))
}

// scale turns values into places.
type scale struct {
	from, to float64 // values
	at0, at1 float64 // places
	log      bool
	ticks    []float64
}

func (s scale) at(v float64) float64 {
	a, b := s.from, s.to
	if s.log {
		v, a, b = math.Log(max(v, a)), math.Log(a), math.Log(b)
	}
	return s.at0 + (v-a)/(b-a)*(s.at1-s.at0)
}

func (c chart) scales() (xs, ys scale) {
	var x, y []float64
	for _, l := range c.lines {
		for _, p := range l.xy {
			x, y = append(x, p[0]), append(y, p[1])
		}
	}
	for _, l := range c.limits {
		y = append(y, l.y)
	}
	xs = scaleOf(x, c.logX, chartLeft, chartWidth-chartRight)
	ys = scaleOf(append(y, 0), c.logY, chartHeight-chartBelow, chartTop)
	if len(c.ticks) > 0 {
		xs.ticks, xs.from, xs.to = c.ticks, slices.Min(c.ticks), slices.Max(c.ticks)
	}
	return xs, ys
}

// scaleOf covers the values, in whole decades or from tick to tick.
func scaleOf(values []float64, log bool, at0, at1 float64) scale {
	s := scale{at0: at0, at1: at1, log: log}
	if log {
		values = slices.DeleteFunc(values, func(v float64) bool { return v <= 0 })
		s.from = math.Pow(10, math.Floor(math.Log10(slices.Min(values))))
		s.to = math.Pow(10, math.Ceil(math.Log10(slices.Max(values))))
		if s.to <= s.from {
			s.to = 10 * s.from
		}
		for v := s.from; v <= s.to*1.01; v *= 10 {
			s.ticks = append(s.ticks, v)
		}
		return s
	}
	s.from, s.to = slices.Min(values), slices.Max(values)
	step := math.Pow(10, math.Floor(math.Log10(max(s.to-s.from, 1e-9))))
	for (s.to-s.from)/step < 4 {
		step /= 2
	}
	s.from, s.to = math.Floor(s.from/step)*step, math.Ceil(s.to/step)*step
	for v := s.from; v <= s.to+step/2; v += step {
		s.ticks = append(s.ticks, v)
	}
	return s
}

func (c chart) axes(w *strings.Builder, xs, ys scale) {
	bottom := chartHeight - chartBelow
	for _, v := range ys.ticks {
		y := ys.at(v)
		fmt.Fprintf(w, `<path d="M%d %.1fH%d" stroke="#ddd"/><text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n",
			chartLeft, y, chartWidth-chartRight, chartLeft-6, y+4, short(v))
	}
	for _, v := range xs.ticks {
		fmt.Fprintf(w, `<path d="M%.1f %dv5" stroke="#444"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			xs.at(v), bottom, xs.at(v), bottom+18, short(v))
	}
	fmt.Fprintf(w, `<path d="M%d %dH%d" stroke="#444"/>`+"\n", chartLeft, bottom, chartWidth-chartRight)
	fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="middle">%s</text>`+"\n", (chartLeft+chartWidth-chartRight)/2, chartHeight-10, html.EscapeString(c.x))
	fmt.Fprintf(w, `<text transform="translate(14 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n", (chartTop+bottom)/2, html.EscapeString(c.y))
}

// short writes a tick.
func short(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'g', 4, 64) + "M"
	case v >= 1e4:
		return strconv.FormatFloat(v/1e3, 'g', 4, 64) + "k"
	default:
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
}
