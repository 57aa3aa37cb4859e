package inference

import (
	"errors"
	"fmt"

	"weir/api/inference/jsonscan"
)

// The codes of refused requests, as OpenAI's clients know them.
const (
	codeMissing           = "missing_required_parameter"
	codeType              = "invalid_type"
	codeValue             = "invalid_value"
	codeParameter         = "unsupported_parameter"
	codeUnsupported       = "unsupported_value"
	codeIntegerBelow      = "integer_below_min_value"
	codeIntegerAbove      = "integer_above_max_value"
	codeDecimalBelow      = "decimal_below_min_value"
	codeDecimalAbove      = "decimal_above_max_value"
	codeStringLong        = "string_above_max_length"
	codeArrayLong         = "array_above_max_length"
	codeArrayShort        = "empty_array"
	codeExclusive         = "mutually_exclusive_parameters"
	codeSchema            = "invalid_json_schema"
	codeFunctionParameter = "invalid_function_parameters"
)

// Problem is a fault of the caller's request (status 400), in words for the
// caller. Code is empty where the body isn't JSON at all; Param is the path of
// the member at fault.
type Problem struct { //nolint:errname // what problem documents call it
	Code    string
	Param   string
	Message string
}

func (p *Problem) Error() string {
	if p.Param == "" {
		return p.Message
	}
	return p.Param + ": " + p.Message
}

// problemOf turns the scanner's error into words.
func problemOf(err error, body []byte) error {
	syntax, ok := errors.AsType[*jsonscan.Error](err)
	if !ok {
		return err
	}
	if syntax.Reason == jsonscan.Syntax {
		return &Problem{Message: fmt.Sprintf("The body of the request is not valid JSON (at byte %d).", syntax.Offset)}
	}
	path := jsonscan.Path(body, syntax.Offset)
	subject := "The body"
	if path != "" {
		subject = "'" + path + "'"
	}
	return &Problem{Code: codeValue, Param: path, Message: fmt.Sprintf("%s %s.", subject, syntax.Reason)}
}

// refuse stops the walk with a problem of the value at the offset. The format's
// first verb is the value's quoted path.
func (p *parse) refuse(offset int, code, format string, args ...any) {
	p.refuseMember(offset, "", code, format, args...)
}

// refuseMember is refuse for a member, named by suffix, that the object at the
// offset lacks.
func (p *parse) refuseMember(offset int, suffix, code, format string, args ...any) {
	if p.Err() != nil {
		return
	}
	path := jsonscan.Path(p.body, offset)
	if suffix != "" {
		if path != "" {
			path += "."
		}
		path += suffix
	}
	args = append([]any{"'" + path + "'"}, args...)
	p.Fail(&Problem{Code: code, Param: path, Message: fmt.Sprintf(format, args...)})
}

func (p *parse) missing(offset int, member string) {
	p.refuseMember(offset, member, codeMissing, "The required parameter %s is missing.")
}

// need refuses the object at the offset unless it has the member.
func (p *parse) need(offset int, member string, has bool) {
	if !has {
		p.missing(offset, member)
	}
}

// expect refuses the next value unless it is of the kind.
func (p *parse) expect(want jsonscan.Kind) bool {
	got := p.Kind()
	if got == want || p.Err() != nil {
		return p.Err() == nil
	}
	if got == jsonscan.Invalid {
		p.Skip() // not JSON: the scanner says so
		return false
	}
	p.refuse(p.Offset(), codeType, "%s must be %s, but is %s.", want, got)
	return false
}
