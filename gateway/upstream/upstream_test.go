package upstream_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/gateway/upstream"
)

// server counts the connections that it takes.
type server struct {
	*httptest.Server
	conns atomic.Int64
}

func serve(tb testing.TB, h http.HandlerFunc) *server {
	tb.Helper()
	s := &server{Server: httptest.NewUnstartedServer(h)}
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			s.conns.Add(1)
		}
	}
	s.Start()
	tb.Cleanup(s.Close)
	return s
}

func client(tb testing.TB, c upstream.Config) *upstream.Client {
	tb.Helper()
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	made := upstream.New(c)
	tb.Cleanup(made.Close)
	return made
}

// ask sends a body and returns the whole answer.
func ask(ctx context.Context, c *upstream.Client, base, body string) (string, *upstream.Trip, error) {
	trip := &upstream.Trip{}
	resp, err := c.Do(ctx, &upstream.Request{Base: base, Path: "/v1/x", Header: [][2]string{{"X-Name", "value"}}, Body: []byte(body)}, trip)
	if err != nil {
		return "", trip, err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return fmt.Sprintf("%d %s", resp.StatusCode, all), trip, err
}

func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = fmt.Fprintf(w, "%s %s %s %s %d %d", r.Method, r.Host, r.URL.Path, r.Header.Get("X-Name"), r.ContentLength, len(body))
}

func TestARequestArrivesWholeOnOneConnectionAfterAnother(t *testing.T) {
	t.Parallel()
	s := serve(t, echo)
	c := client(t, upstream.Config{})
	host := strings.TrimPrefix(s.URL, "http://")
	for i, size := range []int{0, 5, 16 << 10, 16<<10 + 1, 64 << 10, 64<<10 + 1, 3 << 20} {
		got, trip, err := ask(t.Context(), c, s.URL+"/e/7", strings.Repeat("x", size))
		want := fmt.Sprintf("200 POST %s /e/7/v1/x value %d %d", host, size, size)
		if err != nil || got != want {
			t.Errorf("%d bytes: got %q (%v), want %q", size, got, err, want)
		}
		if !trip.Connected() || !trip.Written() || trip.Reused() != (i > 0) {
			t.Errorf("%d bytes: connected %v, written %v, reused %v", size, trip.Connected(), trip.Written(), trip.Reused())
		}
	}
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections, want 1", n)
	}
}

// asLlama answers with the name of a server that ends its streams' connections
// without saying so.
func asLlama(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "llama.cpp")
		h(w, r)
	}
}

func TestAConnectionIsUsedAgainOnlyWhereTheAnswerWasReadToItsEnd(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		read    int64 // bytes before the body is closed; negative: all
		want    int64 // connections of two requests
	}{
		"with a length":     {echo, -1, 1},
		"in chunks":         {func(w http.ResponseWriter, _ *http.Request) { flush(w, "a", "b") }, -1, 1},
		"by llama.cpp":      {asLlama(echo), -1, 1},
		"and in chunks":     {asLlama(func(w http.ResponseWriter, _ *http.Request) { flush(w, "a", "b") }), -1, 2},
		"without a body":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, -1, 1},
		"not to its end":    {func(w http.ResponseWriter, _ *http.Request) { flush(w, "abc", "d") }, 2, 2},
		"not at all":        {echo, 0, 2},
		"which closes":      {func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Connection", "close"); echo(w, r) }, -1, 2},
		"an error's too":    {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadRequest) }, -1, 1},
		"after early hints": {func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusEarlyHints); echo(w, r) }, -1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, tt.handler)
			c := client(t, upstream.Config{})
			for range 2 {
				resp, err := c.Do(t.Context(), &upstream.Request{Base: s.URL, Path: "/", Body: []byte("{}")}, &upstream.Trip{})
				if err != nil {
					t.Fatal(err)
				}
				if tt.read < 0 {
					_, err = io.Copy(io.Discard, resp.Body)
				} else {
					_, err = io.CopyN(io.Discard, resp.Body, tt.read)
				}
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
			}
			if n := s.conns.Load(); n != tt.want {
				t.Errorf("%d connections, want %d", n, tt.want)
			}
		})
	}
}

func flush(w http.ResponseWriter, pieces ...string) {
	for _, p := range pieces {
		_, _ = io.WriteString(w, p)
		_ = http.NewResponseController(w).Flush()
	}
}

// A server that closed a waiting connection has read nothing of what comes next.
func TestWhatTheServerNeverReadIsSentAgain(t *testing.T) {
	t.Parallel()
	t.Run("it had closed the connections that wait", func(t *testing.T) {
		t.Parallel()
		var seen atomic.Int64
		s := serve(t, func(w http.ResponseWriter, r *http.Request) { seen.Add(1); echo(w, r) })
		c := client(t, upstream.Config{})
		for range 3 {
			if _, _, err := ask(t.Context(), c, s.URL, "{}"); err != nil {
				t.Fatal(err)
			}
			s.CloseClientConnections()
		}
		if n := seen.Load(); n != 3 {
			t.Errorf("the server saw %d requests, want 3", n)
		}
	})
	t.Run("not a byte could be written", func(t *testing.T) {
		t.Parallel()
		s := serve(t, echo)
		var made atomic.Int64
		mute := &muteConn{}
		c := client(t, upstream.Config{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			raw, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if made.Add(1) == 1 {
				mute.Conn = raw
				return mute, err
			}
			return raw, err
		}})
		for i := range 2 {
			mute.muted.Store(i == 1)
			if _, _, err := ask(t.Context(), c, s.URL, "{}"); err != nil {
				t.Fatal(err)
			}
		}
		if n := made.Load(); n != 2 {
			t.Errorf("%d connections were made, want another for the second request", n)
		}
	})
}

// muteConn takes no more bytes once it is muted.
type muteConn struct {
	net.Conn
	muted atomic.Bool
}

func (c *muteConn) Write(p []byte) (int, error) {
	if c.muted.Load() {
		return 0, errors.New("broken pipe")
	}
	return c.Conn.Write(p)
}

// A connection that breaks after the request was sent may have been broken by
// it.
func TestWhatTheServerMayHaveReadIsNotSentAgain(t *testing.T) {
	t.Parallel()
	var seen atomic.Int64
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if seen.Add(1) == 2 {
			panic(http.ErrAbortHandler)
		}
		echo(w, r)
	})
	c := client(t, upstream.Config{})
	if _, _, err := ask(t.Context(), c, s.URL, "{}"); err != nil {
		t.Fatal(err)
	}
	_, trip, err := ask(t.Context(), c, s.URL, "{}")
	if err == nil || !trip.Written() || !trip.Reused() {
		t.Errorf("error %v, written %v, reused %v", err, trip.Written(), trip.Reused())
	}
	if n := seen.Load(); n != 2 {
		t.Errorf("the server saw %d requests, want 2", n)
	}
}

func TestTheEndOfTheContextCutsWhateverWaits(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		handler http.HandlerFunc
		body    int
	}{
		"for the answer":    {func(_ http.ResponseWriter, r *http.Request) { hang(r) }, 2},
		"for more of it":    {func(w http.ResponseWriter, r *http.Request) { flush(w, "a"); hang(r) }, 2},
		"for the body sent": {nil, 64 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var base string
			if tt.handler == nil {
				base = "http://" + deaf(t)
			} else {
				base = serve(t, tt.handler).URL
			}
			c := client(t, upstream.Config{})
			ctx, cancel := context.WithCancel(t.Context())
			trip := &upstream.Trip{OnConnect: func() { time.AfterFunc(30*time.Millisecond, cancel) }}
			began := time.Now()
			resp, err := c.Do(ctx, &upstream.Request{Base: base, Path: "/", Body: make([]byte, tt.body)}, trip)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				_ = resp.Body.Close()
			}
			if err == nil || ctx.Err() == nil || time.Since(began) > 5*time.Second {
				t.Errorf("ended with %v after %v", err, time.Since(began))
			}
		})
	}
}

func hang(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// deaf takes connections and never reads.
func deaf(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			if _, err := l.Accept(); err != nil {
				return
			}
		}
	}()
	return l.Addr().String()
}

// A server may refuse a body that it has not read.
func TestAnEarlyAnswerToALargeBodyIsRead(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		http.Error(w, "too long", http.StatusRequestEntityTooLarge)
	})
	c := client(t, upstream.Config{})
	resp, err := c.Do(t.Context(), &upstream.Request{Base: s.URL, Path: "/", Body: make([]byte, 8<<20)}, &upstream.Trip{})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("status %d", resp.StatusCode)
	}
}

func TestAnswersThatAreNoneAreErrors(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"nothing":            "",
		"another protocol":   "SSH-2.0-OpenSSH\r\n\r\n",
		"a cut header":       "HTTP/1.1 200 OK\r\nContent-Le",
		"a header too long":  "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 70<<10) + "\r\n\r\n",
		"a switch":           "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
		"hints without end":  strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 9),
		"a body that is cut": "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
		"chunks that break":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
		"chunks that end":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := client(t, upstream.Config{Dial: canned(t, answer)})
			if got, _, err := ask(t.Context(), c, "http://engine.test", "{}"); err == nil || errors.Is(err, io.EOF) {
				t.Errorf("%.50q was taken for an answer: %.50q (%v)", answer, got, err)
			}
		})
	}
}

// canned dials a server that gives one answer to whatever it is sent, and ends.
func canned(t *testing.T, answer string) func(context.Context, string, string) (net.Conn, error) {
	t.Helper()
	return func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer theirs.Close()
			if _, err := http.ReadRequest(bufio.NewReader(theirs)); err == nil {
				_, _ = io.WriteString(theirs, answer)
			}
		}()
		return ours, nil
	}
}

func TestHeadersAndPlacesThatWouldSayMoreAreRefused(t *testing.T) {
	t.Parallel()
	c := client(t, upstream.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
		t.Error("dialled")
		return nil, net.ErrClosed
	}})
	for _, r := range []upstream.Request{
		{Base: "http://a", Header: [][2]string{{"X", "1\r\nY: 2"}}},
		{Base: "http://a", Header: [][2]string{{"X\r\nY", "1"}}},
		{Base: "http://a", Header: [][2]string{{"", "1"}}},
		{Base: "http://a", Header: [][2]string{{"X", "\x00"}}},
		{Base: "ftp://a"},
		{Base: "a:80"},
		{Base: "http://"},
		{Base: "http://u@a"},
		{Base: "http://a?q"},
		{Base: "http://a b"},
	} {
		if _, err := c.Do(t.Context(), &r, &upstream.Trip{}); err == nil {
			t.Errorf("%+v was sent", r)
		}
	}
}

// Connections wait for a time, and no more of them than they may.
func TestIdleConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		open := 0
		count := func(n int) {
			mu.Lock()
			defer mu.Unlock()
			open += n
		}
		dial := func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			count(1)
			go func() {
				defer count(-1)
				defer theirs.Close()
				r := bufio.NewReader(theirs)
				for {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, req.Body)
					<-time.After(100 * time.Millisecond)
					_, _ = io.WriteString(theirs, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				}
			}()
			return ours, nil
		}
		c := client(t, upstream.Config{Dial: dial, MaxIdle: 3, IdleFor: time.Second})
		var all sync.WaitGroup
		for range 5 {
			all.Go(func() {
				if got, _, err := ask(t.Context(), c, "http://engine.test", "{}"); got != "200 ok" || err != nil {
					t.Errorf("got %q (%v)", got, err)
				}
			})
		}
		all.Wait()
		expect := func(want int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if open != want {
				t.Errorf("%d connections are open, want %d", open, want)
			}
		}
		expect(3)
		synctest.Sleep(900 * time.Millisecond)
		if _, _, err := ask(t.Context(), c, "http://engine.test", "{}"); err != nil {
			t.Error(err)
		}
		expect(1) // two have waited a second
		synctest.Sleep(time.Second)
		expect(0)
		if _, _, err := ask(t.Context(), c, "http://engine.test", "{}"); err != nil {
			t.Error(err)
		}
		expect(1)
		c.Close()
		expect(0)
	})
}

func BenchmarkExchange(b *testing.B) {
	s := serve(b, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"object":"chat.completion"}`)
	})
	body := bytes.Repeat([]byte("x"), 600)
	b.Run("ours", func(b *testing.B) {
		c := client(b, upstream.Config{})
		b.ReportAllocs()
		for b.Loop() {
			resp, err := c.Do(b.Context(), &upstream.Request{Base: s.URL, Path: "/v1/x", Body: body}, &upstream.Trip{})
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	})
	b.Run("net-http", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			req, err := http.NewRequestWithContext(b.Context(), http.MethodPost, s.URL+"/v1/x", bytes.NewReader(body))
			if err != nil {
				b.Fatal(err)
			}
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	})
}
