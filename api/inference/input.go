package inference

import "weir/api/inference/jsonscan"

// Bounds of what is completed or embedded at once.
const (
	maxPrompts = 128
	maxInputs  = 2048
)

// readPrompt reads the prompt of a completion: a string, token ids, or an
// array of either, each of which is answered by n choices.
func (p *parse) readPrompt() { p.prompts = p.readTexts(maxPrompts) }

// readInput reads what is to be embedded.
func (p *parse) readInput() { p.readTexts(maxInputs) }

// readTexts reads one of the four forms and returns how many texts there are.
func (p *parse) readTexts(most int) int {
	if p.Kind() == jsonscan.String {
		p.filled()
		return 1
	}
	if p.Kind() != jsonscan.Array {
		if p.Kind() == jsonscan.Invalid {
			p.Skip()
		}
		p.refuse(p.Offset(), codeType, "%s must be a string, an array of strings, or token ids, but is %s.", p.Kind())
		return 0
	}
	at := p.Offset()
	e := p.Array()
	kind := jsonscan.Invalid
	for e.Next() {
		got := p.Kind()
		if e.N() == 0 {
			kind = got
		}
		if got != kind && got != jsonscan.Invalid {
			p.refuse(p.Offset(), codeType, "%s is %s among elements that are %s.", got, kind)
		}
		if kind != jsonscan.Number && e.N() == most {
			p.refuse(at, codeArrayLong, "%s has more than %d elements, the most that it may have.", most)
		}
		p.readTextElement(kind)
	}
	switch {
	case e.N() == 0:
		p.refuse(at, codeArrayShort, "%s must not be empty.")
	case kind == jsonscan.Number:
		return 1
	}
	return e.N()
}

func (p *parse) readTextElement(kind jsonscan.Kind) {
	switch kind {
	case jsonscan.String:
		p.filled()
	case jsonscan.Number:
		p.readInteger(0, maxTokenID)
	case jsonscan.Array:
		at := p.Offset()
		e := p.Array()
		for e.Next() {
			p.readInteger(0, maxTokenID)
		}
		if e.N() == 0 {
			p.refuse(at, codeArrayShort, "%s must not be empty.")
		}
	case jsonscan.Invalid:
		p.Skip()
	default:
		p.refuse(p.Offset(), codeType, "%s must be a string or token ids, but is %s.", kind)
	}
}

// filled reads a string that is not empty.
func (p *parse) filled() {
	at := p.Offset()
	if text := p.Text(); p.Err() == nil && len(text) == 0 {
		p.refuse(at, codeValue, "%s must not be empty.")
	}
}
