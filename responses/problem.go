package responses

import "fmt"

// Problem is a fault of the caller's request: a 400 that names the parameter.
type Problem struct { //nolint:errname // what problem documents call it
	Param   string // path such as input[1].content; empty when none is at fault
	Code    string // OpenAI's error code; empty when there is none
	Message string // for the caller
}

func (p *Problem) Error() string { return p.Message }

// Codes of a Problem, as OpenAI spells them.
const (
	codeMissing     = "missing_required_parameter"
	codeType        = "invalid_type"
	codeValue       = "invalid_value"
	codeUnsupported = "unsupported_value"
	codeParameter   = "unsupported_parameter"
	codeExclusive   = "mutually_exclusive_parameters"
	codeNotFound    = "previous_response_not_found"

	codeNotFoundConversation = "conversation_not_found"
)

func problem(param, code, format string, args ...any) *Problem {
	return &Problem{Param: param, Code: code, Message: fmt.Sprintf(format, args...)}
}

func wrongType(param, want string) *Problem {
	return problem(param, codeType, "Invalid type for '%s': expected %s.", param, want)
}

func missing(param string) *Problem {
	return problem(param, codeMissing, "Missing required parameter: '%s'.", param)
}
