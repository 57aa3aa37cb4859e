package gateway

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"weir/gateway/catalogue"
	"weir/scheduler"
	"weir/tenants"
)

// llamaCPP is the engine kind that doesn't know vLLM's extensions.
const llamaCPP = "llamacpp"

// idleConn is how long a connection waits for its next request. Most model
// servers close theirs after 5 s; the side that sends has to be the first, or
// a request meets the closing of its connection.
const idleConn = 4 * time.Second

var errNoCertificate = errors.New("no certificate in the file")

// engines sends requests to model servers. Every header and every member that
// this package sets comes from our own records.
type engines struct {
	salt    []byte
	secrets func(env string) string
	dial    func(ctx context.Context, network, addr string) (net.Conn, error)

	mu         sync.Mutex
	transports map[trust]*http.Transport
}

// trust is what makes an engine's certificate the right one. The zero value
// trusts the system's roots and wants the URL's host on it.
type trust struct{ caFile, serverName string }

func trustOf(e catalogue.Endpoint) trust { return trust{e.CAFile, e.ServerName} }

func (t trust) config() (*tls.Config, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.serverName}
	if t.caFile == "" {
		return conf, nil
	}
	var err error
	conf.RootCAs, err = certPool(t.caFile)
	return conf, err
}

func newEngines(cfg Config) *engines {
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	return &engines{
		salt: cfg.SaltSecret, secrets: cfg.Secrets, dial: dial,
		transports: make(map[trust]*http.Transport),
	}
}

// cacheSalt seeds the engine's prefix cache, so that no tenant can find out
// what another one has asked.
func (e *engines) cacheSalt(t tenants.ID, model string) string {
	mac := hmac.New(sha256.New, e.salt)
	mac.Write([]byte(string(t) + "|" + model))
	return hex.EncodeToString(mac.Sum(nil))
}

// engineBody is the JSON for the engine: what we set, then the caller's
// fields, copied once.
func engineBody(c *Call, m *catalogue.Model, p *catalogue.Pool, salt string) []byte {
	plain := p.RunsOn(llamaCPP)
	b := make([]byte, 0, len(c.Fields)+len(salt)+256)
	b = append(append(b, `{"model":`...), quoteJSON(engineName(m))...)
	if !plain {
		b = append(append(append(b, `,"cache_salt":"`...), salt...), '"')
	}
	switch {
	case !c.Stream:
	case c.Operation == Responses: // whose streams end with the usage anyway
		b = append(b, `,"stream":true`...)
	case plain:
		b = append(b, `,"stream":true,"stream_options":{"include_usage":true}`...)
	default:
		b = append(b, `,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`...)
	}
	if len(c.Fields) > 0 {
		b = append(append(b, ','), c.Fields...)
	}
	return append(b, '}')
}

// engineName is what the model is called at its engine.
func engineName(m *catalogue.Model) string {
	if m.EngineModel != "" {
		return m.EngineModel
	}
	return m.Name
}

// delivery is how far a request came. The transport's goroutines write it.
type delivery struct {
	onConnect func() // called when there is a connection

	body   []byte        // until it is dropped
	reader *bytes.Reader // of body, in the transport's hands until written

	connected atomic.Bool // a connection was there
	reused    atomic.Bool // it was one that had waited, so the engine may have closed it meanwhile
	written   atomic.Bool // the whole request was sent
}

func (d *delivery) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) {
			d.connected.Store(true)
			d.reused.Store(i.Reused)
			d.onConnect()
		},
		WroteRequest: func(i httptrace.WroteRequestInfo) { d.written.Store(i.Err == nil) },
	}
}

// request builds an attempt's request.
func (d *delivery) request(ctx context.Context, url string, body []byte) (*http.Request, error) {
	d.body, d.reader = body, bytes.NewReader(body)
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(ctx, d.trace()), http.MethodPost, url, d.reader)
	if err != nil {
		return nil, fmt.Errorf("build request: %w", err)
	}
	req.GetBody = func() (io.ReadCloser, error) { // where a waiting connection turns out to be closed
		d.reader = bytes.NewReader(d.body)
		return io.NopCloser(d.reader), nil
	}
	return req, nil
}

// drop forgets the body, which net/http would else hold until the answer has
// ended. It reports false while the body is still being sent.
func (d *delivery) drop() bool {
	if !d.written.Load() {
		return false
	}
	d.body = nil
	d.reader.Reset(nil)
	return true
}

// closedIdle is the text of net/http's error for a connection of which it read
// the end before it counted on an answer. The error itself is not exported.
const closedIdle = "http: server closed idle connection"

// unread reports whether err proves that the engine read nothing of the
// request: it had closed the waiting connection on which we were about to send.
// (Where not a byte was written, net/http itself takes another connection.) A
// connection that breaks later proves nothing, for the request may have broken
// the engine.
func (d *delivery) unread(err error) bool { return d.reused.Load() && err.Error() == closedIdle }

// post sends one attempt and returns the answer, whatever its status. What the
// engine provably never read is sent again, on another connection: each time it
// happens, there is one waiting connection less. The body is bytes in memory:
// one that were still read from the caller could be cut by the server's own
// reading, in mid-stream.
func (e *engines) post(ctx context.Context, d *delivery, to destination, body []byte) (*http.Response, error) {
	req, err := d.request(ctx, to.target.URL+to.path, body)
	if err != nil {
		return nil, err
	}
	transport, err := e.transport(trustOf(to.endpoint))
	if err != nil {
		return nil, err
	}
	h := req.Header
	for _, kv := range to.target.Headers {
		h.Add(kv[0], kv[1])
	}
	h.Set("Content-Type", "application/json")
	h.Set("Accept", to.accept)
	h.Set("X-Request-Id", to.requestID)
	h.Set("User-Agent", "weir")
	if name := to.endpoint.APIKeyEnv; name != "" && e.secrets != nil {
		h.Set("Authorization", "Bearer "+e.secrets(name))
	}
	for { // by RoundTrip: no redirects, no cookies; an engine has no business with either
		resp, err := transport.RoundTrip(req)
		if err == nil || !d.unread(err) || ctx.Err() != nil {
			return resp, err
		}
		if req.Body, err = req.GetBody(); err != nil {
			return nil, err
		}
	}
}

// destination is where and as what one attempt goes.
type destination struct {
	target    scheduler.Target
	endpoint  catalogue.Endpoint
	path      string
	accept    string
	requestID string // "<request id>.<attempt>"
}

// transport returns the one that trusts so. There are as many as the catalogue
// names files and server names.
func (e *engines) transport(to trust) (*http.Transport, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.transports[to]; t != nil {
		return t, nil
	}
	conf, err := to.config()
	if err != nil {
		return nil, err
	}
	var http1 http.Protocols
	http1.SetHTTP1(true)
	t := &http.Transport{
		DialContext:            e.dial,
		TLSClientConfig:        conf,
		TLSHandshakeTimeout:    10 * time.Second,
		Protocols:              &http1,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    1024,
		IdleConnTimeout:        idleConn,
		MaxResponseHeaderBytes: 64 << 10,
	}
	e.transports[to] = t
	return t, nil
}

// certPool reads the certificates that sign an engine's.
func certPool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("engine CA: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("engine CA %s: %w", file, errNoCertificate)
	}
	return roots, nil
}

// close gives back the idle connections.
func (e *engines) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, t := range e.transports {
		t.CloseIdleConnections()
	}
}
