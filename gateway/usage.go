package gateway

import (
	"strconv"

	"github.com/tidwall/gjson"

	"weir/billing"
)

// meter keeps what an exchange used: the engine's latest count and, for an
// engine that sends none in time, our own.
type meter struct {
	raw    []byte // the engine's latest usage object
	prompt int64  // estimate of the prompt's tokens
	output int64  // events with output; engines send about one token in each

	tiers tierCount // of what came from the cache

	cut bool // the last count is not the engine's final one

	read  bool // raw has been read, to the two below
	last  billing.Usage
	sound bool
}

// saw takes in a usage object of the engine. The last one counts.
func (m *meter) saw(raw []byte) { m.raw, m.read = append(m.raw[:0], raw...), false }

// reset forgets an attempt: the delivered one alone counts.
func (m *meter) reset() { m.raw, m.tiers, m.read, m.output = m.raw[:0], tierCount{}, false, 0 }

// usage returns what was used. Complete says that the engine came to its end,
// so that its last count is its final one. A running count is per choice at
// some engines, so our own is used where it is higher. Nothing is counted for
// an exchange that was cut before any output.
func (m *meter) usage(complete bool) (billing.Usage, billing.UsageSource) {
	if !m.read {
		m.last, m.sound = readUsage(m.raw)
		m.read = true
	}
	u, sound := m.last, m.sound
	switch {
	case sound && complete:
		return u, billing.UpstreamFinal
	case sound:
		u.Output = max(u.Output, m.output-u.Reasoning)
		return u, billing.UpstreamPartial
	case m.output == 0 && !complete:
		return billing.Usage{}, billing.NoUsage
	default:
		return billing.Usage{InputUncached: m.prompt, Output: m.output}, billing.GatewayCount
	}
}

// readUsage splits the wire's totals into disjoint classes. Details may be
// absent or null. It reports false where the counts can't be true.
func readUsage(raw []byte) (billing.Usage, bool) {
	if len(raw) == 0 {
		return billing.Usage{}, false
	}
	var chat, responses billing.Totals
	var reasoning *int64                                                // where it stands beside the totals
	gjson.ParseBytes(raw).ForEach(func(name, value gjson.Result) bool { // one pass, as this is done for each answer
		switch name.Str {
		case "prompt_tokens":
			chat.Prompt = count(value)
		case "completion_tokens":
			chat.Completion = count(value)
		case "prompt_tokens_details":
			chat.Cached = count(value.Get("cached_tokens"))
		case "completion_tokens_details":
			chat.Reasoning = count(value.Get("reasoning_tokens"))
		case "input_tokens":
			responses.Prompt = count(value)
		case "output_tokens":
			responses.Completion = count(value)
		case "input_tokens_details":
			responses.Cached = count(value.Get("cached_tokens"))
		case "output_tokens_details":
			responses.Reasoning = count(value.Get("reasoning_tokens"))
		case "reasoning_tokens":
			reasoning = count(value)
		}
		return true
	})
	t := chat
	if t.Prompt == nil { // the Responses API's names
		t = responses
	}
	if t.Reasoning == nil {
		t.Reasoning = reasoning
	}
	return t.Split()
}

// count is the number at r; nil where there is none.
func count(r gjson.Result) *int64 {
	if r.Type != gjson.Number {
		return nil
	}
	n := r.Int()
	return &n
}

// json is the usage object for the caller: the engine's, or our count where
// the engine gave none.
func (m *meter) json() []byte {
	if len(m.raw) > 0 && !m.cut {
		return m.raw
	}
	u, _ := m.usage(!m.cut)
	in, out := u.InputUncached+u.InputCached, u.Output+u.Reasoning
	b := strconv.AppendInt([]byte(`{"prompt_tokens":`), in, 10)
	b = strconv.AppendInt(append(b, `,"completion_tokens":`...), out, 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), in+out, 10)
	return append(b, '}')
}
