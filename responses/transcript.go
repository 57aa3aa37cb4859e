package responses

import (
	"strings"

	"github.com/tidwall/gjson"
)

// Dialect is what a model's chat template can take, and what the caller asks of
// it.
type Dialect struct {
	Model     string // public name of the model
	Developer bool   // the template knows developers; else their text is a system's
	Systems   bool   // systems may stand anywhere; else all are merged into the first message: most templates refuse or drop a later one
	AllTurns  bool   // reasoning of earlier turns is shown to the model; else that of the present tool loop alone
	// Native says that the model's engines are asked at a /v1/responses of their
	// own.
	Native bool
	// NativeFiles says that the model takes files as they are; else it is given
	// their text.
	NativeFiles bool
	// Open reads reasoning that was sealed for a caller; false where it was not
	// sealed here, for this tenant and model. Nil opens none.
	Open func(sealed string) (text string, ok bool)
}

// transcript turns items into the messages of a Chat request. Texts stay as
// they came, byte for byte: a turn that goes on from another begins with the
// same bytes, which the engine has in its prefix cache.
type transcript struct {
	dialect  Dialect
	b        []byte
	n        int // messages
	turn     assistant
	open     []string        // calls without an output yet, as JSON
	answered map[string]bool // calls that have an output somewhere, as JSON
	images   []string        // parts of tools' outputs, which a tool's message can't hold
}

// assistant gathers what stands between two messages of others: templates know
// one message for a turn, with its reasoning, text and calls.
type assistant struct {
	begun     bool // by a message or a call: reasoning alone is no turn
	reasoning string
	text      []string
	calls     []string
}

// Messages renders items as the array of a Chat request. instructions is a JSON
// string; empty when there are none. The error is a *Problem.
func Messages(instructions string, items []Item, d Dialect) ([]byte, error) {
	b, _, err := appendMessages(make([]byte, 0, size(items)), instructions, items, d)
	return b, err
}

// appendMessages is Messages into b; n says how many there are.
func appendMessages(b []byte, instructions string, items []Item, d Dialect) (messages []byte, n int, err error) {
	t := &transcript{dialect: d, b: append(b, '['), answered: map[string]bool{}}
	parsed := make([]gjson.Result, len(items))
	loop := -1 // the last message of the user
	roles := make([]string, len(items))
	for i, it := range items {
		if roles[i] = it.plain.role; roles[i] == "" {
			parsed[i] = gjson.ParseBytes(it.JSON)
			roles[i] = parsed[i].Get("role").Str
		}
		if it.Type == typeMessage && roles[i] == "user" {
			loop = i
		}
		if it.Type == typeOutput || it.Type == typeCustomOutput {
			t.answered[parsed[i].Get("call_id").Raw] = true
		}
	}
	merged := t.systems(instructions, items, parsed, roles)
	for i, it := range items {
		if merged[i] || it.Type == typeReasoning && i < loop && !d.AllTurns {
			continue
		}
		if err := t.next(it, parsed[i]); err != nil {
			return nil, 0, err
		}
	}
	t.flush()
	if len(t.open) > 0 {
		return nil, 0, noOutput(t.open[0])
	}
	t.flushImages()
	return append(t.b, ']'), t.n, nil
}

func size(items []Item) int {
	n := 64
	for _, it := range items {
		n += len(it.JSON)
	}
	return n
}

// systems writes the first message: the instructions, and what systems and
// developers say. It returns which items are in it.
func (t *transcript) systems(instructions string, items []Item, parsed []gjson.Result, roles []string) (merged []bool) {
	merged = make([]bool, len(items))
	var texts []string
	if instructions != "" {
		texts = append(texts, inner(instructions))
	}
	for i, it := range items {
		role := roles[i]
		if it.Type == typeMessage && (role == "system" || role == "developer" && !t.dialect.Developer) {
			merged[i] = true
			texts = append(texts, textsOf(parsed[i].Get("content"))...)
		} else if t.dialect.Systems {
			break
		}
	}
	if len(texts) > 0 {
		t.message(`{"role":"system","content":"` + strings.Join(texts, `\n\n`) + `"}`)
	}
	return merged
}

// message appends one, in pieces: the long ones are copied once.
func (t *transcript) message(pieces ...string) {
	if t.n++; t.n > 1 {
		t.b = append(t.b, ',')
	}
	t.add(pieces...)
}

// add appends to the message that was begun.
func (t *transcript) add(pieces ...string) {
	for _, p := range pieces {
		t.b = append(t.b, p...)
	}
}

// next adds an item to the transcript.
func (t *transcript) next(it Item, v gjson.Result) error {
	switch it.plain.role {
	case "":
		return t.item(it.Type, v)
	case "assistant":
		t.turn.begun = true
		t.turn.text = append(t.turn.text, it.plain.text)
		return nil
	default:
		if err := t.interrupt(); err != nil {
			return err
		}
		t.message(`{"role":"user","content":"`, it.plain.text, `"}`)
		return nil
	}
}

// item adds one that has to be read.
func (t *transcript) item(kind string, v gjson.Result) error {
	switch kind {
	case typeMessage:
		if v.Get("role").Str == "assistant" {
			t.turn.begun = true
			t.turn.text = append(t.turn.text, strings.Join(textsOf(v.Get("content")), ""))
			return nil
		}
		return t.other(v)
	case typeReasoning:
		t.turn.reasoning += t.reasoning(v)
	case typeCall, typeCustomCall:
		t.call(kind, v)
	case typeOutput, typeCustomOutput:
		return t.output(v)
	case typeCompaction:
		text, ok := t.unseal(v)
		if !ok {
			return noCompaction(v.Get("id").Str)
		}
		t.flush()
		t.message(`{"role":"user","content":` + quote(text) + `}`)
	default: // of a tool that some other provider ran
	}
	return nil
}

// interrupt ends the assistant's turn for somebody else's message.
func (t *transcript) interrupt() error {
	t.flush()
	if len(t.open) > 0 {
		return noOutput(t.open[0])
	}
	t.flushImages()
	return nil
}

// other is a message of the user, or of a system in the middle.
func (t *transcript) other(v gjson.Result) error {
	if err := t.interrupt(); err != nil {
		return err
	}
	role := v.Get("role").Str
	if role == "developer" && !t.dialect.Developer {
		role = "system"
	}
	t.message(`{"role":"`, role, `","content":`)
	t.b = append(appendContent(t.b, v.Get("content")), '}')
	return nil
}

func (t *transcript) call(kind string, v gjson.Result) {
	id := v.Get("call_id").Raw
	if v.Get("status").Str == "incomplete" && !t.answered[id] {
		return // it was cut off, and nobody ran it
	}
	arguments := v.Get("arguments").Raw
	if kind == typeCustomCall {
		arguments = quote(`{"input":` + v.Get("input").Raw + `}`)
	}
	name := flatName(v.Get("namespace").String(), v.Get("name").Str)
	t.turn.begun = true
	t.turn.calls = append(t.turn.calls,
		`{"id":`+id+`,"type":"function","function":{"name":`+quote(name)+`,"arguments":`+arguments+`}}`)
	t.open = append(t.open, id)
}

func (t *transcript) output(v gjson.Result) error {
	t.flush()
	id := v.Get("call_id").Raw
	at := -1
	for i, open := range t.open {
		if open == id {
			at = i
			break
		}
	}
	if at < 0 {
		return problem("input", codeValue, "No tool call found for function call output with call_id %s.", inner(id))
	}
	t.open = append(t.open[:at], t.open[at+1:]...)
	output := v.Get("output")
	text := output.Raw
	if output.IsArray() {
		text = `"` + strings.Join(textsOf(output), `\n`) + `"`
		t.images = append(t.images, imagesOf(output)...)
	}
	t.message(`{"role":"tool","tool_call_id":` + id + `,"content":` + text + `}`)
	return nil
}

// flush ends the assistant's turn.
func (t *transcript) flush() {
	a := t.turn
	t.turn = assistant{text: a.text[:0], calls: a.calls[:0]}
	if !a.begun {
		return
	}
	t.flushImages()
	t.message(`{"role":"assistant","content":`)
	if text := strings.Join(a.text, `\n`); text != "" || len(a.calls) == 0 {
		t.add(`"`, text, `"`)
	} else {
		t.add("null") // what templates want beside calls
	}
	if a.reasoning != "" { // engines differ in the name
		t.add(`,"reasoning":"`, a.reasoning, `","reasoning_content":"`, a.reasoning, `"`)
	}
	if len(a.calls) > 0 {
		t.add(`,"tool_calls":[`, strings.Join(a.calls, ","), `]`)
	}
	t.add(`}`)
}

// flushImages shows the model the images of tools' outputs, as the user's.
func (t *transcript) flushImages() {
	if len(t.images) > 0 {
		t.message(`{"role":"user","content":[` + strings.Join(t.images, ",") + `]}`)
		t.images = nil
	}
}

// reasoning is the escaped text of a reasoning item; empty for a shell.
func (t *transcript) reasoning(v gjson.Result) string {
	if texts := textsOf(v.Get("content")); len(texts) > 0 {
		return strings.Join(texts, "")
	}
	if text, ok := t.unseal(v); ok {
		return inner(quote(text))
	}
	return ""
}

func (t *transcript) unseal(v gjson.Result) (string, bool) {
	sealed := v.Get("encrypted_content").String()
	if sealed == "" || t.dialect.Open == nil {
		return "", false
	}
	return t.dialect.Open(sealed)
}

func noOutput(callID string) error {
	return problem("input", codeValue, "No tool output found for function call %s.", inner(callID))
}
