package enginesim

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// responseRequest is what /v1/responses takes. Nothing is stored: as in vLLM
// without its store, store: true counts as false, and there is nothing to go on
// from.
type responseRequest struct {
	sampling

	Input           json.RawMessage   `json:"input"`
	Instructions    string            `json:"instructions"`
	Previous        string            `json:"previous_response_id"`
	Background      bool              `json:"background"`
	Tools           []json.RawMessage `json:"tools"`
	ToolChoice      json.RawMessage   `json:"tool_choice"`
	MaxOutputTokens *int              `json:"max_output_tokens"`
	Include         []string          `json:"include"`
	TopLogprobs     int               `json:"top_logprobs"`
	Reasoning       struct {
		Effort string `json:"effort"`
	} `json:"reasoning"`
	Text struct {
		Format struct {
			Type   string          `json:"type"`
			Schema json.RawMessage `json:"schema"`
		} `json:"format"`
	} `json:"text"`
}

// inputItem is an item of the input, whichever it is.
type inputItem struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"`
	CallID    string          `json:"call_id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Output    json.RawMessage `json:"output"`
}

// response serves the engine's own Responses API. The model is shown what a chat
// of the same words would show it.
func (e *Engine) response(c *call) error {
	var r responseRequest
	if err := decodeJSON(c.body, &r); err != nil {
		return err
	}
	if err := e.known(r.Model); err != nil {
		return err
	}
	switch {
	case r.Previous != "":
		return &apiError{status: 404, kind: "NotFoundError", param: "previous_response_id", message: "Response with id '" + r.Previous + "' not found."}
	case r.Background:
		return badRequest("background", "background can only be used when `store` is true")
	}
	chat, err := r.chat()
	if err != nil {
		return err
	}
	return e.reply(c, chat, newVoice(c.fault.native))
}

// chat is the request as one of a chat.
func (r *responseRequest) chat() (*chatRequest, error) {
	c := &chatRequest{sampling: r.sampling, ReasoningEffort: r.Reasoning.Effort, TopLogprobs: r.TopLogprobs}
	c.MaxCompletionTokens = r.MaxOutputTokens
	c.Logprobs = slices.Contains(r.Include, "message.output_text.logprobs")
	c.ResponseFormat.Type, c.ResponseFormat.JSONSchema.Schema = r.Text.Format.Type, r.Text.Format.Schema
	if r.Instructions != "" {
		c.Messages = append(c.Messages, message{Role: "system", Content: quoted(r.Instructions)})
	}
	items, err := r.items()
	if err != nil {
		return nil, err
	}
	for i, it := range items {
		if c.Messages, err = appendItem(c.Messages, it, i); err != nil {
			return nil, err
		}
	}
	for i, raw := range r.Tools {
		t, err := toolOf(raw, i)
		if err != nil {
			return nil, err
		}
		c.Tools = append(c.Tools, t)
	}
	c.ToolChoice = choiceOf(r.ToolChoice)
	return c, nil
}

func (r *responseRequest) items() ([]inputItem, error) {
	var items []inputItem
	switch in := bytes.TrimSpace(r.Input); {
	case len(in) > 0 && in[0] == '"':
		items = []inputItem{{Role: "user", Content: in}}
	case len(in) > 0 && in[0] == '[':
		if err := decodeJSON(in, &items); err != nil {
			return nil, err
		}
	default:
		return nil, badRequest("input", "Field required: input must be a string or a list of items.")
	}
	return items, nil
}

// appendItem adds an item to the messages. A turn of the assistant is one
// message, of which the reasoning isn't shown again.
func appendItem(all []message, it inputItem, at int) ([]message, error) {
	switch it.Type {
	case "", "message":
		if it.Role != "assistant" {
			return append(all, message{Role: it.Role, Content: chatContent(it.Content)}), nil
		}
		return append(all, message{Role: it.Role, Content: joinedText(it.Content)}), nil
	case "reasoning":
		return all, nil
	case "function_call":
		call := `{"id":` + quote(it.CallID) + `,"type":"function","function":{"name":` + quote(it.Name) + `,"arguments":` + quote(it.Arguments) + `}}`
		if n := len(all); n > 0 && all[n-1].Role == "assistant" {
			before := strings.TrimSuffix(string(all[n-1].ToolCalls), "]")
			if before != "" {
				before += ","
			} else {
				before = "["
			}
			all[n-1].ToolCalls = json.RawMessage(before + call + "]")
			return all, nil
		}
		return append(all, message{Role: "assistant", ToolCalls: json.RawMessage("[" + call + "]")}), nil
	case "function_call_output":
		return append(all, message{Role: "tool", ToolCallID: it.CallID, Content: it.Output}), nil
	default:
		return nil, badRequest("input", "input[%d]: unsupported type of item: %s", at, it.Type)
	}
}

// chatContent is content of a user in the Chat form: a text, or parts.
func chatContent(raw json.RawMessage) json.RawMessage {
	for from, to := range map[string]string{`"input_text"`: `"text"`, `"input_image"`: `"image_url"`, `"input_file"`: `"file"`} {
		raw = bytes.ReplaceAll(raw, []byte(`"type":`+from), []byte(`"type":`+to))
	}
	return raw
}

// joinedText is the text of an assistant's parts.
func joinedText(raw json.RawMessage) json.RawMessage {
	var parts []struct {
		Text    string `json:"text"`
		Refusal string `json:"refusal"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return raw // a text
	}
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text + p.Refusal)
	}
	return quoted(b.String())
}

func quoted(text string) json.RawMessage { return json.RawMessage(quote(text)) }

// toolOf is a function in the Chat form.
func toolOf(raw json.RawMessage, at int) (t tool, err error) {
	var kind struct {
		Type string `json:"type"`
	}
	if err = decodeJSON(raw, &kind); err != nil {
		return t, err
	}
	if kind.Type != "function" {
		return t, badRequest("tools", "tools[%d]: unsupported type of tool: %s", at, kind.Type)
	}
	t.Type, t.raw = kind.Type, raw
	return t, decodeJSON(raw, &t.Function)
}

// choiceOf is a tool_choice in the Chat form.
func choiceOf(raw json.RawMessage) json.RawMessage {
	var named struct {
		Type string `json:"type"`
		Name string `json:"name"`
	}
	if json.Unmarshal(raw, &named) != nil || named.Type != "function" {
		return raw
	}
	return json.RawMessage(`{"type":"function","function":{"name":` + quote(named.Name) + `}}`)
}
