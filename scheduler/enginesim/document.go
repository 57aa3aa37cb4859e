package enginesim

import (
	"encoding/json"
	"strconv"
	"strings"
)

type document struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"`
	Model       string `json:"model"`
	Fingerprint string `json:"system_fingerprint"`
	Choices     []any  `json:"choices"`
	Usage       usage  `json:"usage"`
	Ext         *ext   `json:"sglext,omitempty"`
}

type chatChoice struct {
	Index    int             `json:"index"`
	Message  chatMessage     `json:"message"`
	Logprobs json.RawMessage `json:"logprobs"`
	Finish   string          `json:"finish_reason"`
}

type chatMessage struct {
	Role             string     `json:"role"`
	Content          *string    `json:"content"`
	Refusal          *string    `json:"refusal"`
	ToolCalls        []chatCall `json:"tool_calls,omitempty"`
	Reasoning        string     `json:"reasoning,omitempty"`
	ReasoningContent string     `json:"reasoning_content,omitempty"`
}

type chatCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type textChoice struct {
	Index    int             `json:"index"`
	Text     string          `json:"text"`
	Logprobs json.RawMessage `json:"logprobs"`
	Finish   string          `json:"finish_reason"`
}

// document is the whole answer of a job that is over.
func (j *job) document() document {
	d := document{
		ID: j.id, Object: "chat.completion", Created: j.created, Model: j.model,
		Fingerprint: fingerprint, Usage: j.usage(), Ext: j.ext(),
	}
	if !j.chat {
		d.Object = "text_completion"
	}
	for _, c := range j.choices {
		if j.chat {
			d.Choices = append(d.Choices, j.message(c))
			continue
		}
		out := textChoice{Index: c.index, Finish: c.plan.finish, Logprobs: j.allLogprobs(c)}
		for i := range c.plan.segments {
			out.Text += c.plan.segments[i].text
		}
		d.Choices = append(d.Choices, out)
	}
	return d
}

func (j *job) message(c *choice) chatChoice {
	m := chatMessage{Role: "assistant"}
	for i := range c.plan.segments {
		s := &c.plan.segments[i]
		switch {
		case s.part == contentPart:
			m.Content = &s.text
		case s.part == toolPart:
			call := chatCall{ID: s.id, Type: "function"}
			call.Function.Name, call.Function.Arguments = s.name, s.text
			m.ToolCalls = append(m.ToolCalls, call)
		case !j.hideReasoning:
			for _, field := range j.reasoningFields() {
				if field == FieldReasoning {
					m.Reasoning = s.text
				} else {
					m.ReasoningContent = s.text
				}
			}
		}
	}
	return chatChoice{Index: c.index, Message: m, Finish: c.plan.finish, Logprobs: j.allLogprobs(c)}
}

// allLogprobs joins what a stream would have sent piece by piece.
func (j *job) allLogprobs(c *choice) json.RawMessage {
	if j.logprobs < 0 {
		return json.RawMessage("null")
	}
	var items []string
	for i := range c.plan.segments {
		s := &c.plan.segments[i]
		if s.part != contentPart {
			continue
		}
		for k := range s.ends {
			if j.chat {
				items = append(items, string(j.appendLogprob(nil, s.piece(k))))
			} else {
				items = append(items, s.piece(k))
			}
		}
	}
	if j.chat {
		return json.RawMessage(`{"content":[` + strings.Join(items, ",") + `]}`)
	}
	return j.completionLogprobs(items)
}

// logprob is made up, but the same for the same token: a better-known word
// (a shorter one) is likelier.
func logprob(piece string, rank int) float64 {
	return -0.05*float64(len(piece)) - float64(rank)
}

// appendLogprobs adds what belongs to one streamed token, null where it wasn't asked for.
func (j *job) appendLogprobs(b []byte, seg *segment, piece string) []byte {
	switch {
	case j.logprobs < 0 || seg.part != contentPart:
		return append(b, "null"...)
	case !j.chat:
		return append(b, j.completionLogprobs([]string{piece})...)
	}
	b = append(b, `{"content":[`...)
	b = j.appendLogprob(b, piece)
	return append(b, `]}`...)
}

func (j *job) appendLogprob(b []byte, piece string) []byte {
	b = append(b, '{')
	b = appendRanked(b, piece, 0)
	b = append(b, `,"top_logprobs":[`...)
	for rank := range j.logprobs {
		if rank > 0 {
			b = append(b, ',')
		}
		b = append(b, '{')
		b = appendRanked(b, alternative(piece, rank), rank)
		b = append(b, '}')
	}
	return append(b, `]}`...)
}

func alternative(piece string, rank int) string {
	if rank == 0 {
		return piece
	}
	return piece + strconv.Itoa(rank)
}

func appendRanked(b []byte, piece string, rank int) []byte {
	b = append(b, `"token":`...)
	b = appendQuoted(b, piece)
	b = append(b, `,"logprob":`...)
	b = strconv.AppendFloat(b, logprob(piece, rank), 'f', 4, 64)
	b = append(b, `,"bytes":[`...)
	for i := range len(piece) {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(piece[i]), 10)
	}
	return append(b, ']')
}

// completionLogprobs has the older shape of /v1/completions.
func (j *job) completionLogprobs(pieces []string) json.RawMessage {
	var out struct {
		Tokens        []string             `json:"tokens"`
		TokenLogprobs []float64            `json:"token_logprobs"`
		TopLogprobs   []map[string]float64 `json:"top_logprobs"`
		TextOffset    []int                `json:"text_offset"`
	}
	at := 0
	for _, p := range pieces {
		top := make(map[string]float64, j.logprobs)
		for rank := range j.logprobs {
			top[alternative(p, rank)] = logprob(p, rank)
		}
		out.Tokens = append(out.Tokens, p)
		out.TokenLogprobs = append(out.TokenLogprobs, logprob(p, 0))
		out.TopLogprobs = append(out.TopLogprobs, top)
		out.TextOffset = append(out.TextOffset, at)
		at += len(p)
	}
	b, err := json.Marshal(out)
	if err != nil {
		return json.RawMessage("null")
	}
	return b
}
