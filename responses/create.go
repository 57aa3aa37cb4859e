package responses

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"weir/tenants"
)

// Create is what a caller asks for with POST /v1/responses. The raw members are
// JSON as it came, checked only as far as this package uses them: what goes to
// an engine is checked as a Chat request besides.
type Create struct {
	Model        string
	Input        []Item
	Instructions string // as JSON; empty when there are none
	Previous     string // previous_response_id
	Conversation string

	Store, Background, Stream bool
	Encrypted                 bool // include: reasoning.encrypted_content
	Logprobs                  bool // include: message.output_text.logprobs

	Tier     tenants.Tier
	CacheKey string
	Ignored  []string // members that have no effect, for x-weir-ignored

	body   []byte // of the request
	raw    members
	tools  *toolset
	choice choice
	serial bool // one tool call at most
}

// ParseCreate reads the body of a request. What is unknown is ignored: clients
// send members of their own. The error is a *Problem.
func ParseCreate(body []byte) (*Create, error) {
	v := gjson.ParseBytes(body)
	if !v.IsObject() {
		return nil, problem("", "", "The body must be a JSON object.")
	}
	c := &Create{body: body, raw: membersOf(v), Store: true}
	for _, read := range []func(*Create) error{
		(*Create).readRefused, (*Create).readModel, (*Create).readFlags, (*Create).readState, (*Create).readInput,
		(*Create).readInclude, (*Create).readTools, (*Create).readText, (*Create).readRest,
	} {
		if err := read(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// refused are members that would change the answer if they were left out.
func (c *Create) readRefused() error {
	for name, why := range map[string]string{
		"prompt":          "There are no stored prompts: send the text in 'input' and 'instructions'.",
		"moderation":      "Moderate before or after the request.",
		"access_programs": "It is not offered here.",
		"image":           "Models answer in text.",
	} {
		if !absent(c.raw.Get(name)) {
			return problem(name, codeParameter, "Unsupported parameter: '%s'. %s", name, why)
		}
	}
	for _, name := range []string{
		"context_management", "prompt_cache_options", "prompt_cache_retention", "background_options", "max_tool_calls",
		"client_metadata", "cache_salt", "priority", "request_id",
	} {
		if !absent(c.raw.Get(name)) {
			c.Ignored = append(c.Ignored, name)
		}
	}
	return nil
}

func (c *Create) readModel() error {
	m := c.raw.Get("model")
	if m.Type != gjson.String || m.Str == "" {
		return textWanted("model", m)
	}
	c.Model = m.Str
	return nil
}

func (c *Create) readFlags() error {
	for name, at := range map[string]*bool{"store": &c.Store, "background": &c.Background, "stream": &c.Stream} {
		v := c.raw.Get(name)
		switch {
		case absent(v):
		case !v.IsBool():
			return wrongType(name, "a boolean")
		default:
			*at = v.Bool()
		}
	}
	if p := c.raw.Get("parallel_tool_calls"); !absent(p) {
		if !p.IsBool() {
			return wrongType("parallel_tool_calls", "a boolean")
		}
		c.serial = !p.Bool()
	}
	if c.Background && !c.Store {
		return problem("background", codeValue, "'background' needs 'store': a run that nobody could ask after would be lost.")
	}
	return nil
}

func (c *Create) readState() error {
	for name, at := range map[string]*string{"previous_response_id": &c.Previous, "prompt_cache_key": &c.CacheKey} {
		v := c.raw.Get(name)
		switch {
		case absent(v):
		case v.Type != gjson.String:
			return wrongType(name, "a string")
		default:
			*at = v.Str
		}
	}
	switch v := c.raw.Get("conversation"); {
	case absent(v):
	case v.Type == gjson.String:
		c.Conversation = v.Str
	case v.IsObject() && v.Get("id").Type == gjson.String:
		c.Conversation = v.Get("id").Str
	default:
		return wrongType("conversation", "a string or an object with an 'id'")
	}
	switch {
	case c.Previous != "" && c.Conversation != "":
		return problem("previous_response_id", codeExclusive, "Mutually exclusive parameters: 'previous_response_id' and 'conversation'. Send one of them.")
	case c.Conversation != "" && !c.Store:
		return problem("store", codeValue, "'conversation' needs 'store': what is said in it is kept.")
	}
	return nil
}

func (c *Create) readInput() (err error) {
	if v := c.raw.Get("instructions"); !absent(v) {
		if v.Type != gjson.String {
			return wrongType("instructions", "a string")
		}
		c.Instructions = v.Raw
	}
	v := c.raw.Get("input")
	if absent(v) {
		if c.Previous == "" && c.Conversation == "" {
			return missing("input")
		}
		return nil
	}
	c.Input, err = ParseInput("input", v)
	if err == nil && len(c.Input) == 0 && c.Previous == "" && c.Conversation == "" {
		return problem("input", "empty_array", "Invalid 'input': it is empty.")
	}
	return err
}

func (c *Create) readInclude() error {
	v := c.raw.Get("include")
	if absent(v) {
		return nil
	}
	if !v.IsArray() {
		return wrongType("include", "an array")
	}
	known := []string{
		"file_search_call.results", "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
		"computer_call_output.output.image_url", "code_interpreter_call.outputs", "reasoning.encrypted_content", "message.output_text.logprobs",
	}
	for _, each := range v.Array() {
		switch {
		case each.Type != gjson.String:
			return wrongType("include", "an array of strings")
		case !slices.Contains(known, each.Str):
			return problem("include", codeValue, "Invalid value for 'include': %q. Use one of %s.", clip(each.Str), strings.Join(known, ", "))
		case each.Str == "reasoning.encrypted_content":
			c.Encrypted = true
		case each.Str == "message.output_text.logprobs":
			c.Logprobs = true
		}
	}
	return nil
}

func (c *Create) readTools() (err error) {
	if c.tools, err = parseTools(c.raw.Get("tools")); err != nil {
		return err
	}
	c.Ignored = append(c.Ignored, c.tools.ignored...)
	c.choice, err = parseChoice(c.raw.Get("tool_choice"), c.tools)
	return err
}

func (c *Create) readText() error {
	text := c.raw.Get("text")
	if !absent(text) && !text.IsObject() {
		return wrongType("text", "an object")
	}
	format := text.Get("format")
	if absent(format) {
		return nil
	}
	switch kind := format.Get("type"); kind.String() {
	case "text", "json_object":
	case "json_schema":
		if name := format.Get("name"); name.Type != gjson.String || !toolName.MatchString(name.Str) {
			return problem("text.format.name", codeValue, "Invalid 'text.format.name': use 1 to 64 letters, digits, underscores and dashes.")
		}
		if !format.Get("schema").IsObject() {
			return wrongType("text.format.schema", "an object")
		}
	case "":
		return missing("text.format.type")
	default:
		return problem("text.format.type", codeValue, "Invalid value for 'text.format.type': %q. Use text, json_object or json_schema.", clip(kind.String()))
	}
	return nil
}
