// Package upstream sends requests to model servers over HTTP/1.1. An exchange
// runs on its caller's goroutine alone, where net/http's client has two more for
// each connection: a gateway that carries thousands of open streams pays for
// them in memory, and in switches between them for each short answer.
package upstream

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Config sets a Client. Zero fields but Dial take the default that is named
// with them.
type Config struct {
	// Dial connects to a server.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS is for https; a config without a ServerName wants the URL's host.
	TLS       *tls.Config
	Handshake time.Duration // time limit of one with TLS (10 s)
	IdleFor   time.Duration // how long a connection waits for its next request (4 s)
	MaxIdle   int           // connections that wait, of each server (1024)
	MaxHeader int           // bytes of an answer's header (64 KiB)
}

// Client is a set of connections to model servers. It is safe for concurrent
// use.
type Client struct {
	cfg  Config
	idle idle
}

// New makes a Client.
func New(c Config) *Client {
	c.Handshake = cmp.Or(c.Handshake, 10*time.Second)
	c.IdleFor = cmp.Or(c.IdleFor, 4*time.Second)
	c.MaxIdle = cmp.Or(c.MaxIdle, 1024)
	c.MaxHeader = cmp.Or(c.MaxHeader, 64<<10)
	return &Client{cfg: c, idle: idle{keep: c.IdleFor, most: c.MaxIdle, hosts: make(map[string][]*conn)}}
}

// Close closes the connections that wait. Those in use are closed when their
// exchange ends.
func (c *Client) Close() { c.idle.close() }

// Request is a POST.
type Request struct {
	Base   string      // http or https, host and perhaps the beginning of the path
	Path   string      // begins with a slash
	Header [][2]string // beside Host and Content-Length
	Body   []byte      // not to be changed until Trip.Written
}

// Trip is what became of a request. Its owner may read it while the request is
// under way.
type Trip struct {
	// OnConnect is called once a connection is there. Nil is fine.
	OnConnect func()

	mu                         sync.Mutex
	connected, reused, written bool
}

// Connected reports whether a connection was there.
func (t *Trip) Connected() bool { return t.get(&t.connected) }

// Reused reports whether it was one that had waited, so that the server may
// have closed it meanwhile.
func (t *Trip) Reused() bool { return t.get(&t.reused) }

// Written reports whether the whole request was sent. The body isn't read from
// then on.
func (t *Trip) Written() bool { return t.get(&t.written) }

func (t *Trip) get(b *bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return *b
}

func (t *Trip) met(c *conn) {
	t.mu.Lock()
	t.connected, t.reused = true, c.used
	t.mu.Unlock()
	if t.OnConnect != nil {
		t.OnConnect()
	}
}

func (t *Trip) sent() {
	t.mu.Lock()
	t.written = true
	t.mu.Unlock()
}

// Do sends a request and returns the answer's head, whatever its status. It
// follows nothing, decodes nothing and keeps no cookies. The body must be read
// to its end or closed; at its end the connection waits for the next request.
//
// What the server provably never read, since it had closed a waiting connection
// or not a byte could be written to it, is sent again over another: each time
// there is one waiting connection less. A connection that breaks later proves
// nothing, for the request may have broken the server. When ctx ends, so does
// all reading and writing; the error is then the network's, and ctx says why.
func (c *Client) Do(ctx context.Context, r *Request, t *Trip) (*http.Response, error) {
	to, err := locate(r.Base)
	if err != nil {
		return nil, err
	}
	head, err := appendHead(make([]byte, 0, headRoom(r)), to, r)
	if err != nil {
		return nil, err
	}
	for {
		conn, err := c.connect(ctx, to)
		if err != nil {
			return nil, err
		}
		t.met(conn)
		conn.begin(ctx)
		resp, err := conn.exchange(head, r.Body, t)
		if err == nil {
			return resp, nil
		}
		conn.close()
		if !errors.Is(err, errUnread) || !conn.used || ctx.Err() != nil {
			return nil, err
		}
	}
}

// place is where a base URL leads.
type place struct{ key, addr, host, path string } // the key tells http from https

// locate is url.Parse for what a base URL may be.
func locate(base string) (place, error) {
	scheme, rest, ok := strings.Cut(base, "://")
	host, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		host, path = rest[:i], strings.TrimSuffix(rest[i:], "/")
	}
	if !ok || scheme != "http" && scheme != "https" || host == "" || strings.ContainsAny(rest, " @?#\r\n") {
		return place{}, fmt.Errorf("%w: %.100q", errURL, base)
	}
	to := place{key: scheme + "://" + host, addr: host, host: host, path: path}
	if !strings.Contains(host[strings.IndexByte(host, ']')+1:], ":") {
		to.addr += map[string]string{"http": ":80", "https": ":443"}[scheme]
	}
	return to, nil
}

func (p place) secure() bool { return strings.HasPrefix(p.key, "https") }

// smallBody is up to where a body is copied behind the head, to be written in
// one piece.
const smallBody = 16 << 10

func headRoom(r *Request) int {
	n := 256
	for _, h := range r.Header {
		n += len(h[0]) + len(h[1]) + 4
	}
	if len(r.Body) <= smallBody {
		n += len(r.Body)
	}
	return n
}

// appendHead writes the request's head. A header that would end its line early
// is refused.
func appendHead(b []byte, to place, r *Request) ([]byte, error) {
	b = append(append(append(append(b, "POST "...), to.path...), r.Path...), " HTTP/1.1\r\nHost: "...)
	b = append(append(b, to.host...), "\r\nContent-Length: "...)
	b = append(strconv.AppendInt(b, int64(len(r.Body)), 10), "\r\n"...)
	for _, h := range r.Header {
		if h[0] == "" || strings.ContainsAny(h[0], ": \t\r\n\x00") || strings.ContainsAny(h[1], "\r\n\x00") {
			return nil, fmt.Errorf("%w: %.100q", errHeader, h[0])
		}
		b = append(append(append(append(b, h[0]...), ": "...), h[1]...), "\r\n"...)
	}
	return append(b, "\r\n"...), nil
}

var (
	errURL    = errors.New("not the base URL of a model server")
	errHeader = errors.New("a header that can't be sent")
	errUnread = errors.New("the server read nothing")
	errStatus = errors.New("a status that is no answer to a POST")
)

// connect takes a waiting connection, or opens one.
func (c *Client) connect(ctx context.Context, to place) (*conn, error) {
	if waiting := c.idle.take(to.key); waiting != nil {
		return waiting, nil
	}
	raw, err := c.cfg.Dial(ctx, "tcp", to.addr)
	if err != nil {
		return nil, err
	}
	fresh := &conn{Conn: raw, client: c, key: to.key}
	if to.secure() {
		secured, err := c.handshake(ctx, raw, to)
		if err != nil {
			_ = raw.Close()
			return nil, err
		}
		fresh.Conn = secured
	}
	fresh.in.conn = fresh.Conn
	fresh.read = bufio.NewReader(&fresh.in)
	return fresh, nil
}

func (c *Client) handshake(ctx context.Context, raw net.Conn, to place) (net.Conn, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.cfg.TLS != nil {
		conf = c.cfg.TLS.Clone()
	}
	if conf.ServerName == "" {
		u := url.URL{Host: to.host}
		conf.ServerName = u.Hostname()
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Handshake)
	defer cancel()
	secured := tls.Client(raw, conf)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	return secured, nil
}

// isTimeout is what reading and writing end with when the exchange's context
// did.
func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
