package notify

import (
	"errors"
	"net/http"
	"net/url"
	"time"
)

// ClientConfig bounds what one request may take. Zero takes the default.
type ClientConfig struct {
	Timeout   time.Duration // from the first connection to the end of the body; 30s
	Redirects int           // that are followed, each checked again; 0 follows none
	UserAgent string        // of requests that name none; "weir"
}

// NewClient makes an HTTP client on the dialer. It takes no proxy from the
// environment, keeps no cookies, sends no credentials and no referrer, decodes
// no compressed body (a small one could become a large one), and goes from
// https to nothing but https. The caller bounds what it reads of a body.
func NewClient(d *Dialer, c ClientConfig) *http.Client {
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.UserAgent == "" {
		c.UserAgent = "weir"
	}
	transport := &http.Transport{
		DialContext:            d.DialContext,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		TLSHandshakeTimeout:    connectTimeout,
		ResponseHeaderTimeout:  c.Timeout,
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConns:           64,
		MaxIdleConnsPerHost:    4,
		IdleConnTimeout:        30 * time.Second,
	}
	return &http.Client{
		Transport:     &guard{next: transport, agent: c.UserAgent},
		Timeout:       c.Timeout,
		CheckRedirect: func(req *http.Request, via []*http.Request) error { return checkRedirect(req, via, c.Redirects) },
	}
}

// CheckURL refuses what is no plain http or https URL. Which address it leads
// to is for the dialer to judge.
func CheckURL(u *url.URL) error {
	refused := func(reason string) error { return &RefusedError{Target: site(u), Reason: reason} }
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return refused("neither http nor https")
	case u.Hostname() == "":
		return refused("no host")
	case u.User != nil:
		return refused("credentials in it")
	default:
		return nil
	}
}

// site is a URL as far as it may be logged: paths and queries can have secrets.
func site(u *url.URL) string { return u.Scheme + "://" + u.Host }

// guard checks every request, the first and those of redirects alike.
type guard struct {
	next  http.RoundTripper
	agent string
}

func (g *guard) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := CheckURL(req.URL); err != nil {
		return nil, err
	}
	if req.Header.Get("User-Agent") == "" {
		req = req.Clone(req.Context())
		req.Header.Set("User-Agent", g.agent)
	}
	return g.next.RoundTrip(req)
}

// CloseIdleConnections lets http.Client close what it keeps.
func (g *guard) CloseIdleConnections() {
	if t, ok := g.next.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

var errRedirects = errors.New("too many redirects")

func checkRedirect(req *http.Request, via []*http.Request, most int) error {
	if len(via) > most {
		return errRedirects
	}
	if req.URL.Scheme != "https" && via[len(via)-1].URL.Scheme == "https" {
		return &RefusedError{Target: site(req.URL), Reason: "a redirect from https to http"}
	}
	req.Header.Del("Referer") // the address before may have a secret in its query
	return nil
}
