package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/tidwall/gjson"
)

// counted is what a stream told of tokens.
type counted struct {
	pieces   int   // events that have text
	begun    int   // of them, those that counted the tokens so far
	falling  bool  // a count went back
	last     int64 // completion tokens
	closing  bool  // the last count came after the finish
	finished bool  // a finish_reason came
	done     bool  // [DONE] came
}

func (c *counted) take(data []byte) bool {
	if string(data) == "[DONE]" {
		c.done = true
		return true
	}
	text := gjson.GetBytes(data, "choices.0.delta.content").Str + gjson.GetBytes(data, "choices.0.delta.reasoning").Str +
		gjson.GetBytes(data, "choices.0.delta.reasoning_content").Str
	if gjson.GetBytes(data, "choices.0.finish_reason").Str != "" {
		c.finished = true
	}
	if text != "" {
		c.pieces++
	}
	if n := gjson.GetBytes(data, "usage.completion_tokens"); n.Type == gjson.Number {
		c.falling = c.falling || n.Int() < c.last
		c.last, c.closing = n.Int(), c.finished
		if text != "" {
			c.begun++
		}
	}
	return true
}

const (
	streamTokens = 32
	streamAsk    = "Write a few sentences about rivers."
)

// checkStream streams one answer and looks at its end and its counts.
func (s *server) checkStream(ctx context.Context) []Check {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	options := fields{"include_usage": true}
	if s.engine != llamaCPP {
		options["continuous_usage_stats"] = true // as the gateway does
	}
	var got counted
	begin := s.cfg.Now()
	a, err := s.events(ctx, s.chat(streamAsk, streamTokens, fields{"stream_options": options, "ignore_eos": true}), got.take)
	if err != nil || !a.ok() {
		const skipped = "no answer was streamed"
		return []Check{
			{Stream, Fail, chatPath + ": " + failure(a, err), "nothing can be served without it"},
			{Name: IncludeUsage, Status: Unknown, Found: skipped},
			{Name: ContinuousUsage, Status: Unknown, Found: skipped},
		}
	}
	if got.last > 0 {
		s.pace = s.cfg.Now().Sub(begin) / time.Duration(got.last)
	}
	return []Check{got.ending(), got.final(), s.continuous(&got)}
}

func (c *counted) ending() Check {
	switch {
	case !c.done:
		return Check{Stream, Fail, "the stream ends without [DONE]", "whoever reads it can't tell a whole answer from a cut one"}
	case !c.finished:
		return Check{Stream, Fail, "no chunk has a finish_reason", "whoever reads it can't tell why it ended"}
	}
	return Check{Name: Stream, Status: Pass, Found: fmt.Sprintf("%d pieces of text, a finish_reason, [DONE]", c.pieces)}
}

func (c *counted) final() Check {
	if c.last == 0 || !c.closing {
		return Check{IncludeUsage, Fail, "a stream with include_usage ends without its usage", "receipts would be estimates: use an engine that counts"}
	}
	return Check{Name: IncludeUsage, Status: Pass, Found: fmt.Sprintf("the stream ends with its usage: %d completion tokens", c.last)}
}

func (s *server) continuous(c *counted) Check {
	switch {
	case s.engine == llamaCPP:
		return Check{ContinuousUsage, Unsupported, "the engine has none", "none: an answer that is cut is counted by its chunks"}
	case c.falling:
		return Check{ContinuousUsage, Fail, "the counts go back", "an answer that is cut would be billed wrongly"}
	case c.pieces == 0:
		return Check{Name: ContinuousUsage, Status: Unknown, Found: "the stream had no text"}
	case c.begun < c.pieces:
		return Check{
			ContinuousUsage, Fail, fmt.Sprintf("%d of %d pieces of text count the tokens so far", c.begun, c.pieces),
			"an answer that is cut is counted by its chunks until the engine has continuous_usage_stats",
		}
	}
	return Check{Name: ContinuousUsage, Status: Pass, Found: "every piece of text counts the tokens so far"}
}
