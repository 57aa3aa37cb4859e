package inference

import (
	"strconv"

	"weir/api/inference/jsonscan"
	"weir/tenants"
)

// Bounds of single parameters.
const (
	maxName      = 256 // bytes of a model's name
	maxChoices   = 8
	maxOutput    = 1 << 24 // tokens; the model's own bound is lower
	maxStops     = 4
	maxTokenIDs  = 256
	maxBiases    = 1024
	maxTokenID   = 1<<31 - 1
	maxModality  = 8
	maxTemplates = 16
)

// readBool reads a boolean and returns it.
func (p *parse) readBool() bool { return p.expect(jsonscan.Bool) && p.Bool() }

func boolean(p *parse) { p.readBool() }

// readInteger reads an integer between the bounds, which are part of it.
func (p *parse) readInteger(low, high int64) int {
	if !p.expect(jsonscan.Number) {
		return 0
	}
	at := p.Offset()
	text := p.Number()
	n, err := strconv.ParseInt(string(text), 10, 64)
	switch {
	case p.Err() != nil:
	case err != nil && !digitsOnly(text):
		p.refuse(at, codeType, "%s must be an integer.")
	case n < low:
		p.refuse(at, codeIntegerBelow, "%s is %d, but must be at least %d.", n, low)
	case n > high || err != nil:
		p.refuse(at, codeIntegerAbove, "%s is above %d, the most that it may be.", high)
	}
	return int(n)
}

func digitsOnly(text []byte) bool {
	for i, b := range text {
		if (b < '0' || b > '9') && (i > 0 || b != '-') {
			return false
		}
	}
	return true
}

func integer(low, high int64) func(*parse) {
	return func(p *parse) { p.readInteger(low, high) }
}

func decimal(low, high float64) func(*parse) {
	return func(p *parse) {
		if !p.expect(jsonscan.Number) {
			return
		}
		at := p.Offset()
		n, err := strconv.ParseFloat(string(p.Number()), 64)
		switch {
		case p.Err() != nil:
		case n < low:
			p.refuse(at, codeDecimalBelow, "%s is below %g, the least that it may be.", low)
		case n > high || err != nil:
			p.refuse(at, codeDecimalAbove, "%s is above %g, the most that it may be.", high)
		}
	}
}

// readText reads a string of at most max bytes as it stands in the body.
func (p *parse) readText(most int) []byte {
	if !p.expect(jsonscan.String) {
		return nil
	}
	at := p.Offset()
	text := p.Text()
	if len(text) > most {
		p.refuse(at, codeStringLong, "%s has more than %d bytes.", most)
	}
	return text
}

func (p *parse) readString() {
	if p.expect(jsonscan.String) {
		p.Text()
	}
}

// readWord reads a string that must be one of the words, and returns it.
func (p *parse) readWord(words ...string) string {
	if !p.expect(jsonscan.String) {
		return ""
	}
	at := p.Offset()
	text := jsonscan.Unquote(p.Text())
	for _, w := range words {
		if w == string(text) {
			return w
		}
	}
	p.refuse(at, codeUnsupported, "%s must be one of %q.", words)
	return ""
}

func oneOf(words ...string) func(*parse) {
	return func(p *parse) { p.readWord(words...) }
}

func (p *parse) readModel() {
	if !p.expect(jsonscan.String) {
		return
	}
	at := p.Offset()
	if p.call.Model = string(jsonscan.Unquote(p.readText(maxName))); p.call.Model == "" {
		p.refuse(at, codeValue, "%s must not be empty.")
	}
}

func (p *parse) readTier() {
	switch p.readWord("auto", "default", "flex", "priority", "fast", "ultrafast", "scale") {
	case "flex":
		p.call.Tier = tenants.TierFlex
	case "priority", "fast", "ultrafast", "scale":
		p.call.Tier = tenants.TierPriority
	default:
		p.call.Tier = tenants.TierDefault
	}
}

func (p *parse) readStreamOptions() {
	if !p.expect(jsonscan.Object) {
		return
	}
	p.streamOptions = true
	for m := p.Object(); m.Next(); {
		switch {
		case p.Kind() == jsonscan.Null:
			p.Null()
		case string(m.Name()) == "include_usage":
			p.call.IncludeUsage = p.readBool()
		default:
			p.ignore("stream_options." + string(m.Name()))
			p.Skip()
		}
	}
}

func (p *parse) readStop() {
	if p.Kind() == jsonscan.String {
		p.Text()
		return
	}
	p.array(maxStops, p.readString)
}

func (p *parse) readTokenIDs() {
	p.array(maxTokenIDs, func() { p.readInteger(0, maxTokenID) })
}

// array reads an array of at most that many elements and returns their number.
func (p *parse) array(most int, element func()) int {
	if !p.expect(jsonscan.Array) {
		return 0
	}
	at := p.Offset()
	e := p.Array()
	for e.Next() {
		if e.N() == most {
			p.refuse(at, codeArrayLong, "%s has more than %d elements, the most that it may have.", most)
			return most
		}
		element()
	}
	return e.N()
}

func (p *parse) readLogitBias() {
	if !p.expect(jsonscan.Object) {
		return
	}
	at, n := p.Offset(), 0
	for m := p.Object(); m.Next(); n++ {
		if n == maxBiases {
			p.refuse(at, codeArrayLong, "%s has more than %d members, the most that it may have.", maxBiases)
			return
		}
		if id, err := strconv.ParseInt(string(m.Name()), 10, 64); err != nil || id < 0 || id > maxTokenID {
			p.refuse(at, codeValue, "The names in %s must be token ids.")
			return
		}
		decimal(-100, 100)(p)
	}
}

func (p *parse) readEffort() {
	p.effort = p.readWord("none", "minimal", "low", "medium", "high", "xhigh", "max")
}

// readModalities takes text, which is all that models answer in.
func (p *parse) readModalities() {
	p.array(maxModality, func() { p.readWord("text") })
}

// settleStore decides whether the answer is to be kept, which takes a plan that
// keeps anything. Metadata is of use with kept answers alone.
func (p *parse) settleStore() {
	if who := p.in.Principal; p.store && (who == nil || who.Plan == nil || who.Plan.RetentionDays == 0) {
		p.store = false
		p.ignore("store")
	}
	switch m := p.find("metadata"); {
	case m == nil:
	case p.store:
		p.metadata = p.body[m.value:m.end]
	default:
		p.ignore("metadata")
	}
}

func (p *parse) readEcho() {
	p.Kind()
	at := p.Offset()
	if p.readBool() {
		p.refuse(at, codeUnsupported, "%s may not be true: the prompt is not echoed.")
	}
}

func unlessOne(p *parse) {
	p.Kind()
	at := p.Offset()
	if p.readInteger(1, 100) > 1 {
		p.refuse(at, codeUnsupported, "%s may only be 1; use 'n'.")
	}
}

func unlessEmpty(p *parse) {
	p.Kind()
	at := p.Offset()
	if p.expect(jsonscan.String) && len(p.Text()) > 0 {
		p.refuse(at, codeUnsupported, "%s is not supported: the models complete at the end only.")
	}
}
