package notify

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
)

// loopback allows the test's own servers.
func loopback(t *testing.T, servers ...*httptest.Server) *Dialer {
	t.Helper()
	c := Config{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}, Ports: []uint16{}}
	for _, s := range servers {
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		c.Ports = append(c.Ports, netip.MustParseAddrPort(u.Host).Port())
	}
	return NewDialer(c)
}

func get(t *testing.T, client *http.Client, address string) (*http.Response, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res, string(body), err
}

func TestRedirectsAreCheckedAgain(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "inside") }))
	t.Cleanup(other.Close)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
	}))
	t.Cleanup(secure.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch hops := r.URL.Query().Get("hops"); {
		case r.URL.Query().Get("to") != "":
			http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusFound)
		case hops != "":
			http.Redirect(w, r, "/?hops="+hops[1:]+"&secret=1", http.StatusFound)
		default:
			_, _ = io.WriteString(w, "referer="+r.Referer()+" cookie="+r.Header.Get("Cookie")+" agent="+r.UserAgent())
		}
	}))
	t.Cleanup(server.Close)
	client := NewClient(loopback(t, server, secure), ClientConfig{Redirects: 3})
	guarded, ok := client.Transport.(*guard)
	if !ok {
		t.Fatal("the transport is not guarded")
	}
	transport, ok := guarded.next.(*http.Transport)
	if !ok || transport.Proxy != nil {
		t.Fatal("a proxy may be taken from the environment")
	}
	pool := secure.Client().Transport.(*http.Transport).TLSClientConfig
	transport.TLSClientConfig = pool.Clone()

	for _, tt := range []struct{ name, url, reason string }{
		{"to a port that is not allowed", server.URL + "?to=" + other.URL, "port"},
		{"to metadata", server.URL + "?to=http://169.254.169.254:" + port(t, server) + "/", "link-local"},
		{"to another scheme", server.URL + "?to=file:///etc/passwd", "neither http nor https"},
		{"to credentials", server.URL + "?to=" + strings.Replace(server.URL, "//", "//user:password@", 1), "credentials"},
		{"from https to http", secure.URL + "?to=" + server.URL, "https to http"},
		{"a fourth one", server.URL + "?hops=4321", "too many redirects"},
	} {
		t.Run(tt.name+" is refused", func(t *testing.T) {
			t.Parallel()
			_, body, err := get(t, client, tt.url)
			if err == nil || !strings.Contains(err.Error(), tt.reason) {
				t.Errorf("%v, %q", err, body)
			}
			if err != nil && strings.Contains(err.Error(), "password") {
				t.Errorf("the password is shown: %v", err)
			}
		})
	}
	res, body, err := get(t, client, server.URL+"?hops=321")
	if err != nil || res.StatusCode != http.StatusOK || body != "referer= cookie= agent=weir" {
		t.Errorf("three redirects: %v %q", err, body)
	}
	if _, _, err := get(t, NewClient(loopback(t, server), ClientConfig{}), server.URL+"?hops=1"); !errors.Is(err, errRedirects) {
		t.Errorf("a client that follows none: %v", err)
	}
}

func port(t *testing.T, s *httptest.Server) string {
	t.Helper()
	_, p, ok := strings.Cut(strings.TrimPrefix(s.URL, "http://"), ":")
	if !ok {
		t.Fatal(s.URL)
	}
	return p
}

func TestURLsArePlain(t *testing.T) {
	t.Parallel()
	for address, ok := range map[string]bool{
		"http://example.com/a.png": true, "https://example.com:443/a?b=c": true, "HTTPS://example.com": true,
		"ftp://example.com/a": false, "file:///etc/passwd": false, "http:///a": false, "http://u@example.com/": false,
		"https://u:p@example.com/": false, "gopher://example.com": false, "/relative": false, "data:image/png;base64,AA": false,
	} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		if err := CheckURL(u); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}
