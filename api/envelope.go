package api

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"weir/gateway"
)

// Names of headers, in the form in which net/http keeps them.
const (
	headerRequestID       = "X-Request-Id"
	headerClientRequestID = "X-Client-Request-Id"
	headerProcessing      = "Openai-Processing-Ms"
	headerVersion         = "Openai-Version"
	headerIgnored         = "X-Weir-Ignored"
	headerQueue           = "X-Weir-Queue-Ms"
	headerBand            = "X-Weir-Band"
	headerQueueTTL        = "X-Weir-Queue-Ttl"
	headerSunset          = "Sunset" // RFC 8594
	headerCache           = "Cache-Control"
	headerType            = "Content-Type"
	headerLength          = "Content-Length"

	jsonType   = "application/json"
	streamType = "text/event-stream"
	apiDate    = "2020-10-01" // of the wire's version, as clients expect it
)

// envelope is the body of every answer that is an error. All four members are
// always there.
type envelope struct {
	Error envelopeError `json:"error"`
}

type envelopeError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    *string `json:"code"`
}

func (f failure) encode() []byte {
	e := envelope{Error: envelopeError{Message: f.message, Type: f.kind}}
	if f.param != "" {
		e.Error.Param = &f.param
	}
	if f.code != "" {
		e.Error.Code = &f.code
	}
	out, err := json.Marshal(e)
	if err != nil { // not reached: strings always encode
		return []byte(`{"error":{"message":"","type":"server_error","param":null,"code":null}}`)
	}
	return out
}

// write answers with the failure.
func (f failure) write(w http.ResponseWriter) error {
	h := w.Header()
	body := f.encode()
	if f.status == http.StatusTooManyRequests {
		setLimit(h, f.limit)
	}
	if f.retryAfter > 0 {
		setRetryAfter(h, f.retryAfter)
	}
	setQueue(h, f.band, f.queued)
	if f.final {
		h.Set("X-Should-Retry", "false")
	}
	if f.status == http.StatusUnauthorized {
		h.Set("Www-Authenticate", "Bearer")
	}
	h.Set(headerCache, "no-store")
	h.Set(headerType, jsonType)
	h.Set(headerLength, strconv.Itoa(len(body)))
	w.WriteHeader(f.status)
	_, err := w.Write(body) //nolint:gosec // JSON, and declared as such
	return err
}

// setRetryAfter says when to try again, in whole seconds and in milliseconds.
func setRetryAfter(h http.Header, d time.Duration) {
	ms := (d + time.Millisecond - 1).Milliseconds()
	h.Set("Retry-After", strconv.FormatInt((ms+999)/1000, 10))
	h.Set("Retry-After-Ms", strconv.FormatInt(ms, 10))
}

// setQueue tells how long a request waited, and where; nothing of one that
// never came to a queue.
func setQueue(h http.Header, band string, waited time.Duration) {
	if band != "" {
		h.Set(headerBand, band)
		h.Set(headerQueue, strconv.FormatInt(waited.Milliseconds(), 10))
	}
}

// setLimit tells what the caller may still do, where a limit applies.
func setLimit(h http.Header, l gateway.LimitState) {
	if l.Requests > 0 {
		h.Set("X-Ratelimit-Limit-Requests", strconv.Itoa(l.Requests))
		h.Set("X-Ratelimit-Remaining-Requests", strconv.Itoa(max(l.RemainingRequests, 0)))
		h.Set("X-Ratelimit-Reset-Requests", max(l.ResetRequests, 0).Round(time.Millisecond).String())
	}
	if l.Tokens > 0 {
		h.Set("X-Ratelimit-Limit-Tokens", strconv.Itoa(l.Tokens))
		h.Set("X-Ratelimit-Remaining-Tokens", strconv.Itoa(max(l.RemainingTokens, 0)))
		h.Set("X-Ratelimit-Reset-Tokens", max(l.ResetTokens, 0).Round(time.Millisecond).String())
	}
}
