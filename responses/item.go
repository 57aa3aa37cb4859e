package responses

import (
	"fmt"
	"regexp"

	"github.com/tidwall/gjson"
)

// Item is one item of a conversation in its canonical form on the wire: it has
// an id, a type and all members that clients rely on.
type Item struct {
	ID   string
	Type string
	JSON []byte

	plain plainMessage
}

// plainMessage is what a message says, where it is one of the user's or the
// model's and of one text: most of a long chain is, and need not be read anew
// for every turn. The zero value is unknown.
type plainMessage struct{ role, text string } // the text is escaped

func (it *Item) findPlain() {
	v := gjson.ParseBytes(it.JSON)
	role := v.Get("role").Str
	if it.Type != typeMessage || role != "user" && role != "assistant" {
		return
	}
	parts := v.Get("content").Array()
	if len(parts) != 1 {
		return
	}
	switch parts[0].Get("type").Str {
	case "input_text", "output_text":
		it.plain = plainMessage{role: role, text: inner(parts[0].Get("text").Raw)}
	}
}

// The types of items that this package understands.
const (
	typeMessage      = "message"
	typeCall         = "function_call"
	typeOutput       = "function_call_output"
	typeCustomCall   = "custom_tool_call"
	typeCustomOutput = "custom_tool_call_output"
	typeReasoning    = "reasoning"
	typeReference    = "item_reference"
	typeCompaction   = "compaction"
)

// hosted are items of tools that only some providers run. A history that was
// made elsewhere may have them; they are kept, and no engine is told of them.
func hosted(kind string) bool {
	switch kind {
	case "web_search_call", "file_search_call", "image_generation_call", "code_interpreter_call",
		"computer_call", "computer_call_output", "local_shell_call", "local_shell_call_output",
		"shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output",
		"mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call",
		"tool_search_call", "tool_search_output", "program", "program_output":
		return true
	default:
		return false
	}
}

// maxItems bounds the items of one request.
const maxItems = 5000

var itemID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// ParseInput reads what a caller gives as input: a text or a list of items.
// Items come from other providers, older libraries and by hand, so only what is
// used is checked. The error is a *Problem.
func ParseInput(param string, v gjson.Result) ([]Item, error) {
	switch {
	case v.Type == gjson.String:
		return []Item{textMessage("user", v.Raw)}, nil
	case !v.IsArray():
		return nil, wrongType(param, "a string or an array of items")
	}
	var items []Item
	var err error
	v.ForEach(func(_, each gjson.Result) bool {
		var it Item
		if it, err = parseItem(fmt.Sprintf("%s[%d]", param, len(items)), each); err != nil {
			return false
		}
		items = append(items, it)
		if len(items) > maxItems {
			err = problem(param, "array_above_max_length", "Invalid '%s': at most %d items are allowed.", param, maxItems)
		}
		return err == nil
	})
	return items, err
}

func parseItem(param string, v gjson.Result) (Item, error) {
	if !v.IsObject() {
		return Item{}, wrongType(param, "an object")
	}
	switch kind := v.Get("type"); {
	case absent(kind) && v.Get("role").Exists():
		return parseMessage(param, v)
	case absent(kind) && v.Get("id").Type == gjson.String:
		return reference(v)
	case kind.Type != gjson.String:
		return Item{}, wrongType(param+".type", "a string")
	default:
		return parseKind(param, kind.Str, v)
	}
}

func parseKind(param, kind string, v gjson.Result) (Item, error) {
	switch kind {
	case typeMessage:
		return parseMessage(param, v)
	case typeCall:
		return parseCall(param, v, "arguments", callPrefix)
	case typeCustomCall:
		return parseCall(param, v, "input", customCallPrefix)
	case typeOutput:
		return parseOutput(param, v, outputPrefix)
	case typeCustomOutput:
		return parseOutput(param, v, customOutputPrefix)
	case typeReasoning:
		return parseReasoning(v)
	case typeReference:
		return reference(v)
	case typeCompaction:
		it := begin(v, compactionPrefix, kind)
		it.JSON = end(member(it.JSON, "encrypted_content", rawOr(v.Get("encrypted_content"), `""`)))
		return it, nil
	}
	if hosted(kind) {
		id := idOf(v, itemPrefix)
		return Item{ID: id, Type: kind, JSON: []byte(v.Raw)}, nil
	}
	return Item{}, problem(param+".type", codeValue, "Invalid value for '%s.type': %q is no type of item.", param, clip(kind))
}

func reference(v gjson.Result) (Item, error) {
	return Item{ID: v.Get("id").String(), Type: typeReference, JSON: []byte(v.Raw)}, nil
}

// parseCall reads a call of a function, whose payload are its arguments, or of
// a custom tool.
func parseCall(param string, v gjson.Result, payload, prefix string) (Item, error) {
	kind := v.Get("type").Str
	for _, name := range []string{"call_id", "name", payload} {
		if x := v.Get(name); x.Type != gjson.String {
			return Item{}, textWanted(param+"."+name, x)
		}
	}
	it := begin(v, prefix, kind)
	b := member(it.JSON, "status", statusOf(v))
	b = member(b, "call_id", v.Get("call_id").Raw)
	b = member(b, "name", v.Get("name").Raw)
	if ns := v.Get("namespace"); ns.Type == gjson.String {
		b = member(b, "namespace", ns.Raw)
	}
	it.JSON = end(member(b, payload, v.Get(payload).Raw))
	return it, nil
}

func parseOutput(param string, v gjson.Result, prefix string) (Item, error) {
	if x := v.Get("call_id"); x.Type != gjson.String {
		return Item{}, textWanted(param+".call_id", x)
	}
	it := begin(v, prefix, v.Get("type").Str)
	b := member(it.JSON, "status", statusOf(v))
	b = member(b, "call_id", v.Get("call_id").Raw)
	output := v.Get("output")
	switch {
	case output.Type == gjson.String:
		b = member(b, "output", output.Raw)
	case output.IsArray():
		parts, err := parseParts(param+".output", output, "user")
		if err != nil {
			return Item{}, err
		}
		b = member(b, "output", string(parts))
	default:
		return Item{}, textWanted(param+".output", output)
	}
	it.JSON = end(b)
	return it, nil
}

// parseReasoning takes whatever shell of a reasoning item comes: clients send
// back what they were given by whichever provider.
func parseReasoning(v gjson.Result) (Item, error) {
	it := begin(v, reasoningPrefix, typeReasoning)
	b := member(it.JSON, "summary", arrayOr(v.Get("summary"), "[]"))
	b = member(b, "content", arrayOr(v.Get("content"), "[]"))
	if sealed := v.Get("encrypted_content"); sealed.Type == gjson.String {
		b = member(b, "encrypted_content", sealed.Raw)
	}
	it.JSON = end(member(b, "status", statusOf(v)))
	return it, nil
}

// absent reports that a member isn't there, or is null, which means the same.
func absent(v gjson.Result) bool { return !v.Exists() || v.Type == gjson.Null }

func textWanted(param string, v gjson.Result) error {
	if absent(v) {
		return missing(param)
	}
	return wrongType(param, "a string")
}

// idOf keeps a caller's id, where it is one, so that the item is known by it.
func idOf(v gjson.Result, prefix string) string {
	if id := v.Get("id").String(); itemID.MatchString(id) {
		return id
	}
	return newID(prefix)
}

func statusOf(v gjson.Result) string {
	switch v.Get("status").String() {
	case "incomplete":
		return `"incomplete"`
	default:
		return `"completed"`
	}
}

func rawOr(v gjson.Result, otherwise string) string {
	if absent(v) {
		return otherwise
	}
	return v.Raw
}

func arrayOr(v gjson.Result, otherwise string) string {
	if v.IsArray() {
		return v.Raw
	}
	return otherwise
}

// clip shortens a caller's text for a message.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
