package llmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/scheduler"
	"weir/scheduler/extproc"
)

// lostError is a picker's end before its decision: nobody decided, so that the
// request may be sent again, to another or to the same.
type lostError struct{ err error }

func (l *lostError) Error() string { return "the picker went away: " + l.err.Error() }
func (l *lostError) Unwrap() error { return l.err }

func isLost(err error) bool {
	_, ok := errors.AsType[*lostError](err)
	return ok
}

// Schedule waits in the picker's queue. A picker that dies with the request
// loses it: within Patience it is sent again, at the head of its flow where the
// picker is a `weir scheduler`. Then, or when none answers, the reason is
// NoEndpoints, and Undecided tells that nobody decided.
func (c *Client) Schedule(ctx context.Context, r scheduler.Request) (scheduler.Lease, error) {
	if ctx.Err() != nil {
		return nil, c.refused(&scheduler.Refusal{Reason: scheduler.Cancelled, Err: context.Cause(ctx)}, &r)
	}
	if !c.enter() {
		return nil, c.refused(&scheduler.Refusal{Reason: scheduler.ShuttingDown, Err: errClosed}, &r)
	}
	defer c.work.Done()
	c.counts.waiting.Add(1)
	defer c.counts.waiting.Add(-1)

	wait, stop := c.waiting(ctx, r.TTL)
	defer stop()
	began := c.cfg.Now()
	lease, err := c.insist(wait, &r, began)
	if err != nil {
		return nil, c.refused(c.refusal(wait, err), &r)
	}
	c.pace.note(r.Flow.Band, c.cfg.Now().Sub(began))
	c.counts.granted.Add(1)
	return lease, nil
}

// waiting is the context of the wait alone: it ends with the caller's, with
// the client, and when the time limit is over, and says by its cause which.
func (c *Client) waiting(ctx context.Context, ttl time.Duration) (wait context.Context, stop func()) {
	wait, cancel := context.WithCancelCause(ctx)
	closing := context.AfterFunc(c.closing, func() { cancel(errClosed) })
	limit, cause := maxWait, errSilent
	grace := time.Duration(0)
	if c.cfg.Own { // which keeps the time itself, and more exactly, unless it is away
		grace = ownGrace
	}
	switch {
	case ttl < 0:
		limit, cause = noWait+grace, errExpired
	case ttl > 0 && ttl < maxWait-grace:
		limit, cause = ttl+grace, errExpired
	}
	timer := time.AfterFunc(limit, func() { cancel(cause) })
	return wait, func() {
		timer.Stop()
		closing()
		cancel(nil)
	}
}

// insist tries until some picker has decided, or patience is over.
func (c *Client) insist(wait context.Context, r *scheduler.Request, began time.Time) (*lease, error) {
	backoff, lostAt := firstBackoff, time.Time{}
	for {
		peer, err := c.cfg.Picker()
		if err != nil {
			err = &lostError{fmt.Errorf("%w: %w", ErrNoScheduler, err)}
			if lostAt.IsZero() {
				return nil, err // known at once; there is nothing to be patient for
			}
		} else {
			var l *lease
			if l, err = c.try(wait, peer, r); err == nil {
				return l, nil
			}
		}
		now := c.cfg.Now()
		if lostAt.IsZero() {
			lostAt = now
		}
		if !isLost(err) || wait.Err() != nil || now.Sub(lostAt) >= c.cfg.Patience {
			return nil, err
		}
		pause := time.NewTimer(jitter(backoff)) // a whole queue comes again
		select {
		case <-wait.Done():
			pause.Stop()
			return nil, err
		case <-pause.C:
		}
		backoff = min(2*backoff, maxBackoff)
		c.counts.again.Add(1)
		if r.QueuedAt.IsZero() {
			r.QueuedAt = began
		}
	}
}

// try sends the request to one picker and reads its decision.
func (c *Client) try(wait context.Context, peer Peer, r *scheduler.Request) (*lease, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(wait)) // the stream outlives the wait
	release := context.AfterFunc(wait, cancel)
	l, err := c.ask(ctx, peer, r)
	peer.Report(transport(wait, err))
	if err == nil && !release() {
		err = context.Cause(wait) // the decision came too late
	}
	if err != nil {
		cancel()
		return nil, err
	}
	l.cancel = cancel
	c.begin(l)
	return l, nil
}

// transport is what of an error says that the picker doesn't work: an answer
// that refuses doesn't, nor one for an endpoint that we don't know yet, nor a
// caller who left.
func transport(wait context.Context, err error) error {
	refusal, refused := errors.AsType[*scheduler.Refusal](err)
	switch {
	case refused && refusal.Reason != scheduler.ShuttingDown, errors.Is(err, ErrForeign):
		return nil
	case wait.Err() != nil && !errors.Is(context.Cause(wait), errSilent): // a long wait proves nothing: that we left it counts neither way
		return nil
	default:
		return err
	}
}

// failed classes an error of the stream.
func failed(err error) error {
	if errors.Is(err, io.EOF) { // the end of the stream, without a decision
		return &lostError{errSilent}
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.Aborted:
		return &lostError{err}
	default:
		return err
	}
}

// refusal turns why there is no lease into the scheduler's own words.
func (c *Client) refusal(wait context.Context, err error) *scheduler.Refusal {
	refusal, refused := errors.AsType[*scheduler.Refusal](err)
	cause := context.Cause(wait)
	switch {
	case refused && refusal.Reason != scheduler.Cancelled:
		if isLost(err) { // it is going away: nobody decided
			return &scheduler.Refusal{Reason: refusal.Reason, RetryAfter: refusal.RetryAfter, Waited: refusal.Waited, Err: err}
		}
		return refusal
	case errors.Is(cause, errClosed):
		return &scheduler.Refusal{Reason: scheduler.ShuttingDown, Waited: true, Err: errClosed}
	case errors.Is(cause, errExpired):
		return &scheduler.Refusal{Reason: scheduler.QueueTimeout, Waited: true, Err: errExpired}
	case errors.Is(cause, errSilent):
		return &scheduler.Refusal{Reason: scheduler.QueueTimeout, Waited: true, Err: errSilent}
	case wait.Err() != nil:
		return &scheduler.Refusal{Reason: scheduler.Cancelled, Waited: true, Err: cause}
	case isLost(err):
		return &scheduler.Refusal{Reason: scheduler.NoEndpoints, Err: err}
	case errors.Is(err, ErrForeign):
		c.counts.foreign.Add(1)
	case errors.Is(err, extproc.ErrGarbage), errors.Is(err, extproc.ErrTooMuch), errors.Is(err, extproc.ErrNoDestination):
		c.counts.garbage.Add(1)
	}
	return &scheduler.Refusal{Reason: scheduler.Internal, Err: err}
}

// refused counts a refusal and says when to come back, which an llm-d picker
// leaves open.
func (c *Client) refused(refusal *scheduler.Refusal, r *scheduler.Request) *scheduler.Refusal {
	c.counts.refused.Add(1)
	if refusal.RetryAfter == 0 && refusal.Reason != scheduler.Cancelled && refusal.Reason != scheduler.Internal {
		refusal.RetryAfter = c.pace.retryAfter(r.Flow.Band, refusal.Reason)
	}
	return refusal
}
