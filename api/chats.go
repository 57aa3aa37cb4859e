package api

import (
	"context"
	"net/http"
	"strings"

	"weir/api/inference"
	"weir/gateway"
	"weir/responses"
)

// Chats is where chat completions are kept that were asked for with `store`: a
// *responses.Postgres.
type Chats interface {
	Chat(ctx context.Context, o responses.Owner, id string) ([]byte, error)
	Chats(ctx context.Context, o responses.Owner, f responses.ChatFilter, page responses.Page) ([]byte, error)
	LabelChat(ctx context.Context, o responses.Owner, id string, metadata []byte) ([]byte, error)
	DeleteChat(ctx context.Context, o responses.Owner, id string) error
	ChatMessages(ctx context.Context, o responses.Owner, id string) ([]responses.Item, error)
}

// keepChat puts what keeps the answer before the caller's sink, where the
// request asks for it.
func (s *Server) keepChat(x *exchange, req *inference.Request, out gateway.Sink) (gateway.Sink, error) {
	if !req.Store {
		return out, nil
	}
	model := req.Call.Model
	if m, ok := s.catalogue().Lookup(model); ok {
		model = m.Name
	}
	return s.responses.KeepChat(responses.Caller{Principal: x.principal, RequestID: x.id}, &req.Call, model, req.Metadata, out)
}

func (s *Server) getChat(x *exchange) error {
	object, err := s.kept.Chat(x.Request().Context(), x.owner(), x.Param("id"))
	return s.answerChat(x, object, err)
}

func (s *Server) answerChat(x *exchange, object []byte, err error) error {
	if err != nil {
		return notFound(err, "Chat completion", x.Param("id"))
	}
	s.setProcessing(x)
	return x.json(object)
}

// listChats pages through completions, the oldest first.
func (s *Server) listChats(x *exchange) error {
	page, err := pageOf(x.Request(), true)
	if err != nil {
		return err
	}
	f := responses.ChatFilter{Metadata: map[string]string{}}
	for name, values := range x.Request().URL.Query() {
		if name == "model" {
			f.Model = values[0]
			if m, ok := s.catalogue().Lookup(f.Model); ok {
				f.Model = m.Name
			}
		}
		if key, ok := strings.CutPrefix(name, "metadata["); ok && strings.HasSuffix(key, "]") {
			f.Metadata[strings.TrimSuffix(key, "]")] = values[0]
		}
	}
	list, err := s.kept.Chats(x.Request().Context(), x.owner(), f, page)
	if err != nil {
		return err
	}
	s.setProcessing(x)
	return x.json(list)
}

// labelChat replaces a completion's metadata.
func (s *Server) labelChat(x *exchange) error {
	metadata, _, err := s.readConversation(x)
	if err != nil {
		return err
	}
	object, err := s.kept.LabelChat(x.Request().Context(), x.owner(), x.Param("id"), metadata)
	return s.answerChat(x, object, err)
}

func (s *Server) deleteChat(x *exchange) error {
	id := x.Param("id")
	if err := s.kept.DeleteChat(x.Request().Context(), x.owner(), id); err != nil {
		return notFound(err, "Chat completion", id)
	}
	return s.answerJSON(x, deleted{ID: id, Object: "chat.completion.deleted", Deleted: true})
}

func (s *Server) listMessages(x *exchange) error {
	page, err := pageOf(x.Request(), true)
	if err != nil {
		return err
	}
	messages, err := s.kept.ChatMessages(x.Request().Context(), x.owner(), x.Param("id"))
	if err != nil {
		return notFound(err, "Chat completion", x.Param("id"))
	}
	part, more, err := page.Cut(messages)
	if err != nil {
		return err
	}
	s.setProcessing(x)
	return x.json(responses.List(part, more))
}

// chatRoutes are those of kept completions.
func (s *Server) chatRoutes(scope string) []route {
	return []route{
		{http.MethodGet, "/v1/chat/completions", scope, s.listChats},
		{http.MethodGet, "/v1/chat/completions/:id", scope, s.getChat},
		{http.MethodPost, "/v1/chat/completions/:id", scope, s.labelChat},
		{http.MethodDelete, "/v1/chat/completions/:id", scope, s.deleteChat},
		{http.MethodGet, "/v1/chat/completions/:id/messages", scope, s.listMessages},
	}
}
