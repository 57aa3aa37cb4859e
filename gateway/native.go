package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"
)

var (
	errNoTerminal = errors.New("the stream ended without a terminal event")
	errCancelled  = errors.New("the engine cancelled the response")
)

// native reads the event stream of an engine's own /v1/responses. It finds the
// end, the usage and what went wrong; whoever makes a stream of ours out of the
// events relies on nothing else in them either. What an engine sends before the
// first item goes no further: until then another engine can take over.
type native struct {
	meter     *meter
	hideCache bool
	output    bool
	edits     edits
}

func (n *native) began() bool     { return n.output }
func (n *native) preparing() bool { return !n.output }

func (n *native) event(out, p []byte) ([]byte, bool, *Error) {
	p = bytes.TrimSpace(p)
	switch {
	case string(p) == doneMarker: // some send it besides, and some in place of an end
		return out, false, &Error{Cause: UpstreamInvalid, Err: errNoTerminal}
	case len(p) < 2 || p[0] != '{' || !gjson.ValidBytes(p):
		return out, false, &Error{Cause: UpstreamInvalid, Err: errNotJSON}
	}
	switch kind := gjson.GetBytes(p, "type").Str; kind {
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled":
		return n.terminal(out, p, kind)
	case "error":
		return out, false, nativeError(gjson.ParseBytes(p))
	case "":
		return out, false, engineError(p) // which names no type; what isn't one says nothing
	case "response.created", "response.queued", "response.in_progress":
		return out, false, nil
	default:
		if strings.HasSuffix(kind, ".delta") && len(gjson.GetBytes(p, "delta").Raw) > len(`""`) {
			n.output = true
			n.meter.output++
		}
		return appendEvent(out, p), false, nil
	}
}

// terminal reads the event with the whole response. Its status counts: some
// engines complete what they cut off.
func (n *native) terminal(out, p []byte, kind string) ([]byte, bool, *Error) {
	r := gjson.GetBytes(p, "response")
	if u := r.Get("usage"); u.IsObject() {
		n.meter.saw([]byte(u.Raw))
	}
	status := r.Get("status").Str
	switch {
	case kind == "response.cancelled" || status == "cancelled":
		return out, false, &Error{Cause: UpstreamStatus, Err: errCancelled}
	case kind == "response.failed" || status == "failed":
		return out, false, nativeError(r.Get("error"))
	case !r.IsObject():
		return out, false, &Error{Cause: UpstreamInvalid, Err: errNoTerminal}
	}
	if n.hideCache {
		n.edits.reset()
		n.edits.cut(p, func(name []byte) bool { return string(name) == "cached_tokens" })
		p = n.edits.apply(nil, p)
	}
	return appendEvent(out, p), true, nil
}

// appendEvent writes an event on one line, whatever the engine's was on.
func appendEvent(out, p []byte) []byte {
	out = append(out, "data: "...)
	if bytes.IndexByte(p, '\n') < 0 {
		out = append(out, p...)
	} else {
		var line bytes.Buffer
		_ = json.Compact(&line, p) // it was found to be JSON
		out = append(out, line.Bytes()...)
	}
	return append(out, "\n\n"...)
}

// nativeError classes the error of an event: of one named error, where it
// stands flat or nested, or of a failed response.
func nativeError(e gjson.Result) *Error {
	if nested := e.Get("error"); nested.IsObject() {
		e = nested
	}
	switch e.Get("code").Str {
	case "rate_limit_exceeded", "server_is_overloaded":
		return statusError(http.StatusTooManyRequests, 0, e)
	case "invalid_prompt", "context_length_exceeded":
		return statusError(http.StatusBadRequest, 0, e)
	default:
		return errorObject(e)
	}
}
