package responses

import (
	"fmt"

	"github.com/tidwall/gjson"
)

// choice is which tools a model may or must call.
type choice struct {
	chat  string   // for the engine; empty leaves it out
	echo  string   // for the caller
	tools []string // names at the engine of those it is told of; nil: all
}

// parseChoice reads tool_choice.
func parseChoice(v gjson.Result, t *toolset) (choice, error) {
	switch {
	case absent(v):
		return choice{echo: `"auto"`}, nil
	case v.Type == gjson.String:
		return wordChoice(v, t)
	case v.IsObject():
		return objectChoice(v, t)
	default:
		return choice{}, wrongType("tool_choice", "a string or an object")
	}
}

func wordChoice(v gjson.Result, t *toolset) (choice, error) {
	c := choice{echo: v.Raw}
	switch v.Str {
	case "auto", "none":
	case "required":
		if len(t.order) == 0 {
			return c, problem("tool_choice", codeValue, "Invalid 'tool_choice': 'required' needs a tool that can be called.")
		}
	default:
		return c, problem("tool_choice", codeValue, "Invalid value for 'tool_choice': %q. Use none, auto, required or an object.", clip(v.Str))
	}
	if len(t.order) > 0 { // engines refuse a choice between no tools
		c.chat = v.Raw
	}
	return c, nil
}

func objectChoice(v gjson.Result, t *toolset) (choice, error) {
	switch kind := v.Get("type").String(); kind {
	case "function", "custom":
		name := v.Get("name").String()
		if f := v.Get("function.name"); f.Exists() {
			name = f.String() // the Chat form
		}
		at := flatName(v.Get("namespace").String(), name)
		if what, ok := t.byName[at]; !ok || what.custom != (kind == "custom") {
			return choice{}, problem("tool_choice.name", codeValue, "Invalid 'tool_choice': there is no %s tool %q in 'tools'.", kind, clip(name))
		}
		return choice{chat: `{"type":"function","function":{"name":` + quote(at) + `}}`, echo: v.Raw}, nil
	case "allowed_tools":
		return allowedTools(v, t)
	case "":
		return choice{}, missing("tool_choice.type")
	default:
		return choice{}, problem("tool_choice.type", codeUnsupported, "Tools of type %q are not run here.", clip(kind))
	}
}

// allowedTools tells the engine of the allowed ones alone: engines have no word
// for it.
func allowedTools(v gjson.Result, t *toolset) (choice, error) {
	c := choice{echo: v.Raw, tools: []string{}}
	mode := v.Get("mode").String()
	if mode != "auto" && mode != "required" {
		return c, problem("tool_choice.mode", codeValue, "Invalid value for 'tool_choice.mode': use auto or required.")
	}
	n := 0
	var err error
	v.Get("tools").ForEach(func(_, each gjson.Result) bool {
		at := flatName(each.Get("namespace").String(), each.Get("name").String())
		switch kind := each.Get("type").String(); {
		case t.byName[at].name != "":
			c.tools = append(c.tools, at)
		case kind == "function" || kind == "custom":
			err = problem(fmt.Sprintf("tool_choice.tools[%d]", n), codeValue, "Invalid 'tool_choice': there is no tool %q in 'tools'.", clip(each.Get("name").String()))
		default: // one that was left out of tools too
		}
		n++
		return err == nil
	})
	if err == nil && len(c.tools) == 0 && mode == "required" {
		err = problem("tool_choice.tools", codeValue, "Invalid 'tool_choice': 'required' needs a tool that can be called.")
	}
	if len(c.tools) > 0 {
		c.chat = quote(mode)
	}
	return c, err
}

// functions is the array that the engine is told.
func (t *toolset) functions(c choice) []byte {
	if c.tools == nil {
		return t.chat
	}
	var b []byte
	for _, name := range c.tools {
		if len(b) > 0 {
			b = append(b, ',')
		}
		b = append(b, t.each[name]...)
	}
	return b
}
