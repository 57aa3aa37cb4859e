package inference

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"regexp"
	"regexp/syntax"
	"runtime"
	"strings"

	"github.com/maypok86/otter/v2"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"weir/api/inference/jsonscan"
)

// Bounds of JSON schemas. Engines turn them into automata: what is cheap to
// send can be dear to compile.
const (
	maxSchemaBytes  = 256 << 10 // of all schemas of a request
	maxSchemaDepth  = 32
	maxPattern      = 512     // bytes of one pattern
	maxPatternCost  = 1 << 20 // of all patterns of a request: their bytes, times their largest repeat count
	maxSchemaNumber = 24      // characters: the compiler counts exactly, so 1e999999 would cost it
	schemaCache     = 4096
)

// readSchema walks a schema and holds it to its budget.
func (p *parse) readSchema(code string) {
	if k := p.Kind(); k == jsonscan.Bool {
		p.Skip()
		return
	}
	if !p.expect(jsonscan.Object) {
		return
	}
	from := p.Offset()
	w := schemaWalk{p, code}
	w.value(0, false)
	p.schemaBytes += p.Offset() - from
	if p.schemaBytes > maxSchemaBytes {
		p.refuse(from, code, "%s is too large: the schemas of a request may have %d bytes together.", maxSchemaBytes)
	}
}

type schemaWalk struct {
	*parse

	code string
}

// value walks one value; pattern says that a string there is an expression.
func (w *schemaWalk) value(depth int, pattern bool) {
	at := w.Offset()
	if depth > maxSchemaDepth {
		w.refuse(at, w.code, "%s is nested too deeply for a schema.")
		return
	}
	switch w.Kind() {
	case jsonscan.Object:
		for m := w.Object(); m.Next(); {
			name := string(m.Name())
			if name == "patternProperties" && w.Kind() == jsonscan.Object {
				w.patternProperties(depth + 1)
				continue
			}
			w.value(depth+1, name == "pattern")
		}
	case jsonscan.Array:
		for e := w.Array(); e.Next(); {
			w.value(depth+1, false)
		}
	case jsonscan.Number:
		if text := w.Number(); len(text) > maxSchemaNumber || bytes.ContainsAny(text, "eE") && len(text) > 8 {
			w.refuse(at, w.code, "%s has too many characters for a number of a schema.")
		}
	case jsonscan.String:
		if text := w.Text(); pattern {
			w.pattern(at, text)
		}
	default:
		w.Skip()
	}
}

func (w *schemaWalk) patternProperties(depth int) {
	for m := w.Object(); m.Next(); {
		w.pattern(m.At(), m.Name())
		w.value(depth+1, false)
	}
}

func (w *schemaWalk) pattern(at int, text []byte) {
	w.patternCost += len(text) * (1 + largestCount(text))
	if len(text) > maxPattern || w.patternCost > maxPatternCost {
		w.refuse(at, w.code, "%s is beyond the budget of patterns. Use fewer or shorter ones, and smaller repeat counts.")
	}
}

// largestCount is the largest number that follows a brace or a comma, as repeat
// counts do: compilers write out what is repeated as often as that.
func largestCount(pattern []byte) int {
	largest, n, counting := 0, 0, false
	for _, b := range pattern {
		switch {
		case b == '{' || b == ',':
			n, counting = 0, true
		case counting && '0' <= b && b <= '9' && n < maxPatternCost:
			n = n*10 + int(b-'0')
			largest = max(largest, n)
		default:
			counting = false
		}
	}
	return largest
}

// checkSchema compiles the schema between the offsets. strict says that an
// engine will hold the output to it, so that each pattern must be one that
// automata can have.
func (p *parse) checkSchema(from, to int, strict bool, code string) {
	if p.Err() != nil {
		return
	}
	tenant := ""
	if p.in.Principal != nil {
		tenant = string(p.in.Principal.Tenant)
	}
	err := p.schemas.check(p.in.Done, tenant, p.body[from:to], strict)
	switch {
	case err == nil:
	case errors.Is(err, context.Canceled):
		p.Fail(err)
	default:
		p.refuse(from, code, "%s is not a usable JSON schema: %v.", err)
	}
}

// schemas knows which schemas compile. Agents send the same tools with every
// turn, so verdicts on good ones are kept, by tenant.
type schemas struct {
	good *otter.Cache[[sha256.Size]byte, struct{}]
	// The dearest schemas take tenths of a second to compile: half of the
	// processors at most work for them.
	compiling chan struct{}
}

func newSchemas() *schemas {
	return &schemas{
		good:      otter.Must(&otter.Options[[sha256.Size]byte, struct{}]{MaximumSize: schemaCache}),
		compiling: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)),
	}
}

// check waits for its turn to compile, until done.
func (s *schemas) check(done <-chan struct{}, tenant string, schema []byte, strict bool) error {
	h := sha256.New()
	mode := byte('l')
	if strict {
		mode = 's'
	}
	// The tenant's id has no NUL, so that the parts can't run into each other.
	_, _ = h.Write(append([]byte(tenant), 0, mode))
	_, _ = h.Write(schema)
	key := [sha256.Size]byte(h.Sum(nil))
	if _, ok := s.good.GetIfPresent(key); ok {
		return nil
	}
	select {
	case s.compiling <- struct{}{}:
	case <-done:
		return context.Canceled
	}
	defer func() { <-s.compiling }()
	if err := compile(schema, strict); err != nil {
		return err
	}
	s.good.Set(key, struct{}{})
	return nil
}

var (
	errRemote  = errors.New("it refers to another document")
	errInvalid = errors.New("it breaks the rules of JSON Schema")
)

// noLoader refuses to fetch what a schema refers to.
type noLoader struct{}

func (noLoader) Load(string) (any, error) { return nil, errRemote }

func compile(schema []byte, strict bool) error {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return errInvalid
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	c.UseRegexpEngine(func(pattern string) (jsonschema.Regexp, error) { return compilePattern(pattern, strict) })
	const name = "weir:schema"
	if err := c.AddResource(name, doc); err != nil {
		return explain(err)
	}
	if _, err := c.Compile(name); err != nil {
		return explain(err)
	}
	return nil
}

// explain keeps the library's wording, which shows internal addresses, from
// the caller.
func explain(err error) error {
	if invalid, ok := errors.AsType[*jsonschema.SchemaValidationError](err); ok {
		if v, ok := errors.AsType[*jsonschema.ValidationError](invalid.Err); ok {
			return &schemaError{at: deepest(v).InstanceLocation}
		}
	}
	if errors.Is(err, errRemote) {
		return errRemote
	}
	return errInvalid
}

func deepest(v *jsonschema.ValidationError) *jsonschema.ValidationError {
	for len(v.Causes) > 0 {
		v = v.Causes[0]
	}
	return v
}

// schemaError says where a schema breaks the rules.
type schemaError struct{ at []string }

func (e *schemaError) Error() string {
	if len(e.at) == 0 {
		return errInvalid.Error()
	}
	var b strings.Builder
	for _, name := range e.at {
		b.WriteString("/" + name[:min(len(name), maxFunctionName)])
	}
	path := b.String()
	return errInvalid.Error() + " at " + path[:min(len(path), maxName)]
}

// compilePattern compiles an expression. Where no engine will hold output to
// it, look-arounds and back-references are let through unread: widely used
// schema generators write them.
func compilePattern(pattern string, strict bool) (jsonschema.Regexp, error) {
	re, err := regexp.Compile(pattern)
	if err == nil {
		return re, nil
	}
	if se, ok := errors.AsType[*syntax.Error](err); ok && !strict {
		switch se.Code {
		case syntax.ErrInvalidPerlOp, syntax.ErrInvalidEscape, syntax.ErrInvalidNamedCapture, syntax.ErrInvalidCharRange:
			return unread(pattern), nil
		default:
		}
	}
	return nil, errInvalid
}

// unread is an expression that is never matched against anything.
type unread string

func (u unread) MatchString(string) bool { return true }
func (u unread) String() string          { return string(u) }
