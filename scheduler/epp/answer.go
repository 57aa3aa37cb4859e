package epp

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"weir/scheduler"
	"weir/scheduler/extproc"
)

// badRequest refuses what is the caller's own fault.
func badRequest(status int, message string) *extprocv3.ImmediateResponse {
	var h extproc.Headers
	h.Add(extproc.ContentType, "application/json")
	return &extprocv3.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode(status)}, //nolint:gosec // an HTTP status
		Headers: h.Mutation(), Body: extproc.ErrorBody(status, message),
	}
}

// full refuses for want of room in this process.
func full() *extprocv3.ImmediateResponse {
	return extproc.Refuse(&scheduler.Refusal{Reason: scheduler.PoolFull, RetryAfter: time.Second})
}

// standby sends the request to the primary.
func standby() *extprocv3.ImmediateResponse {
	return extproc.Refuse(&scheduler.Refusal{Reason: scheduler.ShuttingDown, RetryAfter: time.Second})
}

// refusalOf is what the scheduler said, and how long the request had waited.
func refusalOf(err error, waited time.Duration) *extprocv3.ImmediateResponse {
	why, ok := errors.AsType[*scheduler.Refusal](err)
	if !ok {
		why = &scheduler.Refusal{Reason: scheduler.Internal}
	}
	m := extproc.Refuse(why)
	var h extproc.Headers
	h.Add(extproc.QueueMilliseconds, strconv.FormatInt(waited.Milliseconds(), 10))
	m.Headers.SetHeaders = append(m.Headers.SetHeaders, h.Mutation().GetSetHeaders()...)
	return m
}

// evicted is what a running request is told whose endpoint is taken back.
func evicted() *extprocv3.ImmediateResponse {
	m := badRequest(http.StatusTooManyRequests, "request evicted by flow control")
	var h extproc.Headers
	h.Add(extproc.DroppedReason, extproc.EvictedReason)
	h.Add(extproc.RetryAfter, "1")
	m.Headers.SetHeaders = append(m.Headers.SetHeaders, h.Mutation().GetSetHeaders()...)
	return m
}

// immediate is a refusal as a message.
func immediate(m *extprocv3.ImmediateResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: m}}
}

// routed tells where the request goes: as a header, and for Envoy's own load
// balancing as metadata. It adds to the headers. Whoever is sent on to a fallback
// adds the same headers there, so that only those are named whom they suit.
func routed(targets []scheduler.Target, h *extproc.Headers) (*extprocv3.ProcessingResponse, error) {
	places := make([]string, 0, len(targets))
	for _, t := range targets {
		if !slices.Equal(t.Headers, targets[0].Headers) {
			continue
		}
		u, err := url.Parse(t.URL)
		if err != nil {
			return nil, fmt.Errorf("endpoint %s: %w", t.Endpoint, err)
		}
		places = append(places, hostPort(u))
	}
	destination := strings.Join(places, ",")
	h.Add(extproc.Destination, destination)
	if len(targets) > 0 {
		for _, add := range targets[0].Headers {
			h.Add(strings.ToLower(add[0]), add[1])
		}
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
	switch {
	case u.Port() != "":
		return net.JoinHostPort(u.Hostname(), u.Port())
	case u.Scheme == "https":
		return net.JoinHostPort(u.Hostname(), "443")
	default:
		return net.JoinHostPort(u.Hostname(), "80")
	}
}
