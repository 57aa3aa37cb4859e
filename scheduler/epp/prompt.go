package epp

import (
	"bytes"

	"github.com/tidwall/gjson"
)

// prompt is what a request's body says that the scheduler wants to know.
type prompt struct {
	parts    [][]byte // in the order in which an engine's template puts them
	model    string
	salt     string
	cacheKey string
	stream   bool
	output   int // tokens at most; 0 when unknown
}

// maxOutput keeps what a body claims from overflowing a sum.
const maxOutput = 1 << 30

// parsePrompt walks over a body. ok is false for what is no JSON object, which
// a trusted body need not be asked.
func parsePrompt(body []byte, trusted bool) (p prompt, ok bool) {
	if body = bytes.TrimLeft(body, " \t\r\n"); len(body) == 0 || body[0] != '{' || !trusted && !gjson.ValidBytes(body) {
		return prompt{}, false
	}
	var instructions, tools, messages []byte
	choices := 1
	gjson.ParseBytes(body).ForEach(func(key, value gjson.Result) bool {
		switch key.String() {
		case "instructions", "system":
			instructions = within(body, value)
		case "tools":
			tools = within(body, value)
		case "messages", "prompt", "input":
			messages = within(body, value)
		case "model":
			p.model = value.String()
		case "cache_salt":
			p.salt = value.String()
		case "prompt_cache_key":
			p.cacheKey = value.String()
		case "stream":
			p.stream = value.Bool()
		case "max_tokens", "max_completion_tokens", "max_output_tokens":
			p.output = int(min(max(value.Int(), 0), maxOutput))
		case "n":
			choices = int(min(max(value.Int(), 1), 128))
		default:
		}
		return true
	})
	p.output *= choices
	for _, part := range [][]byte{tools, instructions, messages} {
		if len(part) > 0 {
			p.parts = append(p.parts, part)
		}
	}
	return p, true
}

// within is the value's part of the body itself, which a copy of a long prompt
// would double.
func within(body []byte, v gjson.Result) []byte {
	if end := v.Index + len(v.Raw); end <= len(body) && string(body[v.Index:end]) == v.Raw {
		return body[v.Index:end:end]
	}
	return []byte(v.Raw)
}

// bytesPerToken is how long a token is thought to be, as in llm-d.
const bytesPerToken = 4

func (p *prompt) inputTokens() int {
	n := 0
	for _, part := range p.parts {
		n += len(part)
	}
	return n / bytesPerToken
}
