package api

import (
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"
)

// bodyTimeout bounds how long a body may take to arrive.
const bodyTimeout = 60 * time.Second

// maxPromised is how much of a promised length is believed before it comes.
const maxPromised = 1 << 20

// bodies reads the bodies of requests whole, decoded and bounded.
type bodies struct {
	limit    int64 // bytes of one body, as sent and decoded
	room     *room
	decoders decoders
}

// body is the bytes of one request. They are given back by release: nothing may
// hold on to them after it.
type body struct {
	bytes []byte
	held  []*buffer
	room  *room
}

// alloc gives n bytes that live as long as the body.
func (b *body) alloc(n int) []byte {
	buf := b.room.borrow(n)
	b.held = append(b.held, buf)
	return buf.bytes[:n]
}

// take lends room for n bytes more that live as long as the body, unless there
// is none.
func (b *body) take(n int) ([]byte, error) {
	buf, err := b.room.take(n)
	if err != nil {
		return nil, err
	}
	b.held = append(b.held, buf)
	return buf.bytes, nil
}

// release gives the bytes back. It may be called again.
func (b *body) release() {
	for _, buf := range b.held {
		b.room.giveBack(buf)
	}
	b.bytes, b.held = nil, nil
}

// read returns the request's decoded body, or an error with its cause.
func (b *bodies) read(w http.ResponseWriter, r *http.Request, now time.Time) (*body, error) {
	if err := checkType(r.Header.Get(headerType)); err != nil {
		return nil, err
	}
	coding, err := contentCoding(r.Header.Values("Content-Encoding"))
	if err != nil {
		return nil, err
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(now.Add(bodyTimeout)) // not every writer has deadlines
	if r.ContentLength > b.limit {
		b.drain(r)
		return nil, because(bodyTooLarge, nil)
	}
	raw, err := b.fill(r.Body, r.ContentLength)
	if err != nil {
		if isCause(err, bodyTooLarge) {
			b.drain(r)
		}
		return nil, err
	}
	_ = control.SetReadDeadline(time.Time{}) // or it would end the answer
	if coding != "" {
		defer b.room.giveBack(raw)
		if raw, err = b.decode(r.Context(), coding, raw.bytes); err != nil {
			return nil, err
		}
	}
	return &body{bytes: raw.bytes, held: []*buffer{raw}, room: b.room}, nil
}

// drain reads what is left of a body that is too large, if it isn't hopeless,
// so that a client that sends before it reads gets to see the answer. A client
// that asks first has sent nothing.
func (b *bodies) drain(r *http.Request) {
	if r.ContentLength <= 2*b.limit && r.Header.Get("Expect") == "" {
		_, _ = io.CopyN(io.Discard, r.Body, 2*b.limit) // a best effort
	}
}

// fill reads src to its end into a buffer that grows as the bytes come, so that
// a promised length alone costs little.
func (b *bodies) fill(src io.Reader, promised int64) (*buffer, error) {
	buf, err := b.room.take(int(min(max(promised+1, smallest), maxPromised)))
	if err != nil {
		return nil, err
	}
	for {
		n, err := src.Read(buf.bytes[len(buf.bytes):cap(buf.bytes)])
		buf.bytes = buf.bytes[:len(buf.bytes)+n]
		if int64(len(buf.bytes)) > b.limit {
			err = because(bodyTooLarge, nil)
		} else if err == nil && len(buf.bytes) == cap(buf.bytes) {
			buf, err = b.room.grow(buf, int(b.limit)+1)
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return buf, nil
		default:
			b.room.giveBack(buf)
			return nil, readError(err)
		}
	}
}

// decode undoes the coding. The whole body is here already, so that a decoder
// never waits for a client.
func (b *bodies) decode(ctx context.Context, coding string, raw []byte) (*buffer, error) {
	d, err := b.decoders.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer b.decoders.release(d)
	src, err := d.open(coding, raw)
	if err != nil {
		return nil, because(bodyCorrupt, err)
	}
	return b.fill(corruptReader{src}, int64(len(raw))*4)
}

// checkType takes JSON, and requests that don't say what they are.
func checkType(contentType string) error {
	if contentType == "" || contentType == jsonType {
		return nil
	}
	media, params, err := mime.ParseMediaType(contentType)
	charset := params["charset"]
	if err != nil || media != jsonType || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return because(wrongType, nil)
	}
	return nil
}

// readError finds the cause of a body that did not arrive.
func readError(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return because(bodySlow, err)
	case causeKnown(err):
		return err
	default:
		return because(bodyIncomplete, err)
	}
}
