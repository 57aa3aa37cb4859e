package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"weir/gateway"
)

const (
	sendTimeout     = 60 * time.Second // for a caller who doesn't read
	deadlineRefresh = 10 * time.Second // a deadline costs a timer: it is moved at most this often

	maxIgnoredNames = 32
	maxIgnoredName  = 64
)

// sink writes an exchange's answer to the caller's connection. It satisfies
// gateway.Sink.
type sink struct {
	x       *exchange
	s       *Server
	control *http.ResponseController
	ignored []string

	stream   bool
	deadline time.Time
}

func (s *Server) newSink(x *exchange, ignored []string) *sink {
	return &sink{x: x, s: s, control: http.NewResponseController(x.w), ignored: ignored}
}

// Begin sets the answer's headers; they leave with the first Send.
func (k *sink) Begin(_ context.Context, head gateway.Head) error {
	h := k.x.w.Header()
	k.stream = head.Stream
	if head.Stream {
		h.Set(headerType, streamType+"; charset=utf-8")
		h.Set(headerCache, "no-cache, no-store")
		h.Set("X-Accel-Buffering", "no")
	} else {
		h.Set(headerType, jsonType)
		h.Set(headerCache, "no-store")
	}
	setQueue(h, head.Band, head.QueueTime)
	if names := headerList(k.ignored); names != "" {
		h.Set(headerIgnored, names)
	}
	setLimit(h, head.Limit)
	if head.Shutdown != nil {
		h.Set(headerSunset, head.Shutdown.UTC().Format(http.TimeFormat))
	}
	k.s.setProcessing(k.x)
	return nil
}

// Send writes and flushes. A caller who doesn't read for a minute counts as
// gone.
func (k *sink) Send(_ context.Context, p []byte) error {
	if now := k.s.now(); now.After(k.deadline.Add(deadlineRefresh - sendTimeout)) {
		k.deadline = now.Add(sendTimeout)
		_ = k.control.SetWriteDeadline(k.deadline) // not every writer has deadlines
	}
	if !k.x.committed {
		if !k.stream {
			k.x.w.Header().Set(headerLength, strconv.Itoa(len(p)))
		}
		k.x.commit(http.StatusOK)
	}
	if _, err := k.x.w.Write(p); err != nil {
		return err
	}
	if !k.stream {
		return nil // net/http sends the document when the handler returns
	}
	return k.control.Flush()
}

// Fail ends a stream with an error event. There is no [DONE] after it: that
// marker means success. As long as nothing has left, the answer becomes an
// error with its own status; a document that has left is cut by its
// Content-Length.
func (k *sink) Fail(ctx context.Context, err error) {
	f := k.s.failureOf(err)
	switch {
	case !k.x.committed:
		k.x.fail(f)
	case k.stream:
		event := append(append([]byte("data: "), f.encode()...), "\n\n"...)
		_ = k.Send(ctx, event) // whether the caller still listens changes nothing
	}
}

// close lifts the deadline, which would else end the connection's next answer.
func (k *sink) close() {
	if !k.deadline.IsZero() {
		_ = k.control.SetWriteDeadline(time.Time{})
	}
}

// headerList joins names for a header. They are the caller's own words: only
// plain ones are repeated, and not without end.
func headerList(names []string) string {
	var b strings.Builder
	for i, name := range names {
		if i == maxIgnoredNames {
			b.WriteString(", ...")
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		if plainName(name) {
			b.WriteString(name)
		} else {
			b.WriteString("?")
		}
	}
	return b.String()
}

func plainName(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && !strings.ContainsRune("_-.[]", rune(c)) {
			return false
		}
	}
	return len(name) > 0 && len(name) <= maxIgnoredName
}
