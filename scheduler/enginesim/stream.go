package enginesim

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"
)

// stream writes server-sent events, and breaks them as its fault says.
type stream struct {
	ctx    context.Context //nolint:containedctx // the stream lives within one request
	w      http.ResponseWriter
	rc     *http.ResponseController
	fault  fault
	events int
	buf    []byte // not yet written
}

// openStream sends the headers at once, as vLLM does: a caller learns that its
// request was taken before the first token is there.
func openStream(c *call) *stream {
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	c.w.WriteHeader(http.StatusOK)
	s := &stream{ctx: c.r.Context(), w: c.w, rc: http.NewResponseController(c.w), fault: c.fault}
	_ = s.rc.Flush() // an error shows again at the first event
	return s
}

// event adds one event to what the next flush writes.
func (s *stream) event(data []byte) error { return s.named("", data) }

// named is event for one that has a name.
func (s *stream) named(name string, data []byte) error {
	switch f := s.fault; {
	case f.dieAfter > 0 && s.events+1 >= f.dieAfter:
		_ = s.flush()
		return errCut
	case f.resetAfter > 0 && s.events+1 >= f.resetAfter:
		_ = s.flush()
		return errReset
	case f.stallAfter > 0 && s.events+1 >= f.stallAfter:
		_ = s.flush()
		<-s.ctx.Done()
		return errCallerLeft
	}
	s.events++
	if name != "" {
		s.buf = append(append(append(s.buf, "event: "...), name...), '\n')
	}
	s.buf = append(s.buf, "data: "...)
	if s.fault.malformed && s.events == 3 {
		data = data[:len(data)/2]
	}
	s.buf = append(s.buf, data...)
	s.buf = append(s.buf, "\n\n"...)
	return nil
}

// flush writes what is there. An error means that the caller has left.
func (s *stream) flush() error {
	var err error
	switch {
	case len(s.buf) == 0:
		return nil
	case s.fault.byteAtATime:
		err = writeBytes(s.w, s.buf)
	case s.fault.splitUTF8:
		err = writeSplit(s.ctx, s.w, s.buf)
	default:
		if _, err = s.w.Write(s.buf); err == nil {
			err = s.rc.Flush()
		}
	}
	s.buf = s.buf[:0]
	if err != nil {
		return errCallerLeft
	}
	return nil
}

// writeBytes writes each byte in a packet of its own.
func writeBytes(w http.ResponseWriter, p []byte) error {
	rc := http.NewResponseController(w)
	for i := range p {
		if _, err := w.Write(p[i : i+1]); err != nil {
			return err
		}
		if err := rc.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// writeSplit cuts p within each of its characters of several bytes, and waits
// there so that the parts arrive apart.
func writeSplit(ctx context.Context, w http.ResponseWriter, p []byte) error {
	rc := http.NewResponseController(w)
	from := 0
	for i, b := range p {
		if b < utf8.RuneSelf || utf8.RuneStart(b) {
			continue
		}
		if _, err := w.Write(p[from:i]); err != nil {
			return err
		}
		if err := rc.Flush(); err != nil {
			return err
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return err
		}
		from = i
	}
	if _, err := w.Write(p[from:]); err != nil {
		return err
	}
	return rc.Flush()
}

// brokenDocument sends a JSON answer in pieces, or only half of it.
func (c *call) brokenDocument(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "application/json")
	if c.fault.malformed {
		_, _ = c.w.Write(b[:len(b)/2])
		return nil
	}
	c.w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	if c.fault.dieAfter > 0 {
		_, _ = c.w.Write(b[:len(b)/2])
		_ = http.NewResponseController(c.w).Flush()
		return errCut
	}
	write := writeBytes
	if c.fault.splitUTF8 {
		write = func(w http.ResponseWriter, p []byte) error { return writeSplit(c.r.Context(), w, p) }
	}
	if write(c.w, b) != nil {
		return errCallerLeft
	}
	return nil
}

// reset ends the connection with a TCP reset where that can be done.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
