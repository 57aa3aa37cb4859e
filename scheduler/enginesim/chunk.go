package enginesim

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

func appendQuoted(b []byte, s string) []byte { return gjson.AppendJSONString(b, s) }

// follow sends each token as the machine makes it, one event a token. All that
// a wake-up brings is written at once.
func (e *Engine) follow(ctx context.Context, j *job, s *stream) error {
	for _, c := range j.choices {
		c.head = j.chunkHead(c)
	}
	if j.voice != nil {
		if err := j.voice.begin(s, j); err != nil {
			return err
		}
	}
	for open := len(j.choices); open > 0; {
		select {
		case <-j.wake:
		case <-ctx.Done():
			return errCallerLeft
		}
		for _, c := range j.choices {
			if c.finished {
				continue
			}
			over := c.seq.over.Load()
			if err := e.advance(j, c, s); err != nil {
				return err
			}
			if over && c.sent < c.seq.total {
				return errStopped
			}
			if c.finished {
				open--
			}
		}
		if err := s.flush(); err != nil {
			return err
		}
	}
	return j.endStream(s)
}

// advance sends the tokens of one choice that were made since the last time.
func (e *Engine) advance(j *job, c *choice, s *stream) error {
	made := int(c.seq.made.Load())
	if j.voice != nil {
		return j.voice.advance(s, j, c, made)
	}
	if made > 0 && !c.opened {
		c.opened = true
		if j.chat {
			if err := j.send(s, c, `"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`); err != nil {
				return err
			}
		}
	}
	for c.sent < made {
		if err := j.token(s, c); err != nil {
			return err
		}
	}
	if c.sent < c.seq.total {
		return nil
	}
	c.finished = true
	rest := `"delta":{},"logprobs":null,"finish_reason":"` + c.plan.finish + `"}]`
	if !j.chat {
		rest = `"text":"","logprobs":null,"finish_reason":"` + c.plan.finish + `"}]`
	}
	if s.fault.usageWithChoices {
		return s.event(j.withUsage(append(bytes.Clone(c.head), rest...), j.usage()))
	}
	return j.send(s, c, rest)
}

// token sends the choice's next token.
func (j *job) token(s *stream, c *choice) error {
	seg := &c.plan.segments[c.seg]
	at := c.tok
	c.sent++
	if c.tok++; c.tok == len(seg.ends) {
		c.seg, c.tok = c.seg+1, 0
	}
	piece := seg.piece(at)
	if s.fault.bigLine > 0 && seg.part == contentPart && at == 1 {
		piece = strings.Repeat("x", s.fault.bigLine)
	}
	switch {
	case seg.part == toolPart && s.fault.twoTools:
		if at > 0 || seg.tool > 0 {
			return nil
		}
		return j.send(s, c, bothCalls(c.plan.segments[c.seg:], seg))
	case seg.part == toolPart && at == 0:
		if err := j.send(s, c, `"delta":{"tool_calls":[`+callJSON(seg, "")+`]},"logprobs":null,"finish_reason":null}]`); err != nil {
			return err
		}
	case seg.part == reasoningPart && j.hideReasoning, piece == "":
		return nil
	}
	return j.sendPiece(s, c, seg, piece)
}

func (j *job) sendPiece(s *stream, c *choice, seg *segment, piece string) error {
	b := make([]byte, 0, len(c.head)+len(piece)+160)
	b = append(b, c.head...)
	switch {
	case !j.chat:
		b = append(b, `"text":`...)
		b = appendQuoted(b, piece)
	case seg.part == toolPart:
		b = append(b, `"delta":{"tool_calls":[{"index":`...)
		b = strconv.AppendInt(b, int64(seg.tool), 10)
		b = append(b, `,"function":{"arguments":`...)
		b = appendQuoted(b, piece)
		b = append(b, `}}]}`...)
	case seg.part == reasoningPart:
		b = append(b, `"delta":{`...)
		b = j.appendReasoning(b, piece)
		b = append(b, '}')
	default:
		b = append(b, `"delta":{"content":`...)
		b = appendQuoted(b, piece)
		b = append(b, '}')
	}
	b = append(b, `,"logprobs":`...)
	b = j.appendLogprobs(b, seg, piece)
	b = append(b, `,"finish_reason":null}]`...)
	return s.event(j.close(b, s, c))
}

func (j *job) appendReasoning(b []byte, piece string) []byte {
	for i, field := range j.reasoningFields() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = append(b, field...)
		b = append(b, `":`...)
		b = appendQuoted(b, piece)
	}
	return b
}

func (j *job) reasoningFields() []ReasoningField {
	if j.field == FieldBoth {
		return []ReasoningField{FieldReasoning, FieldReasoningContent}
	}
	return []ReasoningField{j.field}
}

// chunkHead is the beginning of every chunk of a choice.
func (j *job) chunkHead(c *choice) []byte {
	object := "chat.completion.chunk"
	if !j.chat {
		object = "text_completion"
	}
	b := append([]byte(`{"id":`), quote(j.id)...)
	b = append(b, `,"object":"`+object+`","created":`+strconv.FormatInt(j.created, 10)+`,"model":`...)
	b = appendQuoted(b, j.model)
	return append(b, `,"system_fingerprint":"`+fingerprint+`","choices":[{"index":`+strconv.Itoa(c.index)+`,`...)
}

func (j *job) send(s *stream, c *choice, rest string) error {
	b := make([]byte, 0, len(c.head)+len(rest)+64)
	b = append(b, c.head...)
	return s.event(j.close(append(b, rest...), s, c))
}

// close ends a chunk, with the running usage where it was asked for.
func (j *job) close(b []byte, s *stream, c *choice) []byte {
	if !j.continuousUsage && (!s.fault.usageOnOdd || s.events%2 == 0) {
		return append(b, '}')
	}
	n := int64(c.sent)
	b = append(b, `,"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(j.prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(j.prompt)+n, 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, n, 10)
	return append(b, `}}`...)
}

func (j *job) withUsage(b []byte, u usage) []byte {
	doc, _ := json.Marshal(u) // numbers only: it can't fail
	b = append(b, `,"usage":`...)
	b = append(b, doc...)
	return append(b, '}')
}

// endStream sends the closing usage and the end mark.
func (j *job) endStream(s *stream) error {
	if j.voice != nil {
		return j.voice.end(s, j)
	}
	head := j.choices[0].head
	empty := append(bytes.Clone(head[:len(head)-len(`{"index":0,`)]), ']')
	if x := j.ext(); x != nil {
		doc, _ := json.Marshal(x) // numbers only: it can't fail
		if err := s.event(append(append(append(bytes.Clone(empty), `,"sglext":`...), doc...), '}')); err != nil {
			return err
		}
	}
	if j.includeUsage && !s.fault.usageWithChoices {
		if err := s.event(j.withUsage(empty, j.usage())); err != nil {
			return err
		}
	}
	if !s.fault.noDone {
		if err := s.event([]byte("[DONE]")); err != nil {
			return err
		}
	}
	return s.flush()
}

// callJSON is a call as a delta shows it.
func callJSON(seg *segment, arguments string) string {
	return `{"index":` + strconv.Itoa(seg.tool) + `,"id":` + quote(seg.id) + `,"type":"function","function":{"name":` +
		quote(seg.name) + `,"arguments":` + quote(arguments) + `}}`
}

// bothCalls puts all calls into one delta. rest holds the segments not begun;
// first is the one that was.
func bothCalls(rest []segment, first *segment) string {
	calls := []string{callJSON(first, first.text)}
	for i := range rest {
		if rest[i].part == toolPart && rest[i].tool != first.tool {
			calls = append(calls, callJSON(&rest[i], rest[i].text))
		}
	}
	return `"delta":{"tool_calls":[` + strings.Join(calls, ",") + `]},"logprobs":null,"finish_reason":null}]`
}
