package responses

import (
	"bytes"
	"context"

	"github.com/jackc/pgx/v5"

	"weir/gateway"
)

// answer stands between an exchange and the caller: what the engine says goes
// in, and events of a response come out, or at the end one object.
type answer struct {
	run  *Run
	out  gateway.Sink
	live bool // the caller wants a stream
}

// Begin tells the caller that a response has begun.
func (a *answer) Begin(ctx context.Context, h gateway.Head) error {
	a.run.mu.Lock()
	defer a.run.mu.Unlock()
	h.Stream = a.live
	s := a.run.stream
	s.state.tier = string(h.Tier)
	s.begin(InProgress)
	return a.out.Begin(ctx, h) //nolint:forbidigo // an answer, not a transaction
}

// Send takes whole events.
func (a *answer) Send(ctx context.Context, p []byte) error {
	a.run.mu.Lock()
	defer a.run.mu.Unlock()
	s := a.run.stream
	for len(p) > 0 {
		var event []byte
		event, p, _ = bytes.Cut(p, []byte("\n\n"))
		data, isData := bytes.CutPrefix(event, []byte("data: "))
		switch {
		case !isData:
			s.keepalive()
		case string(data) == "[DONE]":
			s.complete()
		default:
			if err := a.run.read(data); err != nil {
				return err
			}
		}
	}
	return a.flush(ctx)
}

// read takes what an engine says, in the format in which it was asked.
func (r *Run) read(data []byte) error {
	if r.call.Operation == gateway.Responses {
		return r.stream.native(data)
	}
	return r.stream.chunk(data)
}

func (a *answer) flush(ctx context.Context) error {
	s := a.run.stream
	p := s.out
	s.out = s.out[:0]
	switch {
	case a.live && len(p) > 0:
		return a.out.Send(ctx, p)
	case !a.live && s.ended:
		return a.out.Send(ctx, s.object())
	default:
		return nil
	}
}

// Fail ends a stream that has begun. A caller who waits for one object gets the
// error alone.
func (a *answer) Fail(ctx context.Context, err error) {
	if !a.live {
		a.out.Fail(ctx, inputsFault(err))
		return
	}
	a.run.mu.Lock()
	defer a.run.mu.Unlock()
	s := a.run.stream
	if s.state.status != Cancelled { // which is what is stored then
		s.fail(a.run.service.deps.Explain(err))
	}
	s.terminal()
	_ = a.flush(ctx) // whether the caller still listens changes nothing
}

// effect keeps the response as it ends: in the receipt's transaction, before
// the caller sees the end.
func (r *Run) effect(ctx context.Context, failure *gateway.Error) (func(*pgx.Batch), error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stream
	switch {
	case failure == nil, failure.Cause == gateway.ClientGone && s.finish != "":
		s.settle(s.outcome()) // who left after the last token has a whole answer
	case failure.Cause == gateway.ClientGone, failure.Cause == gateway.KeyRevoked && r.create.Background:
		s.settle(Cancelled, "")
	default:
		s.fail(r.service.deps.Explain(failure))
	}
	return r.service.deps.Store.Save(ctx, r.record())
}

func (r *Run) record() *Record {
	c, h, s := r.create, r.history, r.stream
	rec := &Record{
		ID: r.id, Owner: r.from.Owner(), Key: r.from.Principal.Key,
		Previous: c.Previous, Conversation: c.Conversation,
		Root: r.call.Session, Turn: max(h.Turn, 1), Status: s.state.status, Model: c.Model,
		Background: c.Background, Streamed: c.Stream, CreatedAt: r.created,
		Object: s.object(), Input: c.Input, Output: make([]Item, 0, len(s.items)),
	}
	if plan := r.from.Principal.Plan; plan != nil && plan.RetentionDays > 0 {
		rec.ExpiresAt = r.created.AddDate(0, 0, plan.RetentionDays)
	}
	for _, it := range s.items {
		rec.Output = append(rec.Output, Item{ID: it.id, Type: it.kind, JSON: it.final})
	}
	return rec
}
