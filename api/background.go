package api

import (
	"context"
	"errors"
	"strconv"

	"weir/gateway"
	"weir/responses"
)

// orderResponse answers a request for a response that is made in the
// background: at once, with the queued response or with the stream of its
// events. Whoever leaves that doesn't end the response.
func (s *Server) orderResponse(ctx context.Context, x *exchange, run *responses.Run) error {
	if s.background == nil {
		return &responses.Problem{Param: "background", Code: "unsupported_value", Message: "This server makes no responses in the background."}
	}
	id, object, err := s.background.Order(ctx, run, s.keepOrder(x))
	if err != nil {
		return backgroundError(err, id)
	}
	x.once.order()
	out := s.newSink(x, run.Ignored())
	defer out.close()
	if run.Streamed() {
		return s.background.Follow(ctx, x.principal, id, -1, false, out)
	}
	if err := out.Begin(ctx, gateway.Head{}); err != nil { //nolint:forbidigo // an answer, not a transaction
		return err
	}
	return out.Send(ctx, object)
}

// resumeResponse sends the events of a background stream to a caller who comes
// back to it.
func (s *Server) resumeResponse(x *exchange) error {
	after := -1
	if text := x.Request().URL.Query().Get("starting_after"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return &responses.Problem{Param: "starting_after", Code: "invalid_value", Message: "Invalid 'starting_after': use the number of an event, from 0."}
		}
		after = n
	}
	ctx, release := s.keys.Guard(x.Request().Context(), x.principal)
	defer release()
	out := s.newSink(x, nil)
	defer out.close()
	id := x.Param("id")
	return backgroundError(s.background.Follow(ctx, x.principal, id, after, true, out), id)
}

// cancelResponse ends a background response.
func (s *Server) cancelResponse(x *exchange) error {
	id := x.Param("id")
	if s.background == nil {
		return notFound(responses.ErrNotFound, "Response", id)
	}
	object, err := s.background.Cancel(x.Request().Context(), x.owner(), id)
	if err != nil {
		return backgroundError(err, id)
	}
	s.setProcessing(x)
	return x.json(object)
}

// backgroundError is what the caller is told of an error of responses.Background.
func backgroundError(err error, id string) error {
	switch {
	case errors.Is(err, responses.ErrNotFound):
		return notFound(err, "Response", id)
	case errors.Is(err, responses.ErrSynchronous):
		return &responses.Problem{Message: "Cannot cancel a synchronous response."}
	case errors.Is(err, responses.ErrTooManyRuns):
		return &gateway.Error{Cause: gateway.FlowFull, Message: "Too many of your background responses are on their way already.", Err: err}
	case errors.Is(err, responses.ErrTooManyReaders):
		return &gateway.Error{Cause: gateway.TooManyAtOnce, Message: "At most 4 connections may stream one response at the same time.", Err: err}
	default:
		return err
	}
}
