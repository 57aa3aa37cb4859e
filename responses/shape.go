package responses

import (
	"strings"
	"time"
)

// The statuses of a response.
const (
	Queued     = "queued"
	InProgress = "in_progress"
	Completed  = "completed"
	Incomplete = "incomplete"
	Failed     = "failed"
	Cancelled  = "cancelled"
)

// Terminal reports that a status is final: no response leaves it.
func Terminal(status string) bool { return status != Queued && status != InProgress }

// Usage is what a response used, in tokens. Cached input is part of input, and
// reasoning is part of output.
type Usage struct {
	Input, Cached, Output, Reasoning int64
}

// shape renders a response object. What the request decides is rendered once:
// the object stands in three events of every stream.
type shape struct {
	head, tail string
}

// Chain is where a response stands.
type Chain struct {
	Previous     string // response that it goes on from
	Conversation string
}

func newShape(id string, createdAt time.Time, c *Create, model string, in Chain) shape {
	var head, tail strings.Builder
	head.WriteString(`{"id":"` + id + `","object":"response","created_at":`)
	head.Write(appendInt(nil, int(createdAt.Unix())))
	head.WriteString(`,"background":` + boolean(c.Background) + `,"status":"`)

	put := func(name, raw string) { tail.WriteString(`,"` + name + `":` + raw) }
	put("model", quote(model))
	put("instructions", orNull(c.Instructions))
	put("previous_response_id", nullable(in.Previous))
	if in.Conversation != "" {
		put("conversation", `{"id":`+quote(in.Conversation)+`}`)
	}
	put("tools", "["+string(c.tools.echo)+"]")
	put("tool_choice", c.choice.echo)
	put("parallel_tool_calls", boolean(!c.serial))
	put("max_output_tokens", c.echo("max_output_tokens", "null"))
	put("max_tool_calls", c.echo("max_tool_calls", "null"))
	put("temperature", c.echo("temperature", "1"))
	put("top_p", c.echo("top_p", "1"))
	put("top_logprobs", c.echo("top_logprobs", "0"))
	put("presence_penalty", c.echo("presence_penalty", "0"))
	put("frequency_penalty", c.echo("frequency_penalty", "0"))
	put("truncation", `"disabled"`)
	put("text", c.echoText())
	put("reasoning", c.echoReasoning())
	put("store", boolean(c.Store))
	put("metadata", c.echo("metadata", "{}"))
	put("safety_identifier", c.echo("safety_identifier", "null"))
	put("prompt_cache_key", nullable(c.CacheKey))
	put("user", c.echo("user", "null"))
	tail.WriteByte('}')
	return shape{head: head.String(), tail: tail.String()}
}

// state is what changes in the life of a response.
type state struct {
	status      string
	completedAt time.Time // zero: not yet
	failure     string    // error, as JSON
	reason      string    // incomplete_details.reason
	code        string    // ours beside it, where the reason doesn't say all; plain characters
	output      []byte    // items, joined
	usage       *Usage
	tier        string // served
}

func (s shape) append(b []byte, now state) []byte {
	b = append(append(append(b, s.head...), now.status...), `","completed_at":`...)
	if now.completedAt.IsZero() {
		b = append(b, "null"...)
	} else {
		b = appendInt(b, int(now.completedAt.Unix()))
	}
	b = member(b, "error", orNull(now.failure))
	if now.reason == "" {
		b = append(b, `,"incomplete_details":null`...)
	} else {
		b = append(append(append(b, `,"incomplete_details":{"reason":"`...), now.reason...), '"')
		if now.code != "" {
			b = append(append(append(b, `,"code":"`...), now.code...), '"')
		}
		b = append(b, '}')
	}
	b = append(append(append(b, `,"output":[`...), now.output...), ']')
	b = append(b, `,"usage":`...)
	b = appendUsage(b, now.usage)
	b = append(append(append(b, `,"service_tier":"`...), now.tier...), '"')
	return append(b, s.tail...)
}

func appendUsage(b []byte, u *Usage) []byte {
	if u == nil {
		return append(b, "null"...)
	}
	b = appendInt(append(b, `{"input_tokens":`...), int(u.Input))
	b = appendInt(append(b, `,"input_tokens_details":{"cached_tokens":`...), int(u.Cached))
	b = appendInt(append(b, `,"cache_write_tokens":0},"output_tokens":`...), int(u.Output))
	b = appendInt(append(b, `,"output_tokens_details":{"reasoning_tokens":`...), int(u.Reasoning))
	b = appendInt(append(b, `},"total_tokens":`...), int(u.Input+u.Output))
	return append(b, '}')
}

// echoText has the members of a format that clients' schemas require.
func (c *Create) echoText() string {
	format := c.raw.Get("text.format")
	text := `{"format":` + rawOr(format, `{"type":"text"}`)
	if v := c.raw.Get("text.verbosity"); !absent(v) {
		text += `,"verbosity":` + v.Raw
	}
	return text + "}"
}

func (c *Create) echoReasoning() string {
	v := c.raw.Get("reasoning")
	if !v.IsObject() {
		return "null"
	}
	return words(v, "effort", "summary")
}

func boolean(v bool) string {
	if v {
		return "true"
	}
	return "false"
}

func nullable(s string) string {
	if s == "" {
		return "null"
	}
	return quote(s)
}

func orNull(raw string) string {
	if raw == "" {
		return "null"
	}
	return raw
}
