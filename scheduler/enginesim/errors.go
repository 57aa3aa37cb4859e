package enginesim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
)

// apiError is an answer in vLLM's error shape.
type apiError struct {
	status     int
	kind       string
	message    string
	param      string
	retryAfter int // seconds
}

func (e *apiError) Error() string { return e.message }

func badRequest(param, format string, args ...any) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "BadRequestError", param: param, message: fmt.Sprintf(format, args...)}
}

func unavailable(err error) *apiError {
	return &apiError{status: http.StatusServiceUnavailable, kind: "ServiceUnavailableError", message: err.Error()}
}

func (e *apiError) write(w http.ResponseWriter) {
	var body struct {
		Error struct {
			Message string  `json:"message"`
			Type    string  `json:"type"`
			Param   *string `json:"param"`
			Code    int     `json:"code"`
		} `json:"error"`
	}
	body.Error.Message, body.Error.Type, body.Error.Code = e.message, e.kind, e.status
	if e.param != "" {
		body.Error.Param = &e.param
	}
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(e.retryAfter))
	}
	writeJSON(w, e.status, body)
}

// writeJSON answers with one document. A write error means that the caller has
// left, which the request's context tells as well.
func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b)
}
