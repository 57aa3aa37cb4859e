package api

import (
	"context"
	"errors"
	"net/http"

	"weir/gateway"
	"weir/responses"
)

// Conversations is where conversations are kept: a *responses.Postgres.
type Conversations interface {
	Converse(ctx context.Context, o responses.Owner, metadata []byte, items []responses.Item) (*responses.Conversation, error)
	Conversation(ctx context.Context, o responses.Owner, id string) (*responses.Conversation, error)
	Rename(ctx context.Context, o responses.Owner, id string, metadata []byte) (*responses.Conversation, error)
	Forget(ctx context.Context, o responses.Owner, id string) error
	Talk(ctx context.Context, o responses.Owner, id string) (*responses.History, error)
}

// Said is the items of conversations.
type Said interface {
	Say(ctx context.Context, o responses.Owner, id string, items []responses.Item) error
	Said(ctx context.Context, o responses.Owner, id, item string) (responses.Item, error)
	Unsay(ctx context.Context, o responses.Owner, id, item string) (*responses.Conversation, error)
}

// readConversation reads the body of a call on conversations.
func (s *Server) readConversation(x *exchange) (metadata []byte, items []responses.Item, err error) {
	body, err := s.bodies.read(x.w, x.Request(), s.now())
	if err != nil {
		return nil, nil, err
	}
	defer body.release()
	return responses.ParseConversation(body.bytes)
}

// zeroRetention refuses to keep what a plan keeps nothing of.
func zeroRetention(x *exchange) error {
	if x.principal.Plan.RetentionDays > 0 {
		return nil
	}
	return &responses.Problem{Code: "unsupported_value", Message: "Conversations are kept, and your organization stores nothing."}
}

func (s *Server) createConversation(x *exchange) error {
	if err := zeroRetention(x); err != nil {
		return err
	}
	metadata, items, err := s.readConversation(x)
	if err != nil {
		return err
	}
	if err := s.loadItems(x, items); err != nil {
		return err
	}
	c, err := s.kept.Converse(x.Request().Context(), x.owner(), metadata, items)
	return s.answerConversation(x, c, err)
}

func (s *Server) getConversation(x *exchange) error {
	c, err := s.kept.Conversation(x.Request().Context(), x.owner(), x.Param("id"))
	return s.answerConversation(x, c, err)
}

func (s *Server) updateConversation(x *exchange) error {
	metadata, _, err := s.readConversation(x)
	if err != nil {
		return err
	}
	c, err := s.kept.Rename(x.Request().Context(), x.owner(), x.Param("id"), metadata)
	return s.answerConversation(x, c, err)
}

func (s *Server) deleteConversation(x *exchange) error {
	id := x.Param("id")
	if err := s.kept.Forget(x.Request().Context(), x.owner(), id); err != nil {
		return notFound(err, "Conversation", id)
	}
	return s.answerJSON(x, deleted{ID: id, Object: "conversation.deleted", Deleted: true})
}

func (s *Server) answerConversation(x *exchange, c *responses.Conversation, err error) error {
	if err != nil {
		return notFound(err, "Conversation", x.Param("id"))
	}
	s.setProcessing(x)
	return x.json(c.JSON())
}

// addItems says something in a conversation.
func (s *Server) addItems(x *exchange) error {
	_, items, err := s.readConversation(x)
	if err != nil {
		return err
	}
	if len(items) == 0 {
		return &responses.Problem{Param: "items", Code: "missing_required_parameter", Message: "Missing required parameter: 'items'."}
	}
	if err := s.loadItems(x, items); err != nil {
		return err
	}
	if err := s.kept.Say(x.Request().Context(), x.owner(), x.Param("id"), items); err != nil {
		return notFound(err, "Conversation", x.Param("id"))
	}
	s.setProcessing(x)
	return x.json(responses.List(items, false))
}

func (s *Server) listItems(x *exchange) error {
	page, err := pageOf(x.Request(), false)
	if err != nil {
		return err
	}
	talk, err := s.kept.Talk(x.Request().Context(), x.owner(), x.Param("id"))
	if err != nil {
		return notFound(err, "Conversation", x.Param("id"))
	}
	part, more, err := page.Cut(talk.Items)
	if err != nil {
		return err
	}
	s.setProcessing(x)
	return x.json(responses.List(part, more))
}

func (s *Server) getItem(x *exchange) error {
	it, err := s.kept.Said(x.Request().Context(), x.owner(), x.Param("id"), x.Param("item"))
	if err != nil {
		return notFound(err, "Item", x.Param("item"))
	}
	s.setProcessing(x)
	return x.json(it.Shown())
}

func (s *Server) deleteItem(x *exchange) error {
	c, err := s.kept.Unsay(x.Request().Context(), x.owner(), x.Param("id"), x.Param("item"))
	if err != nil {
		return notFound(err, "Item", x.Param("item"))
	}
	s.setProcessing(x)
	return x.json(c.JSON())
}

// notFound turns a missing object into an answer that says no more than that:
// another's looks the same.
func notFound(err error, what, id string) error {
	if !errors.Is(err, responses.ErrNotFound) {
		return err
	}
	return &gateway.Error{Cause: objectNotFound, Message: what + " with id '" + shownID(id) + "' not found."}
}

// conversationRoutes are those of /v1/conversations.
func (s *Server) conversationRoutes(scope string) []route {
	return []route{
		{http.MethodPost, "/v1/conversations", scope, s.createConversation},
		{http.MethodGet, "/v1/conversations/:id", scope, s.getConversation},
		{http.MethodPost, "/v1/conversations/:id", scope, s.updateConversation},
		{http.MethodDelete, "/v1/conversations/:id", scope, s.deleteConversation},
		{http.MethodPost, "/v1/conversations/:id/items", scope, s.addItems},
		{http.MethodGet, "/v1/conversations/:id/items", scope, s.listItems},
		{http.MethodGet, "/v1/conversations/:id/items/:item", scope, s.getItem},
		{http.MethodDelete, "/v1/conversations/:id/items/:item", scope, s.deleteItem},
	}
}
