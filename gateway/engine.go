package gateway

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"weir/gateway/catalogue"
	"weir/gateway/upstream"
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

	mu      sync.Mutex
	clients map[trust]*upstream.Client
	salts   map[salted]string
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
		clients: make(map[trust]*upstream.Client), salts: make(map[salted]string),
	}
}

// cacheSalt seeds the engine's prefix cache, so that no tenant can find out
// what another one has asked.
func (e *engines) cacheSalt(t tenants.ID, model string) string {
	of := salted{t, model}
	e.mu.Lock()
	known := e.salts[of]
	e.mu.Unlock()
	if known != "" {
		return known
	}
	salt := e.newSalt(t, model)
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.salts) >= maxSalts {
		clear(e.salts)
	}
	e.salts[of] = salt
	return salt
}

// salted is whom a cache salt is for.
type salted struct {
	tenant tenants.ID
	model  string
}

// maxSalts bounds the salts that are remembered.
const maxSalts = 10_000

func (e *engines) newSalt(t tenants.ID, model string) string {
	mac := hmac.New(sha256.New, e.salt)
	mac.Write([]byte(string(t) + "|" + model))
	return hex.EncodeToString(mac.Sum(nil))
}

// engineBody is the JSON for the engine: what we set, then the caller's
// fields, copied once.
func engineBody(c *Call, m *catalogue.Model, p *catalogue.Pool, salt string) []byte {
	plain := p.RunsOn(llamaCPP)
	b := appendJSON(append(c.buffer(len(c.Fields)+len(salt)+256), `{"model":`...), engineName(m))
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
	if c.Operation.asksTiers() && p.RunsOn(sglang) {
		b = append(b, askTiers...)
	}
	if len(c.Fields) > 0 {
		b = append(append(b, ','), c.Fields...)
	}
	return append(b, '}')
}

// buffer is empty and has room for n bytes.
func (c *Call) buffer(n int) []byte {
	if c.Alloc == nil {
		return make([]byte, 0, n)
	}
	return c.Alloc(n)[:0]
}

// engineName is what the model is called at its engine.
func engineName(m *catalogue.Model) string {
	if m.EngineModel != "" {
		return m.EngineModel
	}
	return m.Name
}

// post sends one attempt and returns the answer, whatever its status. The body
// is bytes in memory: one that were still read from the caller could be cut by
// the server's own reading, in mid-stream.
func (e *engines) post(ctx context.Context, trip *upstream.Trip, to *destination, body []byte) (*http.Response, error) {
	client, err := e.client(to.trust)
	if err != nil {
		return nil, err
	}
	header := make([][2]string, 0, 5+len(to.target.Headers))
	header = append(header, [2]string{"Content-Type", "application/json"}, [2]string{"Accept", to.accept},
		[2]string{"X-Request-Id", to.requestID}, [2]string{"User-Agent", "weir"})
	if name := to.keyEnv; name != "" && e.secrets != nil {
		header = append(header, [2]string{"Authorization", "Bearer " + e.secrets(name)})
	}
	return client.Do(ctx, &upstream.Request{
		Base: to.target.URL, Path: to.path, Header: append(header, to.target.Headers...), Body: body,
	}, trip)
}

// destination is where and as what one attempt goes.
type destination struct {
	target    scheduler.Target
	engine    string // its kind
	trust     trust
	keyEnv    string // variable with the engine's key; empty: none
	path      string
	accept    string
	requestID string // "<request id>.<attempt>"
}

// newDestination is the target, with what the catalogue says of its endpoint.
func newDestination(t scheduler.Target, e *catalogue.Endpoint) *destination {
	return &destination{target: t, engine: e.Engine, trust: trustOf(*e), keyEnv: e.APIKeyEnv}
}

// client returns the one that trusts so. There are as many as the catalogue
// names files and server names.
func (e *engines) client(to trust) (*upstream.Client, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.clients[to]; c != nil {
		return c, nil
	}
	conf, err := to.config()
	if err != nil {
		return nil, err
	}
	c := upstream.New(upstream.Config{Dial: e.dial, TLS: conf, IdleFor: idleConn})
	e.clients[to] = c
	return c, nil
}

// certPool reads the certificates that sign an engine's.
func certPool(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("CA: %w", err)
	}
	return certificates(pem, file)
}

// certificates reads PEM that came from somewhere.
func certificates(pem []byte, from string) (*x509.CertPool, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("CA %s: %w", from, errNoCertificate)
	}
	return roots, nil
}

// close gives back the idle connections.
func (e *engines) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.clients {
		c.Close()
	}
}
