package extproc

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/tidwall/gjson"

	"weir/scheduler"
)

const (
	waitedRefusal  = "x-weir-waited"
	maxErrorBody   = 64 << 10
	maxSaid        = 256
	maxRetryAfter  = time.Hour
	admissionWords = "request cannot be admitted"
	sheddableWords = "sheddable request dropped"
)

// Said is what a picker said when it refused, for the operator.
type Said struct { //nolint:errname // what was said, in a refusal
	Status  int
	Reason  string // x-llm-d-request-dropped-reason; "" when there was none
	Message string // at most 256 bytes, printable
}

func (s *Said) Error() string {
	return fmt.Sprintf("the picker said %d %s: %q", s.Status, s.Reason, s.Message)
}

// Refuse is a refusal as a `weir scheduler` says it: what any gateway
// understands, and in headers of ours what only our own do.
func Refuse(r *scheduler.Refusal) *extprocv3.ImmediateResponse {
	status, reason := wire(r.Reason)
	var h Headers
	h.Add(ContentType, "application/json")
	h.Add(DroppedReason, reason)
	h.Add(ReasonHeader, string(r.Reason))
	if r.Waited {
		h.Add(waitedRefusal, "1")
	}
	if r.RetryAfter > 0 {
		h.Add(RetryAfter, strconv.FormatInt(int64((r.RetryAfter+time.Second-1)/time.Second), 10))
	}
	return &extprocv3.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode(status)}, //nolint:gosec // one of four
		Headers: h.Mutation(),
		Body:    ErrorBody(status, "the scheduler refused: "+string(r.Reason)),
	}
}

// ErrorBody is an error in OpenAI's form, as pickers since 0.11 send it.
func ErrorBody(status int, message string) []byte {
	kind := "server_error"
	switch {
	case status == http.StatusTooManyRequests:
		kind = "rate_limit_error"
	case status < http.StatusInternalServerError:
		kind = "invalid_request_error"
	}
	body, err := json.Marshal(map[string]any{"error": map[string]any{"message": message, "type": kind, "code": status}})
	if err != nil {
		return nil // never: strings and a number
	}
	return body
}

// wire is a reason in a picker's words.
func wire(r scheduler.Reason) (status int, reason string) {
	switch r {
	case scheduler.FlowFull, scheduler.BandFull, scheduler.PoolFull, scheduler.ShedLoad:
		return http.StatusTooManyRequests, RejectedSaturated
	case scheduler.QueueTimeout:
		return http.StatusTooManyRequests, RejectedExpired
	case scheduler.NoEndpoints:
		return http.StatusServiceUnavailable, RejectedNoEndpoints
	case scheduler.ShuttingDown:
		return http.StatusServiceUnavailable, RejectedShuttingDown
	case scheduler.Cancelled:
		return http.StatusServiceUnavailable, RejectedCancelled
	default:
		return http.StatusInternalServerError, RejectedInternal
	}
}

// ReadRefusal reads a refusal in any form that a picker gives it: its body may
// be plain text or JSON, its reason may be missing. Err is a *Said. RetryAfter
// is 0 where the picker says nothing of it, as llm-d's never does.
func ReadRefusal(m *extprocv3.ImmediateResponse) *scheduler.Refusal {
	said := &Said{
		Status:  int(m.GetStatus().GetCode()),
		Reason:  printable(GetSet(m.GetHeaders(), DroppedReason)),
		Message: message(m.GetBody()),
	}
	r := &scheduler.Refusal{Reason: reasonOf(said), Err: said}
	if own := scheduler.Reason(GetSet(m.GetHeaders(), ReasonHeader)); known(own) {
		r.Reason = own
	}
	r.Waited = r.Reason == scheduler.QueueTimeout || GetSet(m.GetHeaders(), waitedRefusal) == "1"
	if s, err := strconv.Atoi(GetSet(m.GetHeaders(), RetryAfter)); err == nil && s > 0 {
		r.RetryAfter = min(time.Duration(min(s, int(maxRetryAfter/time.Second)))*time.Second, maxRetryAfter)
	}
	return r
}

func reasonOf(s *Said) scheduler.Reason {
	switch s.Reason {
	case RejectedSaturated:
		return scheduler.PoolFull // or the band: a picker doesn't tell which
	case RejectedNoEndpoints:
		return scheduler.NoEndpoints
	case RejectedExpired:
		return scheduler.QueueTimeout
	case RejectedShuttingDown:
		return scheduler.ShuttingDown
	case RejectedCancelled:
		return scheduler.Cancelled
	case RejectedInternal:
		return scheduler.Internal
	}
	switch {
	case strings.HasPrefix(s.Reason, EvictedReason):
		return scheduler.ShedLoad
	// An admitter's no is capacity, whatever its status.
	case strings.Contains(s.Message, admissionWords), strings.Contains(s.Message, sheddableWords):
		return scheduler.ShedLoad
	case s.Status == http.StatusTooManyRequests:
		return scheduler.PoolFull
	case s.Status == http.StatusServiceUnavailable:
		return scheduler.NoEndpoints
	default:
		return scheduler.Internal
	}
}

func known(r scheduler.Reason) bool {
	switch r {
	case scheduler.FlowFull, scheduler.BandFull, scheduler.PoolFull, scheduler.QueueTimeout, scheduler.NoEndpoints,
		scheduler.ShedLoad, scheduler.Cancelled, scheduler.ShuttingDown, scheduler.Internal:
		return true
	default:
		return false
	}
}

// message is the error's text: that of a JSON envelope, or the body itself.
func message(body []byte) string {
	body = body[:min(len(body), maxErrorBody)]
	if gjson.ValidBytes(body) {
		if m := gjson.GetBytes(body, "error.message"); m.Type == gjson.String {
			return printable(m.String())
		}
	}
	return printable(string(body))
}

// printable keeps what a log line can show.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, s[:min(len(s), maxSaid)])
}

func isPrintable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}
