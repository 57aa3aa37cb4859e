package zmtp_test

import (
	"bytes"
	"errors"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/scheduler/kvevents/zmtp"
)

// pair is two sockets that have shaken hands.
func pair(t *testing.T, limit int) (sub, pub *zmtp.Conn, raw net.Conn) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	opened := make(chan *zmtp.Conn, 1)
	go func() {
		defer close(opened)
		c, err := l.Accept()
		if err != nil {
			return
		}
		t.Cleanup(func() { _ = c.Close() })
		raw = c
		if z, err := zmtp.Open(c, "PUB", limit); err == nil {
			opened <- z
		}
	}()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if sub, err = zmtp.Open(c, "SUB", limit); err != nil {
		t.Fatal(err)
	}
	if pub = <-opened; pub == nil {
		t.Fatal("no handshake")
	}
	return sub, pub, raw
}

func TestMessagesArriveAsTheyWereSent(t *testing.T) {
	t.Parallel()
	sub, pub, _ := pair(t, 1<<20)
	for _, frames := range [][]string{{"topic", "12345678", strings.Repeat("x", 70_000)}, {""}, {"", strings.Repeat("y", 255), strings.Repeat("z", 256)}} {
		var all [][]byte
		for _, f := range frames {
			all = append(all, []byte(f))
		}
		if err := pub.Send(all...); err != nil {
			t.Fatal(err)
		}
		got, err := sub.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.EqualFunc(got, all, slices.Equal) {
			t.Errorf("%d frames arrived as %d, or other ones", len(all), len(got))
		}
	}
}

func TestSyncReturnsWhenThePeerHasReadEverything(t *testing.T) {
	t.Parallel()
	sub, pub, _ := pair(t, 1<<20)
	if err := sub.Subscribe("kv"); err != nil {
		t.Fatal(err)
	}
	got := make(chan string, 1)
	go func() {
		m, err := pub.Receive()
		if err == nil {
			got <- string(m[0])
		}
		_ = pub.Send([]byte("early")) // before the pong
		_, _ = pub.Receive()          // answers the ping
	}()
	if err := sub.Sync(); err != nil {
		t.Fatal(err)
	}
	select {
	case topic := <-got:
		if topic != "\x01kv" {
			t.Errorf("subscribed to %q", topic)
		}
	default:
		t.Error("the subscription was not read")
	}
	if m, err := sub.Receive(); err != nil || string(m[0]) != "early" {
		t.Errorf("what came meanwhile: %q, %v", m, err)
	}
}

func TestAPeerCanNotHaveMemoryTaken(t *testing.T) {
	t.Parallel()
	for name, bytes := range map[string]string{
		"a frame of 2^63 bytes":           "\x02\x7f\xff\xff\xff\xff\xff\xff\xff",
		"a frame above the limit":         "\x02\x00\x00\x00\x00\x00\x00\x10\x00",
		"frames above the limit together": "\x01\xff" + strings.Repeat("a", 255) + strings.Repeat("\x01\xff"+strings.Repeat("a", 255), 4),
		"frames without end":              strings.Repeat("\x01\x00", 100),
		"a long command":                  "\x06\x00\x00\x00\x00\x00\x01\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sub, _, raw := pair(t, 1024)
			if _, err := raw.Write([]byte(bytes)); err != nil {
				t.Fatal(err)
			}
			if _, err := sub.Receive(); !errors.Is(err, zmtp.ErrProtocol) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestWhatIsNoZeroMQIsRefused(t *testing.T) {
	t.Parallel()
	for name, greeting := range map[string]string{
		"a web server":                "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n",
		"a peer that wants a secret":  "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x01CURVE" + strings.Repeat("\x00", 47),
		"one of an old version":       "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x01" + strings.Repeat("\x00", 53),
		"one that never gets started": "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x01NULL" + strings.Repeat("\x00", 48) + "\x00\x02hi",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := net.Pipe()
			defer a.Close()
			go func() {
				defer b.Close()
				go func() { _, _ = b.Read(make([]byte, 256)); _, _ = b.Read(make([]byte, 256)) }()
				_, _ = b.Write([]byte(greeting))
			}()
			if _, err := zmtp.Open(a, "SUB", 1024); err == nil {
				t.Error("the handshake succeeded")
			}
		})
	}
}

func TestAPeerThatDoesNotAnswerAPingCanSendNoMoreThanAMessageMayHold(t *testing.T) {
	t.Parallel()
	const limit = 1 << 20
	sub, pub, _ := pair(t, limit)
	go func() {
		for range 3 { // and never a pong
			if pub.Send(bytes.Repeat([]byte("x"), limit/2)) != nil {
				return
			}
		}
	}()
	if err := sub.Sync(); !errors.Is(err, zmtp.ErrProtocol) {
		t.Errorf("with three halves of what is taken it says %v, want %v", err, zmtp.ErrProtocol)
	}
}

func TestNothingIsKeptOfAMessageThatCameBeforeAPong(t *testing.T) {
	t.Parallel()
	sub, pub, _ := pair(t, 1<<20)
	go func() {
		_ = pub.Send([]byte("first"))
		_ = pub.Send([]byte("second"))
		_, _ = pub.Receive() // answers the ping
	}()
	if err := sub.Sync(); err != nil {
		t.Fatal(err)
	}
	freed := make(chan struct{})
	func() {
		m, err := sub.Receive()
		if err != nil || string(m[0]) != "first" {
			t.Fatalf("received %q, %v", m, err)
		}
		runtime.AddCleanup(&m[0], func(struct{}) { close(freed) }, struct{}{})
	}()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		runtime.GC()
		select {
		case <-freed:
			if m, err := sub.Receive(); err != nil || string(m[0]) != "second" {
				t.Errorf("then received %q, %v", m, err)
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
	t.Error("a message that was handed out is still kept")
}
