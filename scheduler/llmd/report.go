package llmd

import (
	"net/http"
	"strconv"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"weir/scheduler"
	"weir/scheduler/extproc"
)

const (
	maxPending  = 1 << 20                // bytes of an answer that a slow picker may be behind
	reportEvery = 250 * time.Millisecond // between counts of tokens for a `weir scheduler`
	keptBuffer  = 32 << 10               // larger buffers are not kept
)

// outbox is what is still to be said of the answer. Mu of its lease guards it.
type outbox struct {
	status   int    // of the engine's answer; 0 until it is known
	headed   bool   // that was said
	buf      []byte // messages, one behind the other
	ends     []int  // where each ends
	spare    outboxBuffer
	reported time.Time // when tokens were last told
	bodies   int       // messages that were put in
	dropped  bool      // some of the answer was left out
	outcome  scheduler.Outcome
	closed   bool // the last was said
}

type outboxBuffer struct {
	buf  []byte
	ends []int
}

// Observe notes what the picker shall know and returns: another goroutine
// sends. A picker that doesn't listen loses the older part of what waits for
// it; the end of an answer, where its usage is, is always told.
func (l *lease) Observe(p scheduler.Progress) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.Kind == scheduler.HeadersReceived {
		l.body = nil // a stream may run for minutes more
	}
	if l.ended || l.gone {
		return
	}
	switch {
	case p.Kind == scheduler.HeadersReceived:
		l.out.status = p.Status
		if l.out.status == 0 {
			l.out.status = http.StatusOK
		}
	case l.client.cfg.Own:
		l.report(p)
	case p.Kind == scheduler.EventReceived && len(p.Event) > 0:
		l.event(p.Event)
	default:
		return
	}
	l.write()
}

// report puts in what a `weir scheduler` is told: few bytes, and not often,
// because its end brings the exact numbers. Holds mu.
func (l *lease) report(p scheduler.Progress) {
	now := l.at()
	if p.Kind != scheduler.FirstToken && now.Sub(l.out.reported) < reportEvery {
		return
	}
	l.out.reported = now
	l.room(24)
	l.out.buf = extproc.AppendReport(l.out.buf, p)
	l.out.end()
}

// event puts in one whole event, or one JSON document in pieces. Holds mu.
func (l *lease) event(e []byte) {
	if !l.streams {
		if len(e) > maxPending {
			l.drop()
			return
		}
		for piece := range extproc.Chunks(e, extproc.MaxPiece) {
			l.out.buf = append(l.out.buf, piece...)
			l.out.end()
		}
		return
	}
	if len(e)+8 > maxPending/2 {
		l.drop()
		return
	}
	l.room(len(e) + 8)
	l.out.buf = append(append(append(l.out.buf, "data: "...), e...), "\n\n"...)
	l.out.end()
}

// room makes it, at the cost of what is oldest. Holds mu.
func (l *lease) room(n int) {
	if len(l.out.buf)+n > maxPending {
		l.out.buf, l.out.ends = l.out.buf[:0], l.out.ends[:0]
		l.drop()
	}
}

func (l *lease) drop() {
	l.out.dropped = true
	l.client.counts.dropped.Add(1)
}

func (o *outbox) end() {
	o.ends = append(o.ends, len(o.buf))
	o.bodies++
}

// End tells the picker how the attempt ended. An answer that nobody waits for
// any more is told by the stream's end alone.
func (l *lease) End(outcome scheduler.Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended, l.out.outcome, l.body = true, outcome, nil
	l.client.counts.live.Add(-1)
	if l.gone || l.silent() {
		l.cancel()
		return
	}
	l.drain = time.AfterFunc(drainTime, l.cancel) // for a picker that doesn't listen, or doesn't close
	l.write()
}

// silent reports whether the end has no words in a picker's protocol: the
// caller left, or nothing was ever sent to the endpoint. Holds mu.
func (l *lease) silent() bool {
	if l.client.cfg.Own {
		return false
	}
	r := l.out.outcome.Result
	return r == scheduler.Abandoned || r == scheduler.CallerFault && l.out.status == 0
}

// write lets a goroutine send what is there, unless one does. Holds mu.
func (l *lease) write() {
	if l.writing {
		return
	}
	l.writing = true
	l.client.work.Go(l.flush) // the reader's count is still held, or the stream has gone
}

// flush sends until nothing is left. Only it sends on the stream.
func (l *lease) flush() {
	for {
		l.mu.Lock()
		next := l.take()
		if next == nil {
			l.writing = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		if err := next(); err != nil { // the reader learns why
			l.mu.Lock()
			l.gone, l.writing = true, false
			ended := l.ended
			l.mu.Unlock()
			if ended {
				l.cancel()
			}
			return
		}
	}
}

// take is the next thing to send; nil when there is none. Holds mu.
func (l *lease) take() func() error {
	o := &l.out
	if l.ended && o.status == 0 {
		o.status = statusOf(o.outcome.Result)
	}
	switch {
	case l.gone:
		return nil
	case !o.headed && (o.status != 0 || len(o.ends) > 0):
		o.headed = true
		status := o.status
		return func() error { return l.sendHeaders(status) }
	case len(o.ends) > 0:
		full := outboxBuffer{o.buf, o.ends}
		o.buf, o.ends = o.spare.buf[:0], o.spare.ends[:0]
		o.spare = outboxBuffer{}
		return func() error { return l.sendBodies(full) }
	case l.ended && !o.closed:
		o.closed = true
		outcome, broken, dropped := o.outcome, o.outcome.Result == scheduler.EndpointFault && o.bodies > 0, o.dropped
		return func() error { return l.sendEnd(outcome, broken, dropped) }
	default:
		return nil
	}
}

func (l *lease) sendHeaders(status int) error {
	var h extproc.Headers
	if status == 0 {
		status = http.StatusOK
	}
	code, kind := strconv.Itoa(status), "application/json"
	if l.streams {
		kind = "text/event-stream"
	}
	h.Add(extproc.Status, code)
	h.Add(extproc.PlainStatus, code)
	h.Add(extproc.ContentType, kind)
	return l.stream.Send(&extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{Headers: h.Map()}},
	})
}

// sendBodies sends each message by itself: a picker reads usage only in events
// that are whole within one. The buffer is used again, since grpc has encoded
// a message when Send returns.
func (l *lease) sendBodies(full outboxBuffer) error {
	body := &extprocv3.HttpBody{}
	m := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: body}}
	from := 0
	for _, to := range full.ends {
		body.Body = full.buf[from:to]
		if err := l.stream.Send(m); err != nil {
			return err
		}
		from = to
	}
	if cap(full.buf) <= keptBuffer {
		l.mu.Lock()
		l.out.spare = full
		l.mu.Unlock()
	}
	return nil
}

// sendEnd completes the exchange. A stream that broke off has no end of its
// own: closing without one tells a picker that it failed.
func (l *lease) sendEnd(o scheduler.Outcome, broken, dropped bool) error {
	if l.client.cfg.Own || !broken {
		if dropped && !l.client.cfg.Own {
			if err := l.sendBody(usage(o, l.streams), false); err != nil {
				return err
			}
		}
		if err := l.sendBody(nil, true); err != nil {
			return err
		}
	}
	if l.client.cfg.Own {
		var h extproc.Headers
		extproc.EncodeOutcome(&h, o)
		if err := l.stream.Send(&extprocv3.ProcessingRequest{
			Request: &extprocv3.ProcessingRequest_ResponseTrailers{ResponseTrailers: &extprocv3.HttpTrailers{Trailers: h.Map()}},
		}); err != nil {
			return err
		}
	}
	return l.stream.CloseSend()
}

func (l *lease) sendBody(body []byte, last bool) error {
	return l.stream.Send(&extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: body, EndOfStream: last}},
	})
}

// usage is the answer's account in place of an answer that was not told.
func usage(o scheduler.Outcome, streams bool) []byte {
	input := o.InputTokens + o.CachedTokens
	b := []byte(`{"usage":{"prompt_tokens":`)
	b = strconv.AppendInt(b, int64(input), 10)
	b = strconv.AppendInt(append(b, `,"completion_tokens":`...), int64(o.OutputTokens), 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), int64(input+o.OutputTokens), 10)
	b = strconv.AppendInt(append(b, `,"prompt_tokens_details":{"cached_tokens":`...), int64(o.CachedTokens), 10)
	b = append(b, "}}}"...)
	if streams {
		return append(append([]byte("data: "), b...), "\n\n"...)
	}
	return b
}

// statusOf is the status that an endpoint gave whose answer nobody saw.
func statusOf(r scheduler.Result) int {
	switch r {
	case scheduler.EndpointFault:
		return http.StatusBadGateway
	case scheduler.Overloaded:
		return http.StatusServiceUnavailable
	case scheduler.CallerFault:
		return http.StatusBadRequest
	default:
		return http.StatusOK
	}
}
