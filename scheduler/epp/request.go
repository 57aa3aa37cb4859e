package epp

import (
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/scheduler"
	"weir/scheduler/extproc"
)

const (
	maxHeaders   = 200
	maxHeaderLen = 64 << 10 // of all names and values together
	maxID        = 200
	// revisionHeader pins a request to a revision of the endpoints.
	revisionHeader = "x-disagg-revision"
	defaultFlow    = "default-flow" // llm-d's name of those who don't say who they are
)

// request reads the stream up to the end of the request. A refusal is the
// caller's fault or our bound; an error ends the stream.
func (x *exchange) request() (*scheduler.Request, *extprocv3.ImmediateResponse, error) {
	first, err := x.stream.Recv()
	if err != nil {
		return nil, nil, err
	}
	h := first.GetRequestHeaders()
	if h == nil {
		return nil, nil, status.Error(codes.InvalidArgument, "a stream begins with the request's headers")
	}
	headers := h.GetHeaders()
	if tooMany(headers) {
		return nil, badRequest(http.StatusBadRequest, "the request has too many headers"), nil
	}
	x.id = extproc.Get(headers, extproc.RequestID)
	if len(x.id) > maxID {
		return nil, badRequest(http.StatusBadRequest, "x-request-id is too long"), nil
	}
	if x.id == "" {
		x.id = rand.Text()
	}
	x.subset = subsetOf(first.GetMetadataContext())
	x.bare = h.GetEndOfStream()
	if !x.bare {
		if refusal, err := x.readBody(); refusal != nil || err != nil {
			return nil, refusal, err
		}
	}
	return x.decode(headers)
}

func tooMany(m *corev3.HeaderMap) bool {
	size := 0
	for _, v := range m.GetHeaders() {
		size += len(v.GetKey()) + len(v.GetValue()) + len(v.GetRawValue())
	}
	return len(m.GetHeaders()) > maxHeaders || size > maxHeaderLen
}

// readBody reads the body's chunks. Trailers end it too, where there are some.
func (x *exchange) readBody() (*extprocv3.ImmediateResponse, error) {
	for {
		m, err := x.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, status.Error(codes.InvalidArgument, "the stream ended within the request")
		} else if err != nil {
			return nil, err
		}
		switch r := m.GetRequest().(type) {
		case *extprocv3.ProcessingRequest_RequestBody:
			chunk := r.RequestBody.GetBody()
			if !x.own && int64(len(x.body)+len(chunk)) > x.s.cfg.MaxBody { // a gateway has bounded what became of its callers' bodies
				return badRequest(http.StatusRequestEntityTooLarge, "the request's body is too long"), nil
			}
			if !x.s.hold(int64(len(chunk))) {
				return full(), nil
			}
			x.held += int64(len(chunk))
			if x.body == nil {
				x.body = chunk // most bodies come in one piece, which is ours
			} else {
				x.body = append(x.body, chunk...)
			}
			if r.RequestBody.GetEndOfStream() {
				return nil, nil //nolint:nilnil // nothing is wrong
			}
		case *extprocv3.ProcessingRequest_RequestTrailers:
			x.trailers = true
			return nil, nil //nolint:nilnil // nothing is wrong
		default:
			return nil, status.Error(codes.InvalidArgument, "the request's body must follow its headers")
		}
	}
}

// decode is what the headers and the body say, for the scheduler.
func (x *exchange) decode(headers *corev3.HeaderMap) (*scheduler.Request, *extprocv3.ImmediateResponse, error) {
	r := &scheduler.Request{ID: x.id, Body: x.body, Path: pathOf(headers)}
	r.Flow.FairnessID = cut(either(headers, extproc.FairnessID, extproc.FairnessIDOld))
	if r.Flow.FairnessID == "" {
		r.Flow.FairnessID = defaultFlow
	}
	p, ok := parsePrompt(x.body, x.own)
	if !ok && !x.own && strings.HasPrefix(extproc.Get(headers, extproc.ContentType), "application/json") && !x.bare {
		return nil, badRequest(http.StatusBadRequest, "the request's body is no JSON object"), nil
	}
	r.Prompt = p.parts
	if x.own {
		facts, told, err := extproc.DecodeFacts(headers)
		if err != nil {
			return nil, nil, status.Error(codes.InvalidArgument, err.Error())
		}
		if told {
			facts.Request(r, x.s.cfg.Now())
			return r, nil, nil
		}
	}
	x.plain(r, headers, p)
	return r, nil, nil
}

// plain is what anybody's headers and body say.
func (x *exchange) plain(r *scheduler.Request, headers *corev3.HeaderMap, p prompt) {
	// A name that nobody knows is priority 0, as for llm-d.
	r.Flow.Band, _ = x.s.fleet.Band(either(headers, extproc.Objective, extproc.ObjectiveOld))
	r.Model, r.CacheSalt, r.Streams = p.model, p.salt, p.stream
	r.InputTokens, r.OutputTokens = p.inputTokens(), p.output
	// Sessions and hints are the caller's words: they reach no other caller.
	own := func(name string) string {
		if name = cut(name); name == "" {
			return ""
		}
		return r.Flow.FairnessID + "/" + name
	}
	r.Session, r.Affinity = own(extproc.Get(headers, extproc.SessionID)), own(p.cacheKey)
	r.Revision = cut(extproc.Get(headers, revisionHeader))
	if ttl, err := time.ParseDuration(extproc.Get(headers, extproc.QueueTTL)); err == nil && ttl > 0 {
		r.TTL = ttl
	}
	if ms, err := strconv.Atoi(either(headers, extproc.WantedTTFT, extproc.WantedTTFTOld)); err == nil && ms > 0 && ms < int(time.Hour/time.Millisecond) {
		r.TTFT = time.Duration(ms) * time.Millisecond
	}
}

// pathOf is where at the engine the request goes, without its query.
func pathOf(headers *corev3.HeaderMap) string {
	path, _, _ := strings.Cut(extproc.Get(headers, extproc.Path), "?")
	return cut(path)
}

// either returns the header by its current name, else by its old one.
func either(m *corev3.HeaderMap, name, old string) string {
	if v := extproc.Get(m, name); v != "" {
		return v
	}
	return extproc.Get(m, old)
}

// cut bounds what is kept of a name.
func cut(s string) string { return s[:min(len(s), maxID)] }
