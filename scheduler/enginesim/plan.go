package enginesim

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
)

type part int

const (
	reasoningPart part = iota
	contentPart
	toolPart
)

// segment is a stretch of an answer that goes to one field.
type segment struct {
	part part
	tool int    // index of the call
	id   string // of the call
	name string // of the function
	text string // what the caller sees
	ends []int32
}

// piece returns the text of token i.
func (s *segment) piece(i int) string {
	from := int32(0)
	if i > 0 {
		from = s.ends[i-1]
	}
	return s.text[from:s.ends[i]]
}

// plan is a whole answer, decided before its first token is made.
type plan struct {
	segments []segment
	finish   string // finish_reason
}

func (p *plan) tokens() int {
	n := 0
	for i := range p.segments {
		n += len(p.segments[i].ends)
	}
	return n
}

// reasoningIn counts the reasoning tokens among the first n.
func (p *plan) reasoningIn(n int) int {
	if len(p.segments) == 0 || p.segments[0].part != reasoningPart {
		return 0
	}
	return min(n, len(p.segments[0].ends))
}

// toolCall is a call that an answer shall make.
type toolCall struct {
	name   string
	schema json.RawMessage
}

// order is what a request asks of an answer.
type order struct {
	maxTokens   int // at least 1
	minTokens   int
	ignoreEOS   bool
	stop        []string
	includeStop bool
	reasoning   bool
	json        bool
	schema      json.RawMessage
	calls       []toolCall
	wide        bool // with characters of several bytes
}

// write plans the answer to an order.
func (v vocabulary) write(rng *rand.Rand, o order) plan {
	var p plan
	p.finish = "stop"
	if o.reasoning {
		text := v.prose(rng, "Simulated thinking.", 8+rng.IntN(24))
		p.segments = append(p.segments, segment{part: reasoningPart, text: text, ends: pieceEnds(text)})
	}
	switch {
	case len(o.calls) > 0:
		p.finish = "tool_calls"
		for i, c := range o.calls {
			text := sampleJSON(v, rng, c.schema)
			p.segments = append(p.segments, segment{
				part: toolPart, tool: i, id: "call_" + randomHex(rng), name: c.name, text: text, ends: pieceEnds(text),
			})
		}
	case o.json:
		text := sampleJSON(v, rng, o.schema)
		p.segments = append(p.segments, segment{part: contentPart, text: text, ends: pieceEnds(text)})
	default:
		p.segments = append(p.segments, v.content(rng, o, p.tokens()))
	}
	if o.ignoreEOS && p.tokens() == o.maxTokens {
		p.finish = "length"
	}
	p.cut(o.maxTokens)
	return p
}

// content writes prose: a few sentences, or as many as the order insists on.
func (v vocabulary) content(rng *rand.Rand, o order, before int) segment {
	opening := "Simulated answer."
	if o.wide {
		opening += " Größe, 水門, \U0001f30a."
	}
	n := 24 + rng.IntN(64)
	if o.ignoreEOS {
		n = o.maxTokens - before
	}
	// No more text than shows that a limit cut it.
	n = max(min(n, o.maxTokens+1), o.minTokens-before)
	text := v.prose(rng, opening, n)
	s := segment{part: contentPart, text: text, ends: pieceEnds(text)}
	s.stopAt(o.stop, o.includeStop)
	return s
}

// stopAt ends the segment with the token that completes the first stop string,
// which itself isn't shown unless asked for.
func (s *segment) stopAt(stops []string, include bool) {
	at, end := -1, 0
	for _, stop := range stops {
		if i := strings.Index(s.text, stop); stop != "" && i >= 0 && (at < 0 || i+len(stop) < end) {
			at, end = i, i+len(stop)
		}
	}
	if at < 0 {
		return
	}
	if include {
		at = end
	}
	for i, e := range s.ends {
		if int(e) >= end {
			s.ends = s.ends[:i+1]
			break
		}
	}
	s.text = s.text[:at]
	for i, e := range s.ends {
		s.ends[i] = min(e, int32(at))
	}
}

// cut limits the plan to n tokens.
func (p *plan) cut(n int) {
	if p.tokens() <= n {
		return
	}
	p.finish = "length"
	for i := range p.segments {
		s := &p.segments[i]
		if len(s.ends) < n {
			n -= len(s.ends)
			continue
		}
		s.ends = s.ends[:n]
		s.text = s.text[:s.ends[n-1]]
		p.segments = p.segments[:i+1]
		return
	}
}

func randomHex(rng *rand.Rand) string {
	const digits = "0123456789abcdef"
	b := make([]byte, 24)
	for i := range b {
		b[i] = digits[rng.IntN(16)]
	}
	return string(b)
}
