package gateway

import (
	"context"
	"sync"
	"time"
)

// keepAlive is a comment, which clients skip. It is safe because no event of
// ours has an id: after one, some clients take a comment for an empty event.
const keepAlive = ": keepalive\n\n"

// answer is the caller's side of an exchange. The relay and the keep-alive
// take turns on the sink.
type answer struct {
	sink Sink

	mu    sync.Mutex
	head  Head
	begun bool
	left  bool // the caller
	last  time.Time
}

// send begins the answer, if nothing has yet, and passes p on. The error is
// ClientGone.
func (a *answer) send(ctx context.Context, p []byte) *Error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.left {
		return &Error{Cause: ClientGone}
	}
	var err error
	if !a.begun {
		a.begun = true
		err = a.sink.Begin(ctx, a.head) //nolint:forbidigo // an answer, not a transaction
	}
	if err == nil {
		err = a.sink.Send(ctx, p)
	}
	if err != nil {
		a.left = true
		return &Error{Cause: ClientGone, Err: err}
	}
	a.last = time.Now()
	return nil
}

// prepare sets what the answer begins with.
func (a *answer) prepare(h Head) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.begun {
		a.head, a.last = h, time.Now()
	}
}

// started reports whether the caller has seen anything.
func (a *answer) started() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.begun
}

// ping breaks a silence that has lasted for every, and returns when the next
// one would have.
func (a *answer) ping(ctx context.Context, now time.Time, every time.Duration) time.Time {
	a.mu.Lock()
	silent := now.Sub(a.last)
	a.mu.Unlock()
	if silent < every {
		return now.Add(every - silent)
	}
	_ = a.send(ctx, []byte(keepAlive)) // a caller who left is met by the next event, or by the context
	return now.Add(every)
}

// fail tells a caller who has seen a beginning that there will be no end.
func (a *answer) fail(ctx context.Context, err *Error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun && !a.left && err.Cause != ClientGone {
		a.sink.Fail(ctx, err)
	}
}
