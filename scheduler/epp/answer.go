package epp

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"weir/scheduler"
	"weir/scheduler/extproc"
)

// The kinds of an error, in OpenAI's words.
const (
	kindInvalid   = "invalid_request_error"
	kindRateLimit = "rate_limit_error"
	kindServer    = "server_error"
)

// refusal is an answer to a request that gets no endpoint, or loses it.
type refusal struct {
	status     int
	kind       string
	message    string
	dropped    string           // llm-d's reason; empty: it has none for this
	reason     scheduler.Reason // for gateways of ours
	retryAfter time.Duration
	waited     time.Duration
}

func badRequest(message string) *refusal {
	return &refusal{status: 400, kind: kindInvalid, message: message, reason: scheduler.Internal}
}

func overloaded(message string) *refusal {
	return &refusal{
		status: 429, kind: kindRateLimit, message: message, dropped: extproc.RejectedSaturated,
		reason: scheduler.PoolFull, retryAfter: time.Second,
	}
}

func standby() *refusal {
	return &refusal{
		status: 503, kind: kindServer, message: errStandby.Error(), dropped: extproc.RejectedShuttingDown,
		reason: scheduler.ShuttingDown, retryAfter: time.Second,
	}
}

// refusalOf is how llm-d says what the scheduler said.
func refusalOf(err error) *refusal {
	r := &refusal{status: 500, kind: kindServer, message: "the scheduler failed", dropped: extproc.RejectedInternal, reason: scheduler.Internal}
	var why *scheduler.Refusal
	if !errors.As(err, &why) {
		return r
	}
	r.reason, r.retryAfter = why.Reason, why.RetryAfter
	switch why.Reason {
	case scheduler.PoolFull, scheduler.BandFull, scheduler.FlowFull, scheduler.ShedLoad:
		r.status, r.kind, r.dropped, r.message = 429, kindRateLimit, extproc.RejectedSaturated, "too many requests wait"
	case scheduler.QueueTimeout:
		r.status, r.kind, r.dropped, r.message = 429, kindRateLimit, extproc.RejectedExpired, "the request waited for as long as it may"
	case scheduler.NoEndpoints:
		r.status, r.dropped, r.message = 503, extproc.RejectedNoEndpoints, "no model server can take the request"
	case scheduler.Cancelled:
		r.status, r.dropped, r.message = 503, extproc.RejectedCancelled, "the caller left"
	case scheduler.ShuttingDown:
		r.status, r.dropped, r.message = 503, extproc.RejectedShuttingDown, "the scheduler shuts down"
	case scheduler.Internal:
	default:
	}
	return r
}

// evicted is what a running request is told whose endpoint is taken back.
func evicted() *refusal {
	return &refusal{
		status: 429, kind: kindRateLimit, message: "request evicted by flow control", dropped: extproc.EvictedReason,
		retryAfter: time.Second,
	}
}

// immediate is the refusal on the wire, for a request to the path.
func (r *refusal) immediate(path string) *extprocv3.ProcessingResponse {
	var h extproc.Headers
	h.Add(extproc.ContentType, "application/json")
	h.Add(extproc.DroppedReason, r.dropped)
	h.Add(extproc.ReasonHeader, string(r.reason))
	if r.retryAfter > 0 {
		h.Add(extproc.RetryAfter, strconv.Itoa(int(math.Ceil(r.retryAfter.Seconds()))))
	}
	if r.waited > 0 {
		h.Add(extproc.QueueMilliseconds, strconv.FormatInt(r.waited.Milliseconds(), 10))
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status:  &typev3.HttpStatus{Code: typev3.StatusCode(r.status)}, //nolint:gosec // an HTTP status
			Headers: h.Mutation(), Body: r.body(path),
			Details: r.dropped,
		},
	}}
}

// body is the error as OpenAI words it, or Anthropic where the path is theirs.
func (r *refusal) body(path string) []byte {
	type failure struct {
		Message string `json:"message"`
		Type    string `json:"type"`
		Code    int    `json:"code,omitempty"`
	}
	answer := struct {
		Type  string  `json:"type,omitempty"`
		Error failure `json:"error"`
	}{Error: failure{r.message, r.kind, r.status}}
	if strings.HasPrefix(path, "/v1/messages") {
		answer.Type, answer.Error.Code = "error", 0
	}
	text, _ := json.Marshal(answer) //nolint:errchkjson // plain strings
	return text
}

// routed tells where the request goes: as a header, and for Envoy's own load
// balancing as metadata.
func routed(targets []scheduler.Target, waited time.Duration, own bool) (*extprocv3.ProcessingResponse, error) {
	places := make([]string, len(targets))
	for i, t := range targets {
		u, err := url.Parse(t.URL)
		if err != nil {
			return nil, fmt.Errorf("endpoint %s: %w", t.Endpoint, err)
		}
		places[i] = hostPort(u)
	}
	destination := strings.Join(places, ",")
	var h extproc.Headers
	h.Add(extproc.Destination, destination)
	if len(targets) > 0 {
		for _, add := range targets[0].Headers {
			h.Add(strings.ToLower(add[0]), add[1])
		}
	}
	if own { // others' upstream would see it
		h.Add(extproc.QueueMilliseconds, strconv.FormatInt(waited.Milliseconds(), 10))
	}
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{ClearRouteCache: true, HeaderMutation: h.Mutation()},
		}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			extproc.DestinationSpace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				extproc.Destination: structpb.NewStringValue(destination),
			}}),
		}},
	}, nil
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443"}[u.Scheme]
		if port == "" {
			port = "80"
		}
	}
	return net.JoinHostPort(u.Hostname(), port)
}
