package responses

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"weir/gateway"
	"weir/responses/eventlog"
	"weir/tenants"
)

// ErrTooManyReaders means that as many follow a response's stream as may.
var ErrTooManyReaders = errors.New("responses: too many readers of one stream")

const (
	maxReaders  = 4
	followWait  = 2 * time.Second  // for events, until the response itself is looked at
	followCheck = 10 * time.Second // between two questions after the reader's rights
	followPing  = 15 * time.Second // of silence, until the connection is told that it lives
)

// Follow sends the events of a background stream that come after the number
// (-1: all), and then those that are made, to the one that ends it. Resumed
// says that the reader came back: of these there are only so many at a time.
// ctx is that of the reader's guard.
//
// Errors: ErrNotFound, ErrTooManyReaders, a *Problem where there is no stream
// to follow; out was told of those that end a stream that has begun.
func (b *Background) Follow(ctx context.Context, p *tenants.Principal, id string, after int, resumed bool, out gateway.Sink) error {
	o := Owner{Tenant: p.Tenant, Project: p.Project}
	state, err := b.deps.Runs.State(ctx, o, id)
	if err != nil {
		return err
	}
	if !state.Background || !state.Streamed {
		return problem("stream", codeValue, "Only a response that was made with 'background' and 'stream' can be streamed again.")
	}
	f := &follower{b: b, principal: p, owner: o, id: id, after: after, out: out, seat: rand.Text(), resumed: resumed, checked: time.Now()}
	if err := f.sit(ctx); err != nil {
		return err
	}
	defer f.leave(ctx)
	first, err := f.begin(ctx, state)
	if err != nil {
		return err
	}
	if err := f.follow(ctx, first); err != nil {
		return f.broke(ctx, err)
	}
	return nil
}

// broke tells a reader who is still there why its stream ends here. The
// response itself goes on.
func (f *follower) broke(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, tenants.ErrRevoked):
		err = &gateway.Error{Cause: gateway.KeyRevoked, Err: err}
	case ctx.Err() != nil:
		return &gateway.Error{Cause: gateway.ClientGone, Err: err}
	}
	s := &stream{seq: f.after + 1}
	s.errorEvent(f.b.service.deps.Explain(err))
	_ = f.out.Send(ctx, s.out) // whether it still listens changes nothing
	return err
}

// follower is one reader of a stream.
type follower struct {
	b         *Background
	principal *tenants.Principal
	owner     Owner
	id        string
	after     int // number of the last event that it has
	out       gateway.Sink
	seat      string
	resumed   bool

	done    bool // the terminal event was sent
	final   *State
	checked time.Time
	sent    time.Time
}

func (f *follower) key() string { return logKey(f.owner.Tenant, f.id) }

func (f *follower) sit(ctx context.Context) error {
	if !f.resumed {
		return nil
	}
	ok, err := f.b.deps.Events.Hold(ctx, f.key(), f.seat, maxReaders)
	if err != nil {
		ok, _ = f.b.seats.Hold(ctx, f.key(), f.seat, maxReaders) // it never fails
	}
	if !ok {
		return ErrTooManyReaders
	}
	return nil
}

func (f *follower) leave(ctx context.Context) {
	if f.resumed {
		_ = f.b.deps.Events.Leave(context.WithoutCancel(ctx), f.key(), f.seat) // else it expires
		_ = f.b.seats.Leave(ctx, f.key(), f.seat)
	}
}

// begin finds out whether the log has what the reader lacks. Where it is gone
// and the response has ended, the response itself is all that is left.
func (f *follower) begin(ctx context.Context, s *State) ([]eventlog.Entry, error) {
	entries, err := f.b.deps.Events.Read(ctx, f.key(), -1, 0)
	if err != nil && ctx.Err() == nil {
		f.b.log.WarnContext(ctx, "events of a background response can't be read", "response", f.id, "error", err)
	}
	if len(entries) == 0 && Terminal(s.Status) {
		if f.after >= 0 {
			return nil, problem("starting_after", codeValue,
				"The response '%s' can no longer be streamed from event %d: its events are gone. Leave 'starting_after' out, or get it without 'stream'.", f.id, f.after)
		}
		f.final = s
	}
	if anew, err := f.begunAnew(ctx, entries); err != nil {
		return nil, err
	} else if anew {
		return nil, problem("starting_after", codeValue,
			"The response '%s' was begun anew, and event %d and those before it count no more. Leave 'starting_after' out.", f.id, f.after)
	}
	if err := f.out.Begin(ctx, gateway.Head{Stream: true}); err != nil { //nolint:forbidigo // an answer, not a transaction
		return nil, err
	}
	return entries, nil
}

// begunAnew reports that the reader has events from before the log's first.
func (f *follower) begunAnew(ctx context.Context, entries []eventlog.Entry) (bool, error) {
	if f.after < 0 || len(entries) == 0 {
		return false, nil
	}
	keys, err := f.b.deps.Vault.Keys(ctx, f.owner.Tenant)
	if err != nil {
		return false, err
	}
	p, err := keys.Open(entries[0].Box, aboutEvents+f.id)
	if err != nil {
		return false, fmt.Errorf("events of %s: %w", f.id, err)
	}
	first, ok := numberOf(p)
	return ok && first > f.after, nil
}

func (f *follower) follow(ctx context.Context, entries []eventlog.Entry) (err error) {
	if f.final != nil {
		return f.out.Send(ctx, replay(f.final.Object))
	}
	for {
		if err := f.send(ctx, entries); err != nil || f.done {
			return err
		}
		if err := f.check(ctx); err != nil {
			return err
		}
		entries, err = f.b.deps.Events.Read(ctx, f.key(), f.after, followWait)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil { // the response itself will be there
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(followWait):
			}
		}
		if len(entries) == 0 {
			if err := f.silent(ctx); err != nil || f.done {
				return err
			}
		}
	}
}

// send passes on the events that the reader hasn't.
func (f *follower) send(ctx context.Context, entries []eventlog.Entry) error {
	if len(entries) == 0 {
		return nil
	}
	keys, err := f.b.deps.Vault.Keys(ctx, f.owner.Tenant)
	if err != nil {
		return err
	}
	for _, e := range entries {
		p, err := keys.Open(e.Box, aboutEvents+f.id)
		if err != nil {
			return fmt.Errorf("events of %s: %w", f.id, err)
		}
		if e.Last <= f.after {
			continue
		}
		p = eventsAfter(p, f.after)
		if f.after >= 0 && bytes.HasPrefix(p, []byte("event: "+eventCreated+"\n")) {
			return &gateway.Error{Cause: gateway.Evicted, Message: "The response gave its place to requests of higher priority and is begun anew: what this stream showed counts no more. Stream it again without 'starting_after'."}
		}
		if len(p) > 0 {
			if err := f.out.Send(ctx, p); err != nil {
				return err
			}
		}
		f.after, f.sent = e.Last, time.Now()
		f.done = bytes.HasSuffix(p, []byte("data: [DONE]\n\n"))
	}
	return nil
}

// eventsAfter leaves out those events that the reader has.
func eventsAfter(p []byte, after int) []byte {
	rest := p
	for len(rest) > 0 {
		event, next, _ := bytes.Cut(rest, []byte("\n\n"))
		if n, ok := numberOf(event); !ok || n > after {
			return rest // without a number it is the end marker
		}
		rest = next
	}
	return nil
}

// numberOf is the number of the first event.
func numberOf(p []byte) (int, bool) {
	_, number, _ := bytes.Cut(p, []byte(`"sequence_number":`))
	digits := 0
	for digits < len(number) && '0' <= number[digits] && number[digits] <= '9' {
		digits++
	}
	n, err := strconv.Atoi(string(number[:digits]))
	return n, err == nil
}

// silent looks at the response itself when no events come: it may have ended
// where nobody could write so to the log.
func (f *follower) silent(ctx context.Context) error {
	state, err := f.b.deps.Runs.State(ctx, f.owner, f.id)
	switch {
	case errors.Is(err, ErrNotFound):
		return err
	case err != nil: // Postgres is away: it may come back
		f.b.log.WarnContext(ctx, "a background response can't be looked at", "response", f.id, "error", err)
	case Terminal(state.Status) && f.final != nil: // for a second time: nobody will write its end
		return f.end(ctx, state)
	case Terminal(state.Status):
		f.final = state
	}
	if time.Since(f.sent) >= followPing {
		f.sent = time.Now()
		return f.out.Send(ctx, []byte(": keepalive\n\n"))
	}
	return nil
}

func (f *follower) end(ctx context.Context, state *State) error {
	f.done = true
	if f.after < 0 {
		return f.out.Send(ctx, replay(state.Object))
	}
	s := &stream{seq: f.after + 1}
	s.terminalOf(state.Object)
	return f.out.Send(ctx, s.out)
}

// check asks every so often whether the reader may go on.
func (f *follower) check(ctx context.Context) error {
	if time.Since(f.checked) < followCheck {
		return nil
	}
	f.checked = time.Now()
	if err := f.sit(ctx); err != nil {
		return err
	}
	p, err := f.b.deps.Keys.Principal(ctx, f.principal.Tenant, f.principal.Key)
	switch {
	case errors.Is(err, tenants.ErrBadKey), errors.Is(err, tenants.ErrSuspended):
		return &gateway.Error{Cause: gateway.KeyRevoked, Err: err}
	case err == nil && !p.Allows(tenants.ScopeResponses):
		return &gateway.Error{Cause: gateway.AccessLost}
	default:
		return nil // one that can't be asked now is asked again
	}
}
