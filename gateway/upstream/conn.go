package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// conn is a connection. One exchange uses it at a time.
type conn struct {
	net.Conn

	client *Client
	key    string // of its server
	in     limited
	read   *bufio.Reader
	used   bool      // it had an exchange before
	since  time.Time // when it began to wait

	stop    func() bool   // no more cutting when the context ends
	writing chan error    // of a large body; nil: none is being written
	answer  *http.Request // what answers are read for
}

// limited reads from a connection no more than is left, and lets the connection
// lie still while nothing is read.
type limited struct {
	conn net.Conn
	left int // negative: no limit
}

var errLongHeader = errors.New("the answer's header is too long")

func (l *limited) Read(p []byte) (int, error) {
	if l.left == 0 {
		return 0, errLongHeader
	}
	if l.left > 0 && len(p) > l.left {
		p = p[:l.left]
	}
	n, err := l.conn.Read(p)
	if l.left > 0 {
		l.left -= n
	}
	return n, err
}

// begin lets ctx cut the exchange off.
func (c *conn) begin(ctx context.Context) {
	c.stop = context.AfterFunc(ctx, func() {
		_ = c.SetDeadline(time.Unix(1, 0)) // whatever reads or writes now, or is about to, fails
	})
}

// close ends the connection, and waits for whoever writes to it.
func (c *conn) close() {
	if c.stop != nil {
		c.stop()
	}
	_ = c.Close()
	if c.writing != nil {
		_ = c.written() // how it ended says nothing any more
	}
}

// written waits for whoever writes the request, and returns how that ended.
func (c *conn) written() error {
	err := <-c.writing
	c.writing = nil
	return err
}

// exchange sends a request and reads the answer's head.
func (c *conn) exchange(head, body []byte, t *Trip) (*http.Response, error) {
	if len(body) <= largeBody {
		if err := c.send(head, body, t); err != nil {
			return nil, err
		}
	} else {
		c.writing = make(chan error, 1)
		go func() { c.writing <- c.send(head, body, t) }()
	}
	resp, err := c.head()
	if err == nil {
		resp.Body = &answer{body: resp.Body, conn: c, keep: keeps(resp)}
		return resp, nil
	}
	if c.writing != nil { // why there is no answer may be that the request was not sent
		_ = c.Close()
		unsent := c.written()
		if unsent != nil && !errors.Is(unsent, net.ErrClosed) {
			err = unsent
		}
	}
	return nil, err
}

// keeps reports whether the server will serve another request on the
// connection. llama.cpp's says so after a stream too, but ends the connection
// with it: a request that followed at once would be lost there, and whether it
// had been read nobody could tell.
func keeps(resp *http.Response) bool {
	streamed := len(resp.TransferEncoding) > 0
	return !resp.Close && (!streamed || resp.Header.Get("Server") != "llama.cpp")
}

// largeBody is from where on a body is written beside the reading: a server may
// answer that it is too long, and never read it. What is shorter finds room in
// the system's buffers.
const largeBody = 64 << 10

func (c *conn) send(head, body []byte, t *Trip) error {
	var n int64
	var err error
	if len(body) <= smallBody {
		var short int
		short, err = c.Write(append(head, body...))
		n = int64(short)
	} else {
		pieces := net.Buffers{head, body}
		n, err = pieces.WriteTo(c.Conn)
	}
	switch {
	case err == nil:
		t.sent()
		return nil
	case n == 0 && !isTimeout(err):
		return fmt.Errorf("%w: %w", errUnread, err)
	default:
		return fmt.Errorf("write request: %w", err)
	}
}

// most1xx bounds the answers before the answer.
const most1xx = 5

// head reads the answer's head.
func (c *conn) head() (*http.Response, error) {
	if c.answer == nil {
		c.answer = &http.Request{Method: http.MethodPost}
	}
	c.in.left = c.client.cfg.MaxHeader
	defer func() { c.in.left = -1 }()
	for range most1xx {
		resp, err := http.ReadResponse(c.read, c.answer)
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
			return nil, fmt.Errorf("read answer: %w", io.ErrUnexpectedEOF)
		case err != nil:
			return nil, fmt.Errorf("read answer: %w", err)
		case resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, fmt.Errorf("%w: %s", errStatus, resp.Status)
		case resp.StatusCode >= 200:
			return resp, nil
		}
	}
	return nil, fmt.Errorf("%w: more than %d before the answer", errStatus, most1xx)
}

// answer is an answer's body. At its end the connection may be used again; if
// it is closed before, or fails, the connection ends.
type answer struct {
	body io.Reader
	conn *conn // nil once it is given back or closed
	keep bool  // the server will serve another request on it
	err  error // what reading ended with
}

func (a *answer) Read(p []byte) (int, error) {
	if a.err != nil {
		return 0, a.err
	}
	n, err := a.body.Read(p)
	if err != nil {
		a.err = err
		a.end(a.keep && errors.Is(err, io.EOF))
	}
	return n, err
}

// Close ends the connection if the body was not read to its end.
func (a *answer) Close() error {
	if a.err == nil {
		a.err = http.ErrBodyReadAfterClose
	}
	a.end(false)
	return nil
}

// end gives the connection back or ends it, once.
func (a *answer) end(keep bool) {
	c := a.conn
	if c == nil {
		return
	}
	a.conn = nil
	if keep && c.rest() {
		c.client.idle.put(c)
		return
	}
	c.close()
}

// rest reports whether the connection can wait for another request: nothing of
// this one is under way any more, and nothing else has come.
func (c *conn) rest() bool {
	if c.writing != nil {
		select {
		case err := <-c.writing:
			c.writing = nil
			if err != nil {
				return false
			}
		default:
			return false
		}
	}
	if !c.stop() || c.read.Buffered() > 0 || c.deciphered() {
		return false
	}
	c.stop, c.used = nil, true
	return true
}

// deciphered reports whether a connection with TLS has taken more from the
// network than was read of it: neither the reader nor the system knows of that.
// Reading tells, where it may not wait: such a timeout does not stay with the
// connection.
func (c *conn) deciphered() bool {
	secured, ok := c.Conn.(*tls.Conn)
	if !ok {
		return false
	}
	if secured.SetReadDeadline(time.Unix(1, 0)) != nil {
		return true
	}
	if _, err := c.read.Peek(1); !isTimeout(err) {
		return true
	}
	return secured.SetReadDeadline(time.Time{}) != nil
}
