package gateway

import (
	"bytes"
	"errors"
	"net/http"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/tidwall/gjson"

	"weir/gateway/catalogue"
)

var (
	errNotJSON = errors.New("not a JSON object")
	errAborted = errors.New("the engine aborted the request")

	hostLike   = regexp.MustCompile(`(?i)\bhttps?://\S+|\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b|\b[a-z0-9-]+(\.[a-z0-9-]+)*:\d{2,5}\b|\b[a-z0-9-]+(\.[a-z0-9-]+)*\.(local|internal|svc|cluster)\b(\.[a-z]+)*`)
	pathLike   = regexp.MustCompile(`(^|[\s"'(])(/[\w.@+-]+){2,}/?`)
	badRequest = regexp.MustCompile(`(?i)bad_?request|invalid_?request`)
	paramLike  = regexp.MustCompile(`^[A-Za-z0-9_.\[\]]{1,64}$`)
)

const maxMessage = 500 // characters of an engine's message that a caller sees

// engineError finds an engine's error in what claims to be an answer: an error
// object, in its nested or its older flat form, or an aborted choice.
func engineError(p []byte) *Error {
	if bytes.Contains(p, []byte(errorKey)) {
		if e := gjson.GetBytes(p, "error"); e.Exists() && e.Type != gjson.Null {
			return errorObject(e)
		}
	}
	if !bytes.Contains(p, []byte(choicesKey)) {
		if r := gjson.ParseBytes(p); r.Get("object").Str == "error" {
			return errorObject(r)
		}
	}
	if bytes.Contains(p, []byte(abortWord)) {
		for _, reason := range gjson.GetBytes(p, "choices.#.finish_reason").Array() {
			if reason.Str == "abort" {
				return &Error{Cause: UpstreamStatus, Err: errAborted}
			}
		}
	}
	return nil
}

// errorObject classes an error that came with status 200.
func errorObject(e gjson.Result) *Error {
	status := int(e.Get("code").Int())
	if status == 0 && badRequest.MatchString(e.Get("type").Str) {
		status = http.StatusBadRequest
	}
	if status == 0 {
		status = http.StatusInternalServerError
	}
	return statusError(status, 0, e)
}

// responseError classes an answer whose status is not 200. Body is its start.
func responseError(resp *http.Response, body []byte) *Error {
	r := gjson.ParseBytes(body)
	if e := r.Get("error"); e.IsObject() {
		r = e
	}
	return statusError(resp.StatusCode, retryAfter(resp.Header.Get("Retry-After")), r)
}

// statusError classes an engine's status. Only a caller's fault keeps the
// engine's message; any other may tell of our machinery.
func statusError(status int, after time.Duration, e gjson.Result) *Error {
	message := engineMessage(e)
	out := &Error{Err: errors.New("engine: " + http.StatusText(status) + ": " + clean(message))}
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		out.Cause, out.Message = UpstreamRefused, message
		if p := e.Get("param").Str; paramLike.MatchString(p) {
			out.Param = p
		}
		if contextTooLong(e, message) {
			out.Cause = ContextTooLong
		}
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		out.Cause, out.RetryAfter = UpstreamBusy, after
	default:
		out.Cause = UpstreamStatus
	}
	return out
}

// engineMessage finds the sentence: in the error object, in the older flat
// form, or in the detail of the web framework that most engines use.
func engineMessage(e gjson.Result) string {
	if e.Type == gjson.String {
		return e.Str
	}
	for _, path := range []string{"message", "detail.0.msg", "detail"} {
		if m := e.Get(path); m.Type == gjson.String {
			return m.Str
		}
	}
	return ""
}

// contextTooLong recognises the engines' wordings for a prompt that doesn't fit.
func contextTooLong(e gjson.Result, message string) bool {
	if e.Get("type").Str == "exceed_context_size_error" || e.Get("code").Str == "context_length_exceeded" {
		return true
	}
	m := strings.ToLower(message)
	for _, words := range []string{
		"maximum context length", "maximum model length", "model's context length",
		"max_model_len", "available context size",
	} {
		if strings.Contains(m, words) {
			return true
		}
	}
	return false
}

// forCaller completes an engine's refusal with what the caller may read: its
// message without names of our machinery, and the public model name.
func forCaller(e *Error, m *catalogue.Model, op Operation) {
	if e.Message != "" {
		if m.EngineModel != "" {
			e.Message = strings.ReplaceAll(e.Message, m.EngineModel, m.Name)
		}
		e.Message = clean(e.Message)
	}
	if op == Responses && strings.HasPrefix(e.Param, "input") {
		e.Param = "input" // where in the whole context says nothing to who sent a part of it
	}
	if e.Cause == ContextTooLong {
		switch op {
		case Embeddings, Responses:
			e.Param = "input"
		case Completions:
			e.Param = "prompt"
		default:
			e.Param = "messages"
		}
	}
}

// clean makes an engine's sentence fit to be shown: one line, no stack trace,
// no addresses, no file paths, at most maxMessage characters.
func clean(s string) string {
	s, _, _ = strings.Cut(s, "Traceback (most recent call last)")
	s, _, _ = strings.Cut(s, "For further information visit")
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsControl(r) || r == unicode.ReplacementChar:
			return -1
		default:
			return r
		}
	}, s[:min(len(s), 8*maxMessage)])
	s = hostLike.ReplaceAllString(s, "[address]")
	s = pathLike.ReplaceAllString(s, "$1[path]")
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > maxMessage {
		s = string(r[:maxMessage]) + "..."
	}
	return s
}

// retryAfter reads the header's seconds, whole or not; 0 when it has none.
func retryAfter(v string) time.Duration {
	if d, err := time.ParseDuration(v + "s"); err == nil && d > 0 {
		return min(d, time.Hour)
	}
	return 0
}

// eventError classes the data of a field named error.
func eventError(data []byte) *Error {
	r := gjson.ParseBytes(data)
	if e := r.Get("error"); e.IsObject() {
		r = e
	}
	return errorObject(r)
}
