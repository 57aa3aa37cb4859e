// Package zmtp speaks ZMTP 3.1, the wire protocol of ZeroMQ, over a connection
// that somebody else made: https://rfc.zeromq.org/spec/37/. It has what it takes
// to follow what an engine publishes, and no queues, no reconnecting and no
// security of its own: the mechanism is NULL, and a connection that is to be
// secret is a TLS connection.
//
// All that a peer may send is bounded, which is why it exists: libraries take a
// frame's length at its word.
package zmtp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// The flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

const (
	greetingSize = 64
	maxFrames    = 16
	maxCommand   = 4 << 10
	maxHeld      = 4096
	// patience is how long a peer may take for the handshake, or for a message
	// that it has begun.
	patience = 10 * time.Second
	// idle is after how long a silent peer is asked whether it lives.
	idle = 10 * time.Second
)

// ErrProtocol is a peer that doesn't speak as it should.
var ErrProtocol = errors.New("not as ZMTP has it")

// Conn is a connection between two sockets of ZeroMQ. One goroutine may receive
// while another sends, except that a receiver answers pings.
type Conn struct {
	conn  net.Conn
	in    *bufio.Reader
	limit int
	pings bool       // the peer answers them
	pongs int        // that it has
	until int        // how many of them Sync waits for; 0: it doesn't
	held  [][][]byte // messages that came meanwhile
	bytes int        // of those
}

// Open does the handshake as a socket of a type (SUB, PUB, DEALER, ROUTER) over
// a connection. Messages of more than limit bytes are refused. The connection
// is the caller's to close, also after an error.
func Open(c net.Conn, socket string, limit int) (*Conn, error) {
	z := &Conn{conn: c, in: bufio.NewReaderSize(c, 64<<10), limit: limit}
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if err := z.greet(socket); err != nil {
		return nil, fmt.Errorf("zmtp handshake with %s: %w", c.RemoteAddr(), err)
	}
	return z, c.SetDeadline(time.Time{})
}

func (c *Conn) greet(socket string) error {
	out := make([]byte, greetingSize)
	out[0], out[9] = 0xff, 0x7f
	out[10], out[11] = 3, 1
	copy(out[12:32], "NULL")
	if _, err := c.conn.Write(out); err != nil {
		return err
	}
	var in [greetingSize]byte
	if _, err := io.ReadFull(c.in, in[:]); err != nil {
		return err
	}
	mechanism := strings.TrimRight(string(in[12:32]), "\x00")
	switch {
	case in[0] != 0xff || in[9]&1 == 0 || in[10] < 3:
		return fmt.Errorf("%w: no greeting of version 3", ErrProtocol)
	case mechanism != "NULL":
		return fmt.Errorf("%w: the peer wants the mechanism %.20q", ErrProtocol, mechanism)
	}
	c.pings = in[10] > 3 || in[11] >= 1
	ready := property([]byte("\x05READY"), "Socket-Type", socket)
	if err := c.command(property(ready, "Identity", "")); err != nil {
		return err
	}
	flags, body, err := c.frame()
	if err != nil {
		return err
	}
	if name, _ := command(body); flags&flagCommand == 0 || name != "READY" {
		return fmt.Errorf("%w: no READY", ErrProtocol)
	}
	return nil
}

func property(to []byte, name, value string) []byte {
	to = append(append(to, byte(len(name))), name...)          //nolint:gosec // our own words
	to = binary.BigEndian.AppendUint32(to, uint32(len(value))) //nolint:gosec // our own words
	return append(to, value...)
}

// command splits the body of a command.
func command(body []byte) (name string, data []byte) {
	if len(body) == 0 || len(body) < 1+int(body[0]) {
		return "", nil
	}
	return string(body[1 : 1+body[0]]), body[1+body[0]:]
}

// frame reads one frame.
func (c *Conn) frame() (flags byte, body []byte, err error) {
	if flags, err = c.in.ReadByte(); err != nil {
		return 0, nil, err
	}
	var size uint64
	if flags&flagLong == 0 {
		n, err := c.in.ReadByte()
		if err != nil {
			return 0, nil, unexpected(err)
		}
		size = uint64(n)
	} else {
		var b [8]byte
		if _, err := io.ReadFull(c.in, b[:]); err != nil {
			return 0, nil, unexpected(err)
		}
		size = binary.BigEndian.Uint64(b[:])
	}
	limit := c.limit
	if flags&flagCommand != 0 {
		limit = maxCommand
	}
	if size > uint64(limit) {
		return 0, nil, fmt.Errorf("%w: a frame of %d bytes, at most %d are taken", ErrProtocol, size, limit)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(c.in, body)
	return flags, body, unexpected(err)
}

// unexpected makes an end within a frame an error of its own.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (c *Conn) command(body []byte) error {
	return c.writeAll(appendFrame(nil, flagCommand, body))
}

func (c *Conn) writeAll(b []byte) error {
	if err := c.conn.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err := c.conn.Write(b)
	return err
}

func appendFrame(to []byte, flags byte, body []byte) []byte {
	if len(body) > 255 {
		to = append(to, flags|flagLong)
		to = binary.BigEndian.AppendUint64(to, uint64(len(body)))
	} else {
		to = append(to, flags, byte(len(body))) //nolint:gosec // as much as fits
	}
	return append(to, body...)
}

// Send sends one message.
func (c *Conn) Send(frames ...[]byte) error {
	var b []byte
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		b = appendFrame(b, flags, f)
	}
	return c.writeAll(b)
}

// Subscribe asks a publisher for the messages whose first frame begins so.
func (c *Conn) Subscribe(topic string) error { return c.Send(append([]byte{1}, topic...)) }

// Sync waits until the peer has read all that was sent to it, a subscription
// for one. Meanwhile a peer may send as much as one message may hold. One of an
// older version can't tell.
func (c *Conn) Sync() error {
	if !c.pings {
		return nil
	}
	c.until = c.pongs + 1
	defer func() { c.until = 0 }()
	if err := c.command([]byte("\x04PING\x00\x00")); err != nil {
		return err
	}
	for c.pongs < c.until {
		m, err := c.receive()
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		c.held = append(c.held, m)
		for _, frame := range m {
			c.bytes += len(frame)
		}
		if len(c.held) > maxHeld || c.bytes > c.limit {
			return fmt.Errorf("%w: no answer to a ping before %d messages of %d bytes", ErrProtocol, len(c.held), c.bytes)
		}
	}
	return nil
}

// Receive waits for the next message. A peer that is silent and can be asked
// whether it lives is, and has to answer. What is returned is the caller's, and
// nothing of it is kept.
func (c *Conn) Receive() ([][]byte, error) {
	if len(c.held) > 0 {
		m := c.held[0]
		c.held[0], c.held = nil, c.held[1:]
		return m, nil
	}
	return c.receive()
}

// receive returns nothing at the pong for which Sync waits.
func (c *Conn) receive() (frames [][]byte, err error) {
	if err := c.await(); err != nil {
		return nil, err
	}
	if err := c.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	for total := 0; ; {
		flags, body, err := c.frame()
		switch {
		case err != nil && len(frames) > 0:
			return nil, unexpected(err)
		case err != nil:
			return nil, err
		case flags&flagCommand != 0:
			message, err := c.obey(body)
			if message != nil || err != nil || c.until > 0 && c.pongs >= c.until {
				return message, err
			}
			if err := c.await(); err != nil {
				return nil, err
			}
			continue
		}
		frames = append(frames, body)
		if total += len(body); total > c.limit || len(frames) > maxFrames {
			return nil, fmt.Errorf("%w: a message of %d bytes in %d frames", ErrProtocol, total, len(frames))
		}
		if flags&flagMore == 0 {
			return frames, nil
		}
	}
}

// await waits for the first byte of something.
func (c *Conn) await() error {
	for asked := false; ; asked = true {
		var until time.Time
		if c.pings {
			until = time.Now().Add(idle)
		}
		if err := c.conn.SetReadDeadline(until); err != nil {
			return err
		}
		_, err := c.in.Peek(1)
		var late net.Error
		switch {
		case err == nil:
			return c.conn.SetReadDeadline(time.Now().Add(patience))
		case asked || !errors.As(err, &late) || !late.Timeout():
			return err
		}
		if err := c.command([]byte("\x04PING\x00\x00")); err != nil {
			return err
		}
	}
}

// obey does what a command says. A subscription is a message as older versions
// have it.
func (c *Conn) obey(body []byte) (message [][]byte, err error) {
	switch name, data := command(body); name {
	case "PING":
		if len(data) < 2 {
			return nil, fmt.Errorf("%w: a short PING", ErrProtocol)
		}
		return nil, c.command(append([]byte("\x04PONG"), data[2:]...))
	case "PONG":
		c.pongs++
		return nil, nil
	case "SUBSCRIBE":
		return [][]byte{append([]byte{1}, data...)}, nil
	case "CANCEL":
		return [][]byte{append([]byte{0}, data...)}, nil
	case "ERROR":
		return nil, fmt.Errorf("%w: the peer says %.100q", ErrProtocol, data)
	default:
		return nil, nil // what later versions have
	}
}
