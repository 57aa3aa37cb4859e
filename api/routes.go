package api

import (
	"context"
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"

	"weir/api/inference"
	"weir/gateway"
	"weir/tenants"
)

// route is one thing that callers may do. The row that the router finds decides
// both which scope a key needs and what runs: they can't disagree about what
// the path means.
type route struct {
	method, path string
	scope        string
	run          func(*exchange) error
}

func (s *Server) routes() []route {
	return append([]route{
		{http.MethodPost, "/v1/chat/completions", tenants.ScopeChat, s.onceOnly(s.infer(gateway.Chat))},
		{http.MethodPost, "/v1/completions", tenants.ScopeCompletions, s.onceOnly(s.infer(gateway.Completions))},
		{http.MethodPost, "/v1/embeddings", tenants.ScopeEmbeddings, s.onceOnly(s.infer(gateway.Embeddings))},
		{http.MethodGet, "/v1/models", tenants.ScopeModelsRead, s.listModels},
		{http.MethodGet, "/v1/models/*", tenants.ScopeModelsRead, s.getModel},
		{http.MethodPost, "/v1/responses", tenants.ScopeResponses, s.onceOnly(s.createResponse)},
		{http.MethodPost, "/v1/responses/input_tokens", tenants.ScopeResponses, s.countInput},
		{http.MethodPost, "/v1/responses/compact", tenants.ScopeResponses, s.onceOnly(s.compact)},
		{http.MethodGet, "/v1/responses/:id", tenants.ScopeResponses, s.getResponse},
		{http.MethodDelete, "/v1/responses/:id", tenants.ScopeResponses, s.deleteResponse},
		{http.MethodPost, "/v1/responses/:id/cancel", tenants.ScopeResponses, s.cancelResponse},
		{http.MethodGet, "/v1/responses/:id/input_items", tenants.ScopeResponses, s.listInput},
		{http.MethodGet, "/v1/queue", tenants.ScopeQueueRead, s.listQueue},
		{http.MethodGet, "/v1/limits", tenants.ScopeLimitsRead, s.listLimits},
	}, slices.Concat(s.conversationRoutes(tenants.ScopeResponses), s.chatRoutes(tenants.ScopeChat))...)
}

// handle authenticates and authorizes before the route runs.
func (s *Server) handle(rt route) echo.HandlerFunc {
	return func(c echo.Context) error {
		x, ok := c.(*exchange)
		if !ok {
			return echo.ErrInternalServerError // not reached: edge wraps every context
		}
		x.route = rt.path
		p, err := s.authenticate(x.Request())
		if err != nil {
			return err
		}
		if !p.Allows(rt.scope) {
			return because(missingScope, nil)
		}
		x.principal = p
		return rt.run(x)
	}
}

// infer runs an inference request, from its bytes to the end of its answer. Its
// frames lie on the stack for as long as a stream lasts, so what a request is
// understood with has frames of its own.
func (s *Server) infer(op gateway.Operation) func(*exchange) error {
	return func(x *exchange) error {
		r := x.Request()
		body, err := s.readBody(x)
		if err != nil {
			return err
		}
		defer body.release()
		ctx, release := s.keys.Guard(r.Context(), x.principal)
		defer release()
		req, err := s.understand(ctx, x, op, body)
		if err != nil {
			return err
		}
		out := s.newSink(x, req.Ignored)
		defer out.close()
		sink, err := s.keepChat(x, req, out)
		if err != nil {
			return err
		}
		x.ran = true
		return s.gateway.Run(ctx, req.Call, sink)
	}
}

// understand makes a call of the request's body and headers.
func (s *Server) understand(ctx context.Context, x *exchange, op gateway.Operation, body *body) (*inference.Request, error) {
	r := x.Request()
	ttl, err := inference.QueueTTL(r.Header.Get(headerQueueTTL))
	if err != nil {
		return nil, err
	}
	req, err := s.parser.Parse(inference.Input{
		Operation: op, Principal: x.principal, Models: s.catalogue(), Body: body.bytes, Alloc: body.alloc, Done: r.Context().Done(),
		Media: s.loadFor(ctx, x.principal),
	})
	if err != nil {
		return nil, err
	}
	req.Call.ID, req.Call.ClientRequestID = x.id, clientRequestID(r.Header)
	req.Call.QueueTTL, req.Call.ReceivedAt = ttl, x.receivedAt
	req.Call.Alloc, req.Call.Sent = body.alloc, body.release
	return &req, nil
}

const maxClientRequestID = 128

// clientRequestID is the caller's own name for the request, if it is one that
// can be shown.
func clientRequestID(h http.Header) string {
	id := h.Get(headerClientRequestID)
	if len(id) > maxClientRequestID {
		return ""
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return ""
		}
	}
	return id
}
