package inference

import (
	"context"
	"errors"

	"weir/api/inference/jsonscan"
)

func (p *parse) readResponseFormat() {
	kind, schema := "", false
	at := p.object("response_format", func(name []byte) bool {
		switch string(name) {
		case "type":
			kind = p.readWord("text", "json_object", "json_schema")
		case "json_schema":
			schema = true
			p.readFormatSchema()
		default:
			return false
		}
		return true
	})
	p.need(at, "type", kind != "")
	if schema != (kind == "json_schema") {
		p.refuseMember(at, "json_schema", codeValue, "%s must be given where the type is json_schema, and only there.")
	}
}

func (p *parse) readFormatSchema() {
	named, schema := false, false
	at := p.object("response_format.json_schema", func(name []byte) bool {
		switch string(name) {
		case "name":
			named = true
			p.readFunctionName()
		case "description":
			p.readText(maxDescription)
		case "strict":
			p.readBool()
		case "schema":
			schema = true
			from := p.Offset()
			p.readSchema(codeSchema)
			p.checkSchema(from, p.Offset(), true, codeSchema)
		default:
			return false
		}
		return true
	})
	p.need(at, "name", named)
	p.need(at, "schema", schema)
}

// readGuidedJSON reads a schema as an object, or as a string that holds one.
func (p *parse) readGuidedJSON() {
	from := p.skipSpace(p.Offset())
	if p.Kind() == jsonscan.String {
		p.readText(maxSchemaBytes)
		return
	}
	p.readSchema(codeSchema)
	p.checkSchema(from, p.Offset(), true, codeSchema)
}

// settleFormat turns guided_json into the response_format that means the same
// to every engine.
func (p *parse) settleFormat() {
	m := p.find("guided_json")
	if m == nil || p.Err() != nil {
		return
	}
	if p.find("response_format") != nil {
		p.refuse(m.start, codeExclusive, "%s and 'response_format' exclude each other.")
		return
	}
	schema := p.body[m.value:m.end]
	if schema[0] == '"' {
		schema = jsonscan.Unquote(schema[1 : len(schema)-1])
		inner := parse{Cursor: jsonscan.New(schema), body: schema, in: p.in, schemas: p.schemas}
		inner.readSchema(codeSchema)
		inner.End()
		inner.checkSchema(0, len(schema), true, codeSchema)
		switch err := inner.Err(); {
		case err == nil:
		case errors.Is(err, context.Canceled):
			p.Fail(err)
			return
		default:
			p.refuse(m.start, codeSchema, "%s holds no usable JSON schema: %v", inner.Err())
			return
		}
	}
	m.text = append([]byte(`"response_format":{"type":"json_schema","json_schema":{"name":"guided_json","strict":true,"schema":`), schema...)
	m.text = append(m.text, "}}"...)
}
