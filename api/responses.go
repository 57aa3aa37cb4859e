package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"weir/api/inference"
	"weir/gateway"
	"weir/gateway/catalogue"
	"weir/responses"
	"weir/tenants"
)

// Responses is what the Responses API keeps: a *responses.Postgres.
type Responses interface {
	responses.Store
	Conversations
	Said
	Chats
	Objects
}

// Objects are the responses themselves.
type Objects interface {
	Object(ctx context.Context, o responses.Owner, id string) ([]byte, error)
	Delete(ctx context.Context, o responses.Owner, id string) error
	Input(ctx context.Context, o responses.Owner, id string) ([]responses.Item, error)
}

// newResponses makes the service behind /v1/responses.
func (s *Server) newResponses(store Responses, sealer *responses.Sealer) *responses.Service {
	return responses.New(responses.Deps{
		Engine: s.gateway, Store: store, Sealer: sealer, Now: s.now,
		Media: s.media,
		Check: func(ctx context.Context, p *tenants.Principal, body []byte) (gateway.Call, []string, error) {
			req, err := s.parser.Parse(inference.Input{
				Operation: gateway.Chat, Principal: p, Models: s.catalogue(), Body: body, Media: s.loadFor(ctx, p),
			})
			return req.Call, req.Ignored, ofInput(err)
		},
		Dialect: func(model string) responses.Dialect {
			if m, ok := s.catalogue().Lookup(model); ok {
				return responses.Dialect{
					NativeFiles: m.Files == catalogue.NativeFiles,
					Native:      m.Upstream == catalogue.ResponsesUpstream,
					Model:       m.Name, Developer: m.Template.DeveloperRole,
					Systems: m.Template.SystemMessages == catalogue.SystemAnywhere,
				}
			}
			return responses.Dialect{}
		},
		Explain: func(err error) responses.Failure {
			f := s.failureOf(err)
			code := f.code
			if code == "" {
				code = "server_error"
			}
			return responses.Failure{Kind: f.kind, Code: code, Message: f.message}
		},
	})
}

// ofInput names what a Chat request calls messages by where it came from: the
// input, or what the request goes on from.
func ofInput(err error) error {
	p, ok := errors.AsType[*inference.Problem](err)
	if !ok || !strings.HasPrefix(p.Param, "messages") {
		return err
	}
	return &responses.Problem{Param: "input", Code: p.Code, Message: strings.ReplaceAll(p.Message, p.Param, "input")}
}

func (x *exchange) owner() responses.Owner {
	return responses.Owner{Tenant: x.principal.Tenant, Project: x.principal.Project}
}

// createResponse answers a request, from its bytes to the end of its answer.
func (s *Server) createResponse(x *exchange) error {
	create, from, release, err := s.readCreate(x)
	if err != nil {
		return err
	}
	defer release()
	ctx, end := s.keys.Guard(x.Request().Context(), x.principal)
	defer end()
	run, err := s.responses.Prepare(ctx, from, create)
	if err != nil {
		return err
	}
	if create.Background {
		return s.orderResponse(ctx, x, run)
	}
	return s.answerRun(ctx, x, run)
}

// readCreate reads the body of a call on responses, as one that makes one.
func (s *Server) readCreate(x *exchange) (*responses.Create, responses.Caller, func(), error) {
	r := x.Request()
	ttl, err := inference.QueueTTL(r.Header.Get(headerQueueTTL))
	if err != nil {
		return nil, responses.Caller{}, nil, err
	}
	body, err := s.readBody(x)
	if err != nil {
		return nil, responses.Caller{}, nil, err
	}
	create, err := responses.ParseCreate(body.bytes)
	if err != nil {
		body.release()
		return nil, responses.Caller{}, nil, err
	}
	return create, responses.Caller{
		Principal: x.principal, RequestID: x.id, ClientRequestID: clientRequestID(r.Header),
		QueueTTL: ttl, ReceivedAt: x.receivedAt, Room: body.take, Sent: body.release,
	}, body.release, nil
}

// countInput tells how long a response's context would be.
func (s *Server) countInput(x *exchange) error {
	create, from, release, err := s.readCreate(x)
	if err != nil {
		return err
	}
	defer release()
	n, err := s.responses.Count(x.Request().Context(), from, create)
	if err != nil {
		return err
	}
	s.setProcessing(x)
	return x.json(responses.InputTokens(n))
}

// compact has a model summarise a context.
func (s *Server) compact(x *exchange) error {
	create, from, release, err := s.readCreate(x)
	if err != nil {
		return err
	}
	defer release()
	ctx, end := s.keys.Guard(x.Request().Context(), x.principal)
	defer end()
	run, err := s.responses.Compact(ctx, from, create)
	if err != nil {
		return err
	}
	return s.answerRun(ctx, x, run)
}

// answerRun runs a response into the caller's connection.
func (s *Server) answerRun(ctx context.Context, x *exchange, run *responses.Run) error {
	out := s.newSink(x, run.Ignored())
	defer out.close()
	x.ran = true
	return run.Answer(ctx, out)
}

// getResponse shows a kept response.
func (s *Server) getResponse(x *exchange) error {
	if s.background != nil && x.Request().URL.Query().Get("stream") == "true" {
		return s.resumeResponse(x)
	}
	object, err := s.kept.Object(x.Request().Context(), x.owner(), x.Param("id"))
	if err != nil {
		return notFound(err, "Response", x.Param("id"))
	}
	s.setProcessing(x)
	return x.json(object)
}

func (s *Server) deleteResponse(x *exchange) error {
	id := x.Param("id")
	remove := s.kept.Delete
	if s.background != nil {
		remove = s.background.Delete
	}
	if err := remove(x.Request().Context(), x.owner(), id); err != nil {
		return notFound(err, "Response", x.Param("id"))
	}
	return s.answerJSON(x, deleted{ID: id, Object: "response", Deleted: true})
}

type deleted struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Deleted bool   `json:"deleted"`
}

// listInput pages through what a response was given.
func (s *Server) listInput(x *exchange) error {
	page, err := pageOf(x.Request(), false)
	if err != nil {
		return err
	}
	items, err := s.kept.Input(x.Request().Context(), x.owner(), x.Param("id"))
	if err != nil {
		return notFound(err, "Response", x.Param("id"))
	}
	part, more, err := page.Cut(items)
	if err != nil {
		return err
	}
	s.setProcessing(x)
	return x.json(responses.List(part, more))
}

// pageOf reads limit, order and after.
func pageOf(r *http.Request, asc bool) (responses.Page, error) {
	q := r.URL.Query()
	p := responses.Page{After: q.Get("after"), Asc: asc}
	if limit := q.Get("limit"); limit != "" {
		n, err := strconv.Atoi(limit)
		if err != nil || n < 1 || n > 100 {
			return p, &responses.Problem{Param: "limit", Code: "invalid_value", Message: "Invalid 'limit': use 1 to 100."}
		}
		p.Limit = n
	}
	switch order := q.Get("order"); order {
	case "":
	case "asc", "desc":
		p.Asc = order == "asc"
	default:
		return p, &responses.Problem{Param: "order", Code: "invalid_value", Message: "Invalid 'order': use asc or desc."}
	}
	return p, nil
}

// shownID is a caller's id as it may be repeated.
func shownID(id string) string {
	const most = 80
	if len(id) > most {
		return id[:most] + "..."
	}
	return id
}
