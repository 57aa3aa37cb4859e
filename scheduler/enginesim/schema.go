package enginesim

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"
)

const maxSchemaDepth = 12

// sampler writes a JSON value that a simple schema accepts: types, properties
// (all of them, in their order), items, enum, const, bounds, references within
// the document, anyOf and oneOf. Patterns are not followed.
type sampler struct {
	words vocabulary
	rng   *rand.Rand
	root  gjson.Result
	buf   bytes.Buffer
}

// sampleJSON returns a value for the schema; an empty one accepts any object.
func sampleJSON(words vocabulary, rng *rand.Rand, schema json.RawMessage) string {
	s := sampler{words: words, rng: rng, root: gjson.ParseBytes(schema)}
	if !s.root.IsObject() || len(s.root.Map()) == 0 {
		return `{"simulated": true, "answer": ` + quote(words.phrase(rng)) + `}`
	}
	s.value(s.root, 0)
	return s.buf.String()
}

func quote(s string) string { return string(appendQuoted(nil, s)) }

func (s *sampler) value(schema gjson.Result, depth int) {
	schema = s.resolve(schema)
	if c := schema.Get("const"); c.Exists() {
		s.buf.WriteString(c.Raw)
		return
	}
	if choices := schema.Get("enum").Array(); len(choices) > 0 {
		s.buf.WriteString(choices[s.rng.IntN(len(choices))].Raw)
		return
	}
	switch kind(schema) {
	case "object":
		s.object(schema, depth)
	case "array":
		s.array(schema, depth)
	case "integer":
		lo, hi := bounds(schema)
		lo, hi = math.Ceil(lo), math.Floor(hi)
		s.buf.WriteString(strconv.FormatInt(int64(lo)+s.rng.Int64N(int64(max(hi-lo, 0))+1), 10))
	case "number":
		lo, hi := bounds(schema)
		s.buf.WriteString(strconv.FormatFloat(lo+s.rng.Float64()*(hi-lo), 'f', -1, 64))
	case "boolean":
		s.buf.WriteString(strconv.FormatBool(s.rng.IntN(2) == 0))
	case "null":
		s.buf.WriteString("null")
	default:
		s.text(schema)
	}
}

// resolve follows references and takes the first branch of a choice.
func (s *sampler) resolve(schema gjson.Result) gjson.Result {
	for range maxSchemaDepth {
		if ref := schema.Get(`$ref`).String(); strings.HasPrefix(ref, "#/") {
			path := strings.Split(strings.TrimPrefix(ref, "#/"), "/")
			schema = s.root
			for _, name := range path {
				schema = schema.Get(gjson.Escape(name))
			}
			continue
		}
		branch := schema.Get("anyOf.0")
		if !branch.Exists() {
			branch = schema.Get("oneOf.0")
		}
		if !branch.Exists() {
			branch = schema.Get("allOf.0")
		}
		if !branch.Exists() {
			return schema
		}
		schema = branch
	}
	return schema
}

func kind(schema gjson.Result) string {
	t := schema.Get("type")
	if t.IsArray() {
		t = t.Get("0")
	}
	switch {
	case t.Exists():
		return t.String()
	case schema.Get("properties").Exists():
		return "object"
	case schema.Get("items").Exists():
		return "array"
	default:
		return "string"
	}
}

func bounds(schema gjson.Result) (lo, hi float64) {
	lo, hi = 0, 100
	if v := schema.Get("minimum"); v.Exists() {
		lo = v.Float()
	} else if v := schema.Get("exclusiveMinimum"); v.Exists() {
		lo = v.Float() + 1
	}
	hi = max(hi, lo+100)
	if v := schema.Get("maximum"); v.Exists() {
		hi = v.Float()
	} else if v := schema.Get("exclusiveMaximum"); v.Exists() {
		hi = v.Float() - 1
	}
	return min(lo, hi), hi
}

// object writes all properties; past the depth limit only the required ones.
func (s *sampler) object(schema gjson.Result, depth int) {
	required := map[string]bool{}
	for _, r := range schema.Get("required").Array() {
		required[r.String()] = true
	}
	s.buf.WriteByte('{')
	sep := ""
	if depth < 2*maxSchemaDepth {
		schema.Get("properties").ForEach(func(name, sub gjson.Result) bool {
			if depth >= maxSchemaDepth && !required[name.String()] {
				return true
			}
			s.buf.WriteString(sep + name.Raw + ": ")
			sep = ", "
			s.value(sub, depth+1)
			return true
		})
	}
	s.buf.WriteByte('}')
}

func (s *sampler) array(schema gjson.Result, depth int) {
	n := max(int(schema.Get("minItems").Int()), 1)
	if limit := schema.Get("maxItems"); limit.Exists() {
		n = min(n, int(limit.Int()))
	}
	if depth >= maxSchemaDepth {
		n = min(n, int(schema.Get("minItems").Int()))
	}
	s.buf.WriteByte('[')
	for i := range min(n, 64) {
		if i > 0 {
			s.buf.WriteString(", ")
		}
		s.value(schema.Get("items"), depth+1)
	}
	s.buf.WriteByte(']')
}

func (s *sampler) text(schema gjson.Result) {
	var text string
	switch schema.Get("format").String() {
	case "date-time":
		text = "2026-01-02T03:04:05Z"
	case "date":
		text = "2026-01-02"
	case "time":
		text = "03:04:05Z"
	case "email":
		text = "simulated@example.com"
	case "uri":
		text = "https://example.com/simulated"
	case "uuid":
		text = "00000000-0000-4000-8000-000000000000"
	default:
		text = s.words.phrase(s.rng)
		for n := int(schema.Get("minLength").Int()); len(text) < min(n, 4096); {
			text += " " + s.words.phrase(s.rng)
		}
		if limit := schema.Get("maxLength"); limit.Exists() {
			text = text[:min(len(text), int(limit.Int()))]
		}
	}
	s.buf.WriteString(quote(text))
}
