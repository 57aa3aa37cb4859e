package responses

import (
	"slices"

	"github.com/tidwall/gjson"
)

// Chat appends the request as the body of a streamed Chat Completions request
// over the whole context: earlier items, then the request's own. What an engine
// may be told is checked there, once for both APIs. The error is a *Problem.
func (c *Create) Chat(b []byte, context []Item, d Dialect) ([]byte, error) {
	d.AllTurns = c.raw.Get("reasoning.context").String() == "all_turns"
	all := append(slices.Clip(context), c.Input...)
	b = append(append(b, `{"model":`...), quote(c.Model)...)
	b = append(b, `,"stream":true,"stream_options":{"include_usage":true}`...)
	if functions := c.tools.functions(c.choice); len(functions) > 0 {
		b = append(append(append(b, `,"tools":[`...), functions...), ']')
		if c.choice.chat != "" {
			b = member(b, "tool_choice", c.choice.chat)
		}
		if c.serial {
			b = append(b, `,"parallel_tool_calls":false`...)
		}
	}
	b, n, err := appendMessages(append(b, `,"messages":`...), c.Instructions, all, d)
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, problem("input", "empty_array", "Invalid 'input': there is nothing to answer.")
	}
	return end(c.sampling(c.format(b))), nil
}

// size is room enough for most bodies of Chat.
func (c *Create) size(context []Item) int {
	return size(context) + size(c.Input) + len(c.Instructions) + len(c.tools.chat) + 1024
}

// sampling adds what the caller set: an engine may have defaults of its own.
func (c *Create) sampling(b []byte) []byte {
	for _, name := range []string{
		"temperature", "top_p", "presence_penalty", "frequency_penalty", "service_tier", "prompt_cache_key", "user", "safety_identifier",
		// What callers of open models send beyond OpenAI's parameters.
		"top_k", "min_p", "repetition_penalty", "seed", "stop", "logit_bias", "chat_template_kwargs",
	} {
		if v := c.raw.Get(name); !absent(v) && name != "service_tier" {
			b = member(b, name, v.Raw)
		}
	}
	if c.Tier != "" {
		b = member(b, "service_tier", quote(string(c.Tier)))
	}
	if v := c.raw.Get("max_output_tokens"); !absent(v) {
		b = member(b, "max_completion_tokens", v.Raw)
	}
	if c.Logprobs {
		b = append(b, `,"logprobs":true`...)
		if v := c.raw.Get("top_logprobs"); !absent(v) {
			b = member(b, "top_logprobs", v.Raw)
		}
	}
	if effort := c.raw.Get("reasoning.effort"); !absent(effort) {
		b = member(b, "reasoning_effort", effort.Raw)
	}
	return b
}

func (c *Create) format(b []byte) []byte {
	f := c.raw.Get("text.format")
	switch f.Get("type").String() {
	case "json_object":
		return append(b, `,"response_format":{"type":"json_object"}`...)
	case "json_schema":
		b = append(b, `,"response_format":{"type":"json_schema","json_schema":{"name":`...)
		b = append(b, f.Get("name").Raw...)
		for _, name := range []string{"description", "schema", "strict"} {
			if v := f.Get(name); !absent(v) {
				b = member(b, name, v.Raw)
			}
		}
		return append(b, "}}"...)
	default:
		return b
	}
}

// Echo is a member of the request as the response shows it.
func (c *Create) echo(name, otherwise string) string {
	if v := c.raw.Get(name); !absent(v) {
		return v.Raw
	}
	return otherwise
}

// words is an object with members that must all be there.
func words(v gjson.Result, names ...string) string {
	b := []byte{'{'}
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, '"'), name...), `":`...)
		b = append(b, rawOr(v.Get(name), "null")...)
	}
	return string(append(b, '}'))
}
