package upstream_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"weir/gateway/upstream"
)

// oneFlight keeps what is written while it is held, and sends it as one.
type oneFlight struct {
	net.Conn
	held *bytes.Buffer // nil: it is not
}

func (c *oneFlight) Write(p []byte) (int, error) {
	if c.held != nil {
		return c.held.Write(p)
	}
	return c.Conn.Write(p)
}

func (c *oneFlight) send() error {
	all := c.held.Bytes()
	c.held = nil
	_, err := c.Conn.Write(all)
	return err
}

// talkative answers each request with its body and, in the same flight, writes
// more than it announced. It returns its URL and the client's settings.
func talkative(t *testing.T, length int, pieces func(answer string) []string) (string, *tls.Config) {
	t.Helper()
	known := httptest.NewTLSServer(nil) // for its certificate
	t.Cleanup(known.Close)
	settings := known.TLS.Clone()
	settings.DynamicRecordSizingDisabled = true // a piece is a record
	settings.NextProtos = nil
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = raw.Close() })
			go talk(raw, settings, length, pieces)
		}
	}()
	transport, _ := known.Client().Transport.(*http.Transport)
	return "https://" + l.Addr().String(), transport.TLSClientConfig
}

func talk(raw net.Conn, settings *tls.Config, length int, pieces func(string) []string) {
	flight := &oneFlight{Conn: raw}
	conn := tls.Server(flight, settings)
	read := bufio.NewReader(conn)
	for {
		req, err := http.ReadRequest(read)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Fill: ", length)
		fill := max(0, 4096-len(head)-len("\r\n\r\n"))
		answer := head + strings.Repeat("f", fill) + "\r\n\r\n" + string(body) + strings.Repeat(".", length-len(body))
		flight.held = &bytes.Buffer{}
		for _, piece := range pieces(answer) {
			if _, err := io.WriteString(conn, piece); err != nil {
				return
			}
		}
		if flight.send() != nil {
			return
		}
	}
}

// What a server writes beyond an answer is nobody's answer: whoever asks next
// may be another tenant.
func TestNoRequestIsAnsweredByWhatIsLeftOfTheOneBefore(t *testing.T) {
	t.Parallel()
	const other = "another tenant's"
	foreign := func(n int) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", n, other+strings.Repeat("!", n-len(other)))
	}
	for name, pieces := range map[string]func(answer string) []string{
		"a few bytes of the same record":          func(a string) []string { return []string{a + foreign(20)} },
		"more of the same record than is read at": func(a string) []string { return []string{a + foreign(5000)} },
		"a record of its own":                     func(a string) []string { return []string{a, foreign(20)} },
		"a large record of its own":               func(a string) []string { return []string{a, foreign(5000)} },
		"more than one record":                    func(a string) []string { return []string{a, foreign(40_000)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, length := range []int{10, 4096} { // the answer ends within what is read at once, or with it
				base, settings := talkative(t, length, pieces)
				c := client(t, upstream.Config{TLS: settings})
				for _, body := range []string{"first", "second"} {
					got, trip, err := ask(t.Context(), c, base, body)
					if err != nil || !strings.HasPrefix(got, "200 "+body+".") {
						t.Errorf("%s got %.40q (%v)", body, got, err)
					}
					if trip.Reused() {
						t.Errorf("%s used a connection on which more had come", body)
					}
				}
			}
		})
	}
}

// The look for a surplus costs no connection that has none.
func TestAConnectionWithTLSIsUsedAgain(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, settings := talkative(t, 100, func(answer string) []string { return []string{answer} })
			settings = settings.Clone()
			settings.MinVersion, settings.MaxVersion = version, version
			c := client(t, upstream.Config{TLS: settings})
			for i := range 5 {
				body := fmt.Sprintf("the %dth", i)
				got, trip, err := ask(t.Context(), c, base, body)
				if err != nil || !strings.HasPrefix(got, "200 "+body+".") || trip.Reused() != (i > 0) {
					t.Errorf("got %.40q (%v), reused %v", got, err, trip.Reused())
				}
			}
		})
	}
}
