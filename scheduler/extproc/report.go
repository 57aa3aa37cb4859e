package extproc

import (
	"fmt"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"weir/scheduler"
)

// A gateway of ours doesn't send a `weir scheduler` the answer, which is the
// tenant's own and of no use there: each body message of the response phase is
// a Report instead, a few bytes long.

// AppendReport writes a report behind b: the kind of progress and the tokens
// so far.
func AppendReport(b []byte, p scheduler.Progress) []byte {
	kind := byte('e')
	switch p.Kind {
	case scheduler.HeadersReceived:
		kind = 'h'
	case scheduler.FirstToken:
		kind = 'f'
	default:
	}
	return strconv.AppendInt(append(b, kind), int64(max(0, p.OutputTokens)), 10)
}

// ReadReport reads what AppendReport wrote.
func ReadReport(b []byte) (scheduler.Progress, error) {
	if len(b) < 2 || len(b) > 20 {
		return scheduler.Progress{}, fmt.Errorf("a report of %d bytes", len(b))
	}
	var p scheduler.Progress
	switch b[0] {
	case 'h':
		p.Kind = scheduler.HeadersReceived
	case 'f':
		p.Kind = scheduler.FirstToken
	case 'e':
		p.Kind = scheduler.EventReceived
	default:
		return scheduler.Progress{}, fmt.Errorf("a report of kind %q", b[0])
	}
	n, err := strconv.ParseUint(string(b[1:]), 10, 40)
	if err != nil {
		return scheduler.Progress{}, fmt.Errorf("a report's tokens: %w", err)
	}
	p.OutputTokens = int(n)
	return p, nil
}

// results are the words for a result on the wire.
func results() map[scheduler.Result]string {
	return map[scheduler.Result]string{
		scheduler.Completed:     "completed",
		scheduler.EndpointFault: "endpoint-fault",
		scheduler.CallerFault:   "caller-fault",
		scheduler.Abandoned:     "abandoned",
		scheduler.Overloaded:    "overloaded",
	}
}

// EncodeOutcome adds an outcome to the trailers that end the exchange.
func EncodeOutcome(h *Headers, o scheduler.Outcome) {
	h.Add(resultHeader, results()[o.Result])
	if o.Reached {
		h.Add(reachedHeader, "1")
	}
	addInt(h, inputHeader, o.InputTokens)
	addInt(h, cachedHeader, o.CachedTokens)
	addInt(h, outputHeader, o.OutputTokens)
}

// DecodeOutcome reads the outcome from trailers.
func DecodeOutcome(m *corev3.HeaderMap) (scheduler.Outcome, error) {
	o := scheduler.Outcome{Reached: Get(m, reachedHeader) == "1"}
	word, known := Get(m, resultHeader), false
	for result, name := range results() {
		if name == word {
			o.Result, known = result, true
		}
	}
	if !known {
		return o, fmt.Errorf("header %s: %q is no result", resultHeader, word)
	}
	for name, field := range map[string]*int{inputHeader: &o.InputTokens, cachedHeader: &o.CachedTokens, outputHeader: &o.OutputTokens} {
		value := Get(m, name)
		if value == "" {
			continue
		}
		n, err := count(value)
		if err != nil {
			return scheduler.Outcome{}, fmt.Errorf("header %s: %w", name, err)
		}
		*field = n
	}
	return o, nil
}
