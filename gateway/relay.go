package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"weir/gateway/upstream"
	"weir/scheduler"
)

const (
	doneEvent = "data: " + doneMarker + "\n\n"
	drainTime = 100 * time.Millisecond // for the end of an engine's answer, to keep its connection
	maxPooled = 64 << 10               // larger buffers are not kept
)

var (
	errNoDone    = errors.New("the stream ended without its marker")
	errLongReply = errors.New("answer longer than the limit")
)

// relay passes a stream on: each read's whole events in one piece. Only the
// engine's end marker is success, and the caller sees it when the receipt is
// stored.
func (x *exchange) relay(ctx context.Context, w *watch, trip *upstream.Trip, body io.ReadCloser) *Error {
	s := &splitter{limit: x.g.cfg.MaxEvent}
	r := x.wire()
	for {
		readErr := s.fill(body)
		w.rest()
		made := x.meter.output
		done, broke, failure := x.burst(ctx, s, r)
		if x.meter.output > made {
			x.piece()
		}
		if !done && !broke && failure == nil && readErr != nil {
			done, failure = x.broken(ctx, s, r, readErr)
		}
		switch {
		case done:
			return x.complete(ctx, w, body)
		case failure != nil:
			return x.inStream(failure)
		case broke:
			if failure := x.exhausted(ctx, r, body); failure != nil || x.finished {
				return failure
			}
		}
		x.forget(trip)
		if r.preparing() {
			w.wait(FirstByteLimit, x.times.FirstByte)
		} else {
			w.wait(IdleLimit, x.times.Idle)
		}
	}
}

// forget gives the request's memory back once the caller has seen something:
// there will be no other attempt.
func (x *exchange) forget(trip *upstream.Trip) {
	if x.body == nil || !x.out.started() || !trip.Written() {
		return
	}
	x.body, x.call.Fields, x.call.Prompt = nil, nil, [2][]byte{}
	if x.call.Sent != nil {
		x.call.Sent()
	}
}

// rewriter makes the one of a chat's, a completion's or an embedding's answer.
func (x *exchange) rewriter() *rewriter {
	tier := ""
	if x.call.Tier != "" {
		tier = string(x.tier)
	}
	r := newRewriter(&x.meter, x.model.Name, engineName(x.model), tier, x.call.IncludeUsage, x.queued)
	r.hideCache = x.hideCache
	return r
}

// burst passes on all whole events that have been read. Broke says that there is no money for more.
func (x *exchange) burst(ctx context.Context, s *splitter, r wire) (done, broke bool, failure *Error) {
	buf, _ := x.g.buffers.Get().(*[]byte)
	out := (*buf)[:0]
	for !done && !broke && failure == nil {
		ev, ok := s.next()
		if !ok {
			break
		}
		out, done, failure = x.event(r, out, ev)
		broke = !done && failure == nil && x.spend(ctx)
	}
	x.made += len(out)
	if x.trace != nil {
		x.trace.follow(&x.meter, x.billed)
	}
	if len(out) > 0 {
		if gone := x.out.send(ctx, out); gone != nil && !done {
			failure = gone
		}
	}
	if cap(out) <= maxPooled {
		*buf = out
		x.g.buffers.Put(buf)
	}
	return done, broke, failure
}

// event appends what the caller shall see of one event.
func (x *exchange) event(r wire, out []byte, ev event) (shown []byte, done bool, failure *Error) {
	if ev.failed {
		return out, false, eventError(ev.data)
	}
	out, done, failure = r.event(out, ev.data)
	if failure != nil {
		return out, false, failure
	}
	if r.began() {
		x.firstOutput()
	}
	if string(ev.data) != doneMarker {
		x.lease.Observe(scheduler.Progress{
			Kind: scheduler.EventReceived, OutputTokens: int(x.meter.output), Event: ev.data,
		})
	}
	return out, done, nil
}

// firstOutput notes when the first piece of the answer came.
func (x *exchange) firstOutput() {
	if x.ttft == 0 {
		x.ttft = max(time.Since(x.call.ReceivedAt), 1) // 0 means that none came
		x.lease.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
	}
}

// piece notes that a part of a stream's output came.
func (x *exchange) piece() {
	now := time.Now()
	if !x.pieceAt.IsZero() {
		x.place.series.gaps.Observe(now.Sub(x.pieceAt).Seconds())
	}
	x.pieceAt = now
}

// broken says what the end of a stream means that came before its marker. A
// marker without the blank line after it still counts.
func (x *exchange) broken(ctx context.Context, s *splitter, r wire, err error) (done bool, failure *Error) {
	switch {
	case ctx.Err() != nil:
		return false, ended(ctx)
	case errors.Is(err, errEventTooLong):
		return false, &Error{Cause: UpstreamInvalid, Err: err}
	case !errors.Is(err, io.EOF):
		return false, &Error{Cause: UpstreamReset, Err: err}
	}
	if ev, ok := s.last(); ok && !ev.failed {
		if out, end, _ := r.event(nil, ev.data); end {
			if len(out) > 0 {
				_ = x.out.send(ctx, out) // the engine has done its part; who left then pays for it
			}
			return true, nil
		}
	}
	return false, &Error{Cause: UpstreamInvalid, Err: errNoDone}
}

// inStream completes an engine's failure: after the first byte to the caller
// every one of them is the same to everybody.
func (x *exchange) inStream(e *Error) *Error {
	switch e.Cause {
	case UpstreamReset, UpstreamStatus, UpstreamBusy, UpstreamInvalid, UpstreamRefused, ContextTooLong:
		if x.out.started() {
			return &Error{Cause: UpstreamDied, Err: e}
		}
		forCaller(e, x.model, x.call.Operation)
	default:
	}
	return e
}

// complete settles a stream and lets the caller see its end. Then it reads the
// few bytes that may be left of the engine's, so that the connection can be
// used again.
func (x *exchange) complete(ctx context.Context, w *watch, body io.Reader) *Error {
	x.ended(nil)
	if err := x.finish(ctx, nil); err != nil {
		return err
	}
	_ = x.out.send(ctx, []byte(doneEvent)) // who leaves now has seen all but the marker
	w.wait(TotalLimit, drainTime)
	_, _ = io.CopyN(io.Discard, body, 512) // at worst the connection is lost
	return nil
}

// ended tells who keeps the answer that it is whole.
func (x *exchange) ended(document []byte) {
	if x.call.Ended != nil {
		x.call.Ended(document, x.meter.json())
	}
}

// document passes one JSON answer on.
func (x *exchange) document(ctx context.Context, w *watch, resp *http.Response) *Error {
	body, err := readDocument(resp, x.g.cfg.MaxDocument, func() { w.wait(IdleLimit, x.times.Idle) })
	w.stop()
	switch {
	case err != nil && ctx.Err() != nil:
		return ended(ctx)
	case errors.Is(err, errLongReply):
		return &Error{Cause: UpstreamInvalid, Err: err}
	case err != nil:
		return &Error{Cause: UpstreamReset, Err: err}
	}
	out, failure := x.rewriter().document(make([]byte, 0, len(body)+64), body)
	if failure != nil {
		forCaller(failure, x.model, x.call.Operation)
		return failure
	}
	x.firstOutput()
	x.lease.Observe(scheduler.Progress{Kind: scheduler.EventReceived, Event: body})
	x.made = len(out)
	x.ended(out)
	if err := x.finish(ctx, nil); err != nil {
		return err
	}
	_ = x.out.send(ctx, out) // the answer was made and is paid for, whoever reads it
	return nil
}

// readDocument reads a whole body of at most limit bytes. Moved is called
// after each read.
func readDocument(resp *http.Response, limit int64, moved func()) ([]byte, error) {
	if resp.ContentLength > limit {
		return nil, fmt.Errorf("%w: %d bytes", errLongReply, resp.ContentLength)
	}
	buf := make([]byte, 0, max(resp.ContentLength, 2<<10)+1) // one more, to meet the end without growing
	for {
		n, err := resp.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case errors.Is(err, io.EOF):
			return buf, nil
		case err != nil:
			return nil, err
		case int64(len(buf)) > limit:
			return nil, errLongReply
		}
		moved()
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
	}
}
