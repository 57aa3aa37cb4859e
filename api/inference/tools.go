package inference

import (
	"slices"

	"weir/api/inference/jsonscan"
	"weir/gateway/catalogue"
)

// Bounds of tools.
const (
	maxTools        = 512
	maxFunctionName = 64
	maxDescription  = 64 << 10
)

// choice is what tool_choice asks for.
type choice struct {
	mode string // none, auto, required, function; "" when absent
	name string // of the function
}

func (p *parse) readTools() { p.array(maxTools, p.readTool) }

func (p *parse) readTool() {
	kind, function := "", false
	at := p.object("tools[]", func(name []byte) bool {
		switch string(name) {
		case "type":
			kind = p.readWord("function")
		case "function":
			function = true
			p.readFunction()
		default:
			return false
		}
		return true
	})
	p.need(at, "type", kind != "")
	p.need(at, "function", function)
}

func (p *parse) readFunction() {
	before := len(p.tools)
	var schemaFrom, schemaTo int
	strict := false
	at := p.object("tools[].function", func(name []byte) bool {
		switch string(name) {
		case "name":
			p.tools = append(p.tools, p.readFunctionName())
		case "description":
			p.readText(maxDescription)
		case "strict":
			strict = p.readBool()
		case "parameters":
			schemaFrom = p.Offset()
			p.readSchema(codeFunctionParameter)
			schemaTo = p.Offset()
		default:
			return false
		}
		return true
	})
	p.need(at, "name", len(p.tools) > before)
	if schemaTo > 0 {
		p.checkSchema(schemaFrom, schemaTo, strict, codeFunctionParameter)
	}
}

// readFunctionName reads a name of 1 to 64 letters, digits, _ and -.
func (p *parse) readFunctionName() string {
	if !p.expect(jsonscan.String) {
		return ""
	}
	at := p.Offset()
	name := p.Text()
	if p.Err() == nil && !isFunctionName(name) {
		p.refuse(at, codeValue, "%s must be of 1 to 64 letters, digits, underscores and hyphens.")
	}
	return string(name)
}

func isFunctionName(name []byte) bool {
	for _, b := range name {
		letter := 'a' <= b|0x20 && b|0x20 <= 'z'
		if !letter && (b < '0' || b > '9') && b != '_' && b != '-' {
			return false
		}
	}
	return len(name) > 0 && len(name) <= maxFunctionName
}

func (p *parse) readToolChoice() {
	if p.Kind() == jsonscan.String {
		p.toolChoice.mode = p.readWord("none", "auto", "required")
		return
	}
	kind, function := "", false
	at := p.object("tool_choice", func(name []byte) bool {
		switch string(name) {
		case "type":
			kind = p.readWord("function")
		case "function":
			function = true
			p.readChosenFunction()
		default:
			return false
		}
		return true
	})
	p.need(at, "type", kind != "")
	p.need(at, "function", function)
	p.toolChoice.mode = "function"
}

func (p *parse) readChosenFunction() {
	at := p.object("tool_choice.function", func(name []byte) bool {
		if string(name) != "name" {
			return false
		}
		p.toolChoice.name = p.readFunctionName()
		return true
	})
	p.need(at, "name", p.toolChoice.name != "")
}

// settleTools checks the choice against the tools. Engines refuse a choice, and
// some an empty list, where there is nothing to choose from.
func (p *parse) settleTools() {
	c := p.find("tool_choice")
	if p.Err() != nil {
		return
	}
	if len(p.tools) == 0 {
		if m := p.find("tools"); m != nil {
			m.keep = false
		}
		if m := p.find("parallel_tool_calls"); m != nil {
			m.keep = false
			p.ignore("parallel_tool_calls")
		}
	}
	switch {
	case c == nil:
	case p.toolChoice.mode == "function" && !slices.Contains(p.tools, p.toolChoice.name):
		p.refuse(c.start, codeValue, "%s names a function that is not among the tools.")
	case len(p.tools) > 0:
	case p.toolChoice.mode == "required":
		p.refuse(c.start, codeValue, "%s requires a tool, but there are no tools.")
	default:
		c.keep = false
		p.ignore("tool_choice")
	}
}

// readTemplateKwargs notes what settleTemplate decides: which keys a caller may
// set is the model's, which may be named later in the body.
func (p *parse) readTemplateKwargs() {
	if !p.expect(jsonscan.Object) {
		return
	}
	at, n := p.Offset(), 0
	for m := p.Object(); m.Next(); n++ {
		if n == maxTemplates {
			p.refuse(at, codeArrayLong, "%s has more than %d members, the most that it may have.", maxTemplates)
		}
		switch p.Kind() {
		case jsonscan.Object, jsonscan.Array:
			p.refuse(p.Offset(), codeType, "%s must be a plain value.")
		case jsonscan.String:
			p.readText(maxName)
		default:
			p.Skip()
		}
	}
}

// settleEffort turns the effort into one that the model has.
func (p *parse) settleEffort(model *catalogue.Model) {
	m := p.find("reasoning_effort")
	if m == nil || p.Err() != nil {
		return
	}
	if own := model.Effort(p.effort); own != p.effort {
		m.text = []byte(`"reasoning_effort":"` + own + `"`)
	}
}

// settleRoles leaves developers what they are where the model knows them.
func (p *parse) settleRoles(model *catalogue.Model) {
	if model.Template.DeveloperRole {
		p.edits = slices.DeleteFunc(p.edits, func(e edit) bool { return e.role })
	}
}

// model is the one that the request names, which may not exist.
func (p *parse) model() *catalogue.Model {
	if p.in.Models != nil {
		if m, ok := p.in.Models.Lookup(p.call.Model); ok {
			return m
		}
	}
	return &catalogue.Model{}
}

// settleTemplate keeps the keys of chat_template_kwargs that the model lists.
func (p *parse) settleTemplate(model *catalogue.Model) {
	m := p.find("chat_template_kwargs")
	if m == nil || p.Err() != nil {
		return
	}
	m.text = []byte(`"chat_template_kwargs":{`)
	empty := len(m.text)
	c := jsonscan.New(p.body[m.value:m.end])
	for kw := c.Object(); kw.Next(); {
		from := c.Offset()
		c.Skip()
		name := string(kw.Name())
		if !slices.Contains(model.TemplateKeys, name) {
			p.ignore("chat_template_kwargs." + name)
			continue
		}
		if len(m.text) > empty {
			m.text = append(m.text, ',')
		}
		m.text = append(m.text, p.body[m.value+kw.At():m.value+from]...)
		m.text = append(m.text, c.Slice(from, c.Offset())...)
	}
	m.keep = len(m.text) > empty
	m.text = append(m.text, '}')
}
