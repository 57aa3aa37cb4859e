package epp

import (
	"net/http"
	"strconv"
	"strings"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/scheduler"
	"weir/scheduler/extproc"
)

// answer is what is known of an engine's answer.
type answer struct {
	status int
	began  bool // a first piece came
	usage  usageScanner
}

// respond takes a message of the response phase. An error ends the exchange.
func (x *exchange) respond(m *extprocv3.ProcessingRequest) error {
	if x.own {
		return x.report(m)
	}
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return x.headers(r.ResponseHeaders)
	case *extprocv3.ProcessingRequest_ResponseBody:
		return x.piece(r.ResponseBody)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		x.complete()
		return x.send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extprocv3.TrailersResponse{}}})
	default:
		return status.Error(codes.InvalidArgument, "the request is over")
	}
}

// report takes what a gateway of ours says in place of the answer. It is not
// answered.
func (x *exchange) report(m *extprocv3.ProcessingRequest) error {
	switch r := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return nil
	case *extprocv3.ProcessingRequest_ResponseBody:
		if len(r.ResponseBody.GetBody()) == 0 {
			return nil
		}
		p, err := extproc.ReadReport(r.ResponseBody.GetBody())
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		x.lease.Observe(p)
		return nil
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		o, err := extproc.DecodeOutcome(r.ResponseTrailers.GetTrailers())
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		x.lease.End(o)
		return nil
	default:
		return status.Error(codes.InvalidArgument, "the request is over")
	}
}

// headers takes the answer's headers, and adds how long the request waited.
func (x *exchange) headers(h *extprocv3.HttpHeaders) error {
	named := extproc.Get(h.GetHeaders(), extproc.Status)
	if named == "" {
		named = extproc.Get(h.GetHeaders(), extproc.PlainStatus)
	}
	x.answer.status, _ = strconv.Atoi(named)
	x.answer.usage.stream = strings.HasPrefix(extproc.Get(h.GetHeaders(), extproc.ContentType), "text/event-stream")
	if h.GetEndOfStream() {
		x.complete()
	}
	var add extproc.Headers
	add.Add(extproc.QueueMilliseconds, strconv.FormatInt(x.waited.Milliseconds(), 10))
	return x.send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{HeaderMutation: add.Mutation()}},
	}})
}

// piece takes a part of the answer, looks into it, and gives it back as it is.
func (x *exchange) piece(b *extprocv3.HttpBody) error {
	a := &x.answer
	if piece := b.GetBody(); len(piece) > 0 && a.ok() {
		if !a.began {
			a.began = true
			x.lease.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
		}
		if a.usage.add(piece) {
			x.lease.Observe(scheduler.Progress{Kind: scheduler.EventReceived, OutputTokens: a.usage.found.output})
		}
	}
	if b.GetEndOfStream() {
		x.complete()
	}
	return x.send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{
		Response: &extprocv3.CommonResponse{BodyMutation: streamed(b.GetBody(), b.GetEndOfStream())},
	}}})
}

// ok reports whether the engine answers; a proxy that doesn't tell the status
// is taken to mean that.
func (a *answer) ok() bool { return a.status == 0 || a.status/100 == 2 }

// complete ends the lease of an answer that came to its end.
func (x *exchange) complete() {
	a := &x.answer
	a.usage.end()
	o := scheduler.Outcome{
		Result: scheduler.Completed, InputTokens: a.usage.found.input, CachedTokens: a.usage.found.cached, OutputTokens: a.usage.found.output,
	}
	switch {
	case a.ok():
	case a.status == http.StatusTooManyRequests, a.status == http.StatusServiceUnavailable:
		o.Result = scheduler.Overloaded
	case a.status >= http.StatusInternalServerError:
		o.Result, o.Reached = scheduler.EndpointFault, true
	default:
		o.Result = scheduler.CallerFault
	}
	x.lease.End(o)
}
