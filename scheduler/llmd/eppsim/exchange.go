package eppsim

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"weir/scheduler/extproc"
)

// keptExchanges is how many the server remembers, the newest.
const keptExchanges = 128

// Stream is the server's side of an exchange.
type Stream = extprocv3.ExternalProcessor_ProcessServer

// Exchange is what a server saw of one request.
type Exchange struct {
	Headers  map[string]string
	Body     []byte
	Pieces   int               // in which the body came
	Response map[string]string // headers of the answer
	Events   [][]byte          // messages of the answer's body
	Trailers map[string]string
	Complete bool // the answer's end was told
	Left     bool // the stream ended without it
}

// Exchanges returns copies of what the server remembers, the oldest first.
func (s *Server) Exchanges() []Exchange {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Exchange, len(s.exchanges))
	for i, x := range s.exchanges {
		all[i] = *x
		all[i].Events = slices.Clone(x.Events)
		all[i].Response = maps.Clone(x.Response)
		all[i].Trailers = maps.Clone(x.Trailers)
	}
	return all
}

// Process serves one request.
func (s *Server) Process(stream Stream) error {
	fault := s.fault()
	x := &Exchange{}
	done, err := s.request(stream, x, fault)
	if err != nil || done {
		return err
	}
	it := s.schedule(stream.Context(), x)
	if it == nil {
		return status.FromContextError(stream.Context().Err()).Err()
	}
	if it.refusal != nil {
		return stream.Send(immediate(it.refusal))
	}
	defer s.release(it)
	if fault.At == Deciding {
		return fault.Do(stream, s.decision(x, it))
	}
	for _, m := range s.decision(x, it) {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return s.response(stream, x, it, fault)
}

// request reads headers and body.
func (s *Server) request(stream Stream, x *Exchange, fault Fault) (done bool, err error) {
	first, err := stream.Recv()
	if err != nil {
		return true, err
	}
	if x.Headers, err = strict(first.GetRequestHeaders().GetHeaders()); err != nil {
		return true, err
	}
	s.remember(x)
	if fault.At == Reading {
		return true, fault.Do(stream, nil)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return true, err
		}
		b := m.GetRequestBody()
		if b == nil {
			return true, status.Errorf(codes.InvalidArgument, "%T in the body", m.GetRequest())
		}
		s.note(func() { x.Body, x.Pieces = append(x.Body, b.GetBody()...), x.Pieces+1 })
		if b.GetEndOfStream() {
			break
		}
	}
	if fault.At == Queued {
		return true, fault.Do(stream, nil)
	}
	return false, nil
}

// strict reads headers and accepts none that a real picker might misread or
// should not be shown.
func strict(m *corev3.HeaderMap) (map[string]string, error) {
	headers := make(map[string]string)
	for _, h := range m.GetHeaders() {
		name := h.GetKey()
		switch {
		case name != strings.ToLower(name) || len(h.GetRawValue()) == 0 || h.GetValue() != "":
			return nil, status.Errorf(codes.InvalidArgument, "header %q is not lower case with a raw value", name)
		case slices.Contains([]string{"authorization", "cookie", "proxy-authorization", "x-api-key"}, name):
			return nil, status.Errorf(codes.InvalidArgument, "header %q is a secret", name)
		}
		headers[name] = string(h.GetRawValue())
	}
	for _, name := range []string{extproc.Method, extproc.Path, extproc.RequestID, extproc.ContentType} {
		if headers[name] == "" {
			return nil, status.Errorf(codes.InvalidArgument, "header %q is missing", name)
		}
	}
	return headers, nil
}

// decision is what a picker says when it has chosen: the destination in header
// and metadata, an echo of all that it was told, then the body.
func (s *Server) decision(x *Exchange, it *item) []*extprocv3.ProcessingResponse {
	where := s.destinations(it)
	body := x.Body
	if s.cfg.Mutate != nil {
		body = s.cfg.Mutate(bytes.Clone(body))
	}
	headers := [][2]string{{extproc.Destination, where}, {"Content-Length", strconv.Itoa(len(body))}}
	for _, name := range slices.Sorted(maps.Keys(x.Headers)) {
		headers = append(headers, [2]string{name, x.Headers[name]})
	}
	return Decision(where, append(headers, s.cfg.Upstream...), body)
}

// destinations names the item's endpoint first.
func (s *Server) destinations(it *item) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []string{it.at.Address}
	if s.cfg.Fallbacks {
		for _, e := range s.endpoints {
			if e.Address != it.at.Address {
				all = append(all, e.Address)
			}
		}
	}
	return strings.Join(all, ",")
}

// Decision builds a decision from its parts.
func Decision(where string, headers [][2]string, body []byte) []*extprocv3.ProcessingResponse {
	metadata := &structpb.Struct{Fields: map[string]*structpb.Value{
		extproc.DestinationSpace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			extproc.Destination: structpb.NewStringValue(where),
		}}),
	}}
	all := []*extprocv3.ProcessingResponse{{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{ClearRouteCache: true, HeaderMutation: mutation(headers)},
		}},
		DynamicMetadata: metadata,
	}}
	for piece, last := range extproc.Chunks(body, extproc.MaxPiece) {
		all = append(all, Piece(piece, last))
	}
	return all
}

// Piece is one piece of a changed body.
func Piece(body []byte, last bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{
			Response: &extprocv3.CommonResponse{BodyMutation: streamed(body, last)},
		}},
	}
}

func streamed(body []byte, last bool) *extprocv3.BodyMutation {
	return &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{Body: body, EndOfStream: last},
	}}
}

func mutation(headers [][2]string) *extprocv3.HeaderMutation {
	m := &extprocv3.HeaderMutation{}
	for _, h := range headers {
		m.SetHeaders = append(m.SetHeaders, &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: h[0], RawValue: []byte(h[1])}})
	}
	return m
}

func immediate(r *extprocv3.ImmediateResponse) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: r}}
}

// received is a message of the answer, or the end of it.
type received struct {
	m   *extprocv3.ProcessingRequest
	err error
}

// response follows the answer, whose place is taken until it ends or is taken
// back.
func (s *Server) response(stream Stream, x *Exchange, it *item, fault Fault) error {
	ctx, messages := stream.Context(), make(chan received)
	go func() {
		for {
			m, err := stream.Recv()
			select {
			case messages <- received{m, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	for {
		select {
		case <-it.evict:
			return stream.Send(immediate(Refusal(429, extproc.EvictedReason, "request evicted by flow control", s.cfg.JSONErrors)))
		case <-ctx.Done():
			s.note(func() { x.Left = !x.Complete })
			return status.FromContextError(ctx.Err()).Err()
		case r := <-messages:
			if r.err != nil {
				s.note(func() { x.Left = !x.Complete })
				if errors.Is(r.err, io.EOF) {
					return nil
				}
				return r.err
			}
			if fault.At == Streaming && r.m.GetResponseBody() != nil {
				return fault.Do(stream, nil)
			}
			if err := s.follow(stream, x, it, r.m); err != nil {
				return err
			}
		}
	}
}

// follow takes in one message of the answer and echoes it.
func (s *Server) follow(stream Stream, x *Exchange, it *item, m *extprocv3.ProcessingRequest) error {
	switch part := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		headers, err := strictResponse(part.ResponseHeaders.GetHeaders())
		if err != nil {
			return err
		}
		s.note(func() { x.Response = headers })
		set := [][2]string{{"x-went-into-resp-headers", "true"}, {extproc.QueueMilliseconds, strconv.FormatInt(it.waited.Milliseconds(), 10)}}
		if s.cfg.SessionTokens {
			set = append(set, [2]string{extproc.SessionToken, token(it.at)})
		}
		return stream.Send(&extprocv3.ProcessingResponse{
			Response: &extprocv3.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extprocv3.HeadersResponse{
				Response: &extprocv3.CommonResponse{HeaderMutation: mutation(set)},
			}},
		})
	case *extprocv3.ProcessingRequest_ResponseBody:
		b := part.ResponseBody
		s.note(func() {
			if len(b.GetBody()) > 0 {
				x.Events = append(x.Events, bytes.Clone(b.GetBody()))
			}
			x.Complete = x.Complete || b.GetEndOfStream()
		})
		if b.GetEndOfStream() {
			s.release(it)
		}
		return stream.Send(&extprocv3.ProcessingResponse{
			Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: &extprocv3.BodyResponse{
				Response: &extprocv3.CommonResponse{BodyMutation: streamed(b.GetBody(), b.GetEndOfStream())},
			}},
		})
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		s.note(func() {
			x.Trailers = make(map[string]string)
			for _, h := range part.ResponseTrailers.GetTrailers().GetHeaders() {
				x.Trailers[h.GetKey()] = extproc.Value(h)
			}
		})
		return nil
	default:
		return status.Errorf(codes.InvalidArgument, "%T in the answer", part)
	}
}

func strictResponse(m *corev3.HeaderMap) (map[string]string, error) {
	headers := make(map[string]string)
	for _, h := range m.GetHeaders() {
		headers[h.GetKey()] = string(h.GetRawValue())
	}
	if headers[extproc.Status] == "" || headers[extproc.Status] != headers[extproc.PlainStatus] {
		return nil, status.Errorf(codes.InvalidArgument, "the answer's status is %q and %q", headers[extproc.Status], headers[extproc.PlainStatus])
	}
	return headers, nil
}

func (s *Server) remember(x *Exchange) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.exchanges) == keptExchanges {
		s.exchanges = slices.Delete(s.exchanges, 0, 1)
	}
	s.exchanges = append(s.exchanges, x)
}

func (s *Server) note(what func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	what()
}
