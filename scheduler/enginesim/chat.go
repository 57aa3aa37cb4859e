package enginesim

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode"

	"github.com/cespare/xxhash/v2"
)

const maxCalls = 8

type chatRequest struct {
	sampling

	Messages        []message       `json:"messages"`
	Tools           []tool          `json:"tools"`
	ToolChoice      json.RawMessage `json:"tool_choice"`
	Logprobs        bool            `json:"logprobs"`
	TopLogprobs     int             `json:"top_logprobs"`
	ReasoningEffort string          `json:"reasoning_effort"`
	Reasoning       *bool           `json:"include_reasoning"`
	TemplateKwargs  struct {
		EnableThinking *bool `json:"enable_thinking"`
		Thinking       *bool `json:"thinking"`
	} `json:"chat_template_kwargs"`
	ResponseFormat struct {
		Type       string `json:"type"`
		JSONSchema struct {
			Schema json.RawMessage `json:"schema"`
		} `json:"json_schema"`
	} `json:"response_format"`
}

type message struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	ToolCalls  json.RawMessage `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
	Name       string          `json:"name"`
}

type tool struct {
	Type     string `json:"type"`
	Function struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
	} `json:"function"`
	raw json.RawMessage
}

// UnmarshalJSON keeps the text too: the template shows it to the model.
func (t *tool) UnmarshalJSON(b []byte) error {
	type plain tool
	if err := json.Unmarshal(b, (*plain)(t)); err != nil {
		return err
	}
	t.raw = bytes.Clone(b)
	return nil
}

func (e *Engine) chat(c *call) error {
	var r chatRequest
	if err := decodeJSON(c.body, &r); err != nil {
		return err
	}
	if err := e.known(r.Model); err != nil {
		return err
	}
	return e.reply(c, &r, nil)
}

// reply answers a conversation: in chunks of a chat, or as the voice says.
func (e *Engine) reply(c *call, r *chatRequest, v *voice) error {
	if err := r.validate(); err != nil {
		return err
	}
	c.fault.quirk.apply(&r.sampling)
	prompt, err := render(r.Messages, r.Tools)
	if err != nil {
		return err
	}
	o, err := e.order(&r.sampling, len(prompt))
	if err != nil {
		return err
	}
	if o.calls, err = r.calls(c.fault.twoTools); err != nil {
		return err
	}
	o.reasoning = r.thinks(e.cfg.Reasoning)
	o.json = r.ResponseFormat.Type == "json_object" || r.ResponseFormat.Type == "json_schema"
	o.schema = r.ResponseFormat.JSONSchema.Schema
	o.wide = c.fault.splitUTF8

	j := e.newJob(c, &r.sampling, "chatcmpl")
	j.chat, j.voice = true, v
	j.hideReasoning = r.Reasoning != nil && !*r.Reasoning
	if r.Logprobs {
		j.logprobs = r.TopLogprobs
	}
	e.addPrompt(j, &r.sampling, prompt, o)
	return e.run(c, j)
}

func (r *chatRequest) validate() error {
	if len(r.Messages) == 0 {
		return badRequest("messages", "Field required: messages must be a non-empty list.")
	}
	if r.TopLogprobs < 0 || r.TopLogprobs > maxTopChoices {
		return badRequest("top_logprobs", "top_logprobs must be from 0 to %d, got %d.", maxTopChoices, r.TopLogprobs)
	}
	if r.TopLogprobs > 0 && !r.Logprobs {
		return badRequest("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true.")
	}
	return r.sampling.validate()
}

// thinks reports whether the answer begins with reasoning.
func (r *chatRequest) thinks(always bool) bool {
	for _, said := range []*bool{r.TemplateKwargs.EnableThinking, r.TemplateKwargs.Thinking} {
		if said != nil {
			return *said
		}
	}
	switch r.ReasoningEffort {
	case "":
		return always
	case "none":
		return false
	default:
		return true
	}
}

// calls decides which tools the answer calls.
func (r *chatRequest) calls(two bool) ([]toolCall, error) {
	mode, name := "auto", ""
	switch choice := bytes.TrimSpace(r.ToolChoice); {
	case len(choice) == 0 || bytes.Equal(choice, []byte("null")):
	case choice[0] == '"':
		if err := decodeJSON(choice, &mode); err != nil {
			return nil, err
		}
	default:
		var named struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		}
		if err := decodeJSON(choice, &named); err != nil {
			return nil, err
		}
		mode, name = "named", named.Function.Name
	}
	if len(r.Tools) == 0 {
		if mode == "required" || mode == "named" {
			return nil, badRequest("tool_choice", "When using `tool_choice`, `tools` must be set.")
		}
		return nil, nil
	}
	if mode == "named" && r.named(name) == nil {
		return nil, badRequest("tool_choice", "The tool specified in `tool_choice` does not match any of the specified `tools`.")
	}
	switch {
	case mode == "none":
		return nil, nil
	case two:
		return []toolCall{call1(&r.Tools[0]), call1(&r.Tools[len(r.Tools)-1])}, nil
	case mode == "named":
		return []toolCall{call1(r.named(name))}, nil
	case mode == "required":
		return []toolCall{call1(&r.Tools[0])}, nil
	default:
		return r.triggered(), nil
	}
}

func call1(t *tool) toolCall { return toolCall{name: t.Function.Name, schema: t.Function.Parameters} }

func (r *chatRequest) named(name string) *tool {
	for i := range r.Tools {
		if r.Tools[i].Function.Name == name {
			return &r.Tools[i]
		}
	}
	return nil
}

// triggered reads the last message, if a user wrote it: "[tool]" calls the
// first tool, "[tool:NAME]" the named one, "[tools]" each of the first eight.
// Without such a mark, a word of a tool's name calls the tool.
func (r *chatRequest) triggered() []toolCall {
	last := &r.Messages[len(r.Messages)-1]
	if last.Role != "user" {
		return nil
	}
	text := string(last.Content)
	if _, after, ok := strings.Cut(text, "[tool:"); ok {
		name, _, _ := strings.Cut(after, "]")
		if t := r.named(name); t != nil {
			return []toolCall{call1(t)}
		}
	}
	var calls []toolCall
	for i := range r.Tools {
		if strings.Contains(text, "[tools]") && i < maxCalls || strings.Contains(text, "[tool]") && i == 0 {
			calls = append(calls, call1(&r.Tools[i]))
		}
	}
	if len(calls) == 0 {
		calls = r.meant(text)
	}
	return calls
}

// meant finds the first tool that the text has a word of: "weather" means
// get_weather. Words of fewer than four letters mean nothing.
func (r *chatRequest) meant(text string) []toolCall {
	words := map[string]bool{}
	for word := range strings.FieldsFuncSeq(strings.ToLower(text), func(c rune) bool { return !unicode.IsLetter(c) }) {
		if len(word) >= 4 {
			words[word] = true
		}
	}
	for i := range r.Tools {
		for word := range strings.FieldsFuncSeq(strings.ToLower(r.Tools[i].Function.Name), func(c rune) bool { return c == '_' || c == '-' }) {
			if words[word] {
				return []toolCall{call1(&r.Tools[i])}
			}
		}
	}
	return nil
}

// render is the chat template: tools, then each message between marks, then the
// opening of the answer. It ends where an answer's tokens go on, so that a next
// turn which repeats the answer repeats the tokens.
func render(messages []message, tools []tool) ([]token, error) {
	size := 0
	for i := range messages {
		size += len(messages[i].Content)/4 + 8
	}
	ts := make([]token, 0, size)
	if len(tools) > 0 {
		ts = append(ts, startMark)
		ts = appendTokens(ts, "tools\n")
		for i := range tools {
			ts = appendTokens(ts, string(tools[i].raw))
		}
		ts = append(ts, endMark)
	}
	for i := range messages {
		m := &messages[i]
		if m.Role == "" {
			return nil, badRequest("messages", "Field required: messages[%d].role", i)
		}
		ts = append(ts, startMark)
		ts = appendTokens(ts, m.Role+"\n")
		var err error
		if ts, err = appendContent(ts, m.Content, i); err != nil {
			return nil, err
		}
		if len(m.ToolCalls) > 0 {
			ts = appendTokens(ts, string(m.ToolCalls))
		}
		ts = append(ts, endMark)
	}
	ts = append(ts, startMark)
	return appendTokens(ts, "assistant\n"), nil
}

// appendContent adds a string, a list of parts, or nothing.
func appendContent(ts []token, content json.RawMessage, at int) ([]token, error) {
	if len(content) == 0 || string(content) == "null" {
		return ts, nil
	}
	if content[0] == '"' {
		var text string
		if err := decodeJSON(content, &text); err != nil {
			return nil, err
		}
		return appendTokens(ts, text), nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(content, &parts) != nil {
		return nil, badRequest("messages", "messages[%d].content should be a string or a list of parts.", at)
	}
	for _, p := range parts {
		if p.Type == "text" {
			ts = appendTokens(ts, p.Text)
			continue
		}
		// A picture costs a fixed number of tokens that depend on its content.
		sum := strconv.FormatUint(xxhash.Sum64(content), 16)
		for range 64 {
			ts = append(ts, packToken(sum[:min(pieceMax, len(sum))]))
		}
	}
	return ts, nil
}
