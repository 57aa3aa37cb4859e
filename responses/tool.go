package responses

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"

	"github.com/tidwall/gjson"
)

// tool is what an engine's function stands for. Engines know functions alone:
// a custom tool is a function of one text, a namespace's tool is a function of
// a longer name.
type tool struct {
	name, namespace string
	custom          bool
}

// toolset is the tools of one request: as the engine is told of them, as the
// response shows them, and what leads from an engine's call back to the tool.
type toolset struct {
	chat    []byte   // members of the array for the engine; empty when there are none
	echo    []byte   // members of the array for the caller
	order   []string // names at the engine
	each    map[string][]byte
	byName  map[string]tool // by name at the engine
	ignored []string        // types that no engine runs
}

const maxTools = 512

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

// defaultParameters are those of a function that takes none.
const defaultParameters = `{"type":"object","properties":{}}`

// parseTools reads the tools of a request. Tools that only some providers run
// are left out, and named: clients send them without being asked.
func parseTools(v gjson.Result) (*toolset, error) {
	t := &toolset{each: map[string][]byte{}, byName: map[string]tool{}}
	if absent(v) {
		return t, nil
	}
	if !v.IsArray() {
		return nil, wrongType("tools", "an array")
	}
	var err error
	n := 0
	v.ForEach(func(_, each gjson.Result) bool {
		err = t.add(fmt.Sprintf("tools[%d]", n), "", each)
		if n++; n > maxTools && err == nil {
			err = problem("tools", "array_above_max_length", "Invalid 'tools': at most %d are allowed.", maxTools)
		}
		return err == nil
	})
	for _, name := range t.order {
		if len(t.chat) > 0 {
			t.chat = append(t.chat, ',')
		}
		t.chat = append(t.chat, t.each[name]...)
	}
	return t, err
}

func (t *toolset) add(param, namespace string, v gjson.Result) error {
	if !v.IsObject() {
		return wrongType(param, "an object")
	}
	switch kind := v.Get("type"); kind.String() {
	case "":
		return missing(param + ".type")
	case "function":
		return t.addFunction(param, namespace, v)
	case "custom":
		return t.addCustom(param, namespace, v)
	case "namespace":
		if namespace != "" {
			return problem(param+".type", codeValue, "Invalid '%s': a namespace has functions, no namespaces.", param)
		}
		return t.addNamespace(param, v)
	case "mcp":
		return problem(param+".type", codeUnsupported, "Tools of type 'mcp' are not run here: connect to the server yourself and give its tools as functions.")
	default:
		t.ignored = append(t.ignored, "tools."+clip(kind.String()))
		return nil
	}
}

func (t *toolset) addNamespace(param string, v gjson.Result) error {
	name, err := nameOf(param, v)
	if err != nil {
		return err
	}
	inside := v.Get("tools")
	if !inside.IsArray() {
		return wrongType(param+".tools", "an array")
	}
	mark := len(t.echo)
	n := 0
	inside.ForEach(func(_, each gjson.Result) bool {
		err = t.add(fmt.Sprintf("%s.tools[%d]", param, n), name, each)
		n++
		return err == nil
	})
	t.echo = t.echo[:mark] // shown as it came, not flattened
	t.show(v.Raw)
	return err
}

func (t *toolset) addFunction(param, namespace string, v gjson.Result) error {
	if f := v.Get("function"); f.IsObject() && !v.Get("name").Exists() {
		v, param = f, param+".function" // the Chat form
	}
	name, err := nameOf(param, v)
	if err != nil {
		return err
	}
	parameters := v.Get("parameters")
	if !absent(parameters) && !parameters.IsObject() {
		return wrongType(param+".parameters", "an object")
	}
	f := `"parameters":` + rawOr(parameters, defaultParameters)
	if d := v.Get("description"); d.Type == gjson.String {
		f = `"description":` + d.Raw + `,` + f
	}
	if s := v.Get("strict"); s.IsBool() {
		f += `,"strict":` + s.Raw
	}
	t.show(`{"type":"function","name":` + quote(name) + `,"description":` + rawOr(v.Get("description"), "null") +
		`,"parameters":` + rawOr(parameters, "null") + `,"strict":` + rawOr(v.Get("strict"), "true") + `}`)
	return t.put(param, tool{name: name, namespace: namespace}, f)
}

// addCustom makes a function of one text. Where the tool has a grammar, the
// model is told of it: engines constrain a function's JSON, not a text in it.
func (t *toolset) addCustom(param, namespace string, v gjson.Result) error {
	name, err := nameOf(param, v)
	if err != nil {
		return err
	}
	description := v.Get("description").String()
	if format := v.Get("format"); format.Get("type").String() == "grammar" {
		definition := format.Get("definition").String()
		if nested := format.Get("grammar.definition"); nested.Exists() {
			definition = nested.String()
		}
		description = strings.TrimSpace(description + "\n\nThe input must follow this grammar:\n" + definition)
	}
	f := `"parameters":{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}`
	if description != "" {
		f = `"description":` + quote(description) + `,` + f
	}
	t.show(v.Raw)
	return t.put(param, tool{name: name, namespace: namespace, custom: true}, f)
}

// put adds a function for the engine.
func (t *toolset) put(param string, what tool, f string) error {
	at := flatName(what.namespace, what.name)
	if _, twice := t.byName[at]; twice {
		return problem(param+".name", codeValue, "Invalid '%s.name': two tools are named %q.", param, what.name)
	}
	t.byName[at] = what
	t.order = append(t.order, at)
	t.each[at] = []byte(`{"type":"function","function":{"name":` + quote(at) + `,` + f + `}}`)
	return nil
}

func (t *toolset) show(raw string) {
	if len(t.echo) > 0 {
		t.echo = append(t.echo, ',')
	}
	t.echo = append(t.echo, raw...)
}

// find leads from an engine's call to its tool. A name that the engine made up
// is passed on as a function's: the caller knows what to make of it.
func (t *toolset) find(name string) tool {
	if what, ok := t.byName[name]; ok {
		return what
	}
	return tool{name: name}
}

func nameOf(param string, v gjson.Result) (string, error) {
	name := v.Get("name")
	if name.Type != gjson.String {
		return "", textWanted(param+".name", name)
	}
	if !toolName.MatchString(name.Str) {
		return "", problem(param+".name", codeValue, "Invalid '%s.name': use 1 to 64 letters, digits, underscores and dashes.", param)
	}
	return name.Str, nil
}

// flatName is a tool's name at the engine, the same in every request: it is a
// part of the prompt, and of its cached prefix.
func flatName(namespace, name string) string {
	if namespace == "" {
		return name
	}
	flat := namespace + "__" + name
	if len(flat) <= 64 {
		return flat
	}
	sum := sha256.Sum256([]byte(flat))
	return flat[:55] + "_" + hex.EncodeToString(sum[:4])
}
