package eventlog_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/responses/eventlog"
)

// log is what both forms promise.
type log interface {
	places
	Append(ctx context.Context, key string, first int, e eventlog.Entry, end bool) error
	Restart(ctx context.Context, key string, first int, e eventlog.Entry) error
	Read(ctx context.Context, key string, after int, wait time.Duration) ([]eventlog.Entry, error)
	Drop(ctx context.Context, key string) error
}

type places interface {
	Hold(ctx context.Context, key, seat string, most int) (bool, error)
	Leave(ctx context.Context, key, seat string) error
}

// forms opens each form with the bounds. They share no log: a test's key is its
// own.
func forms(t *testing.T, address string) map[string]func(*testing.T, eventlog.Config) log {
	t.Helper()
	return map[string]func(*testing.T, eventlog.Config) log{
		"memory": func(_ *testing.T, c eventlog.Config) log { return eventlog.NewMemory(c, time.Now) },
		"redis": func(t *testing.T, c eventlog.Config) log {
			t.Helper()
			if address == "" {
				t.Skip("redis-server is not installed (make test installs it)")
			}
			client := redis.NewClient(&redis.Options{Addr: address})
			r := eventlog.NewRedis(slog.New(slog.DiscardHandler), client, c)
			ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
			done := make(chan error, 1)
			go func() { done <- r.Run(ctx) }()
			t.Cleanup(func() {
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				_ = client.Close()
			})
			return r
		},
	}
}

// startRedis runs a private server; "" where there is none.
func startRedis(t *testing.T) string {
	t.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		return ""
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(address)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), binary, "--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: 100, MinRetryBackoff: 50 * time.Millisecond, MaxRetryBackoff: 50 * time.Millisecond})
	defer func() { _ = client.Close() }()
	if err := client.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	return address
}

func TestBothFormsOfALogKeepTheContract(t *testing.T) {
	t.Parallel()
	address := startRedis(t)
	for name, open := range forms(t, address) {
		for guarantee, check := range map[string]func(*testing.T, func(*testing.T, eventlog.Config) log){
			"a reader gets what comes after the number, in order":      readsAfter,
			"a reader who waits is woken at once":                      wakes,
			"who writes a number that is there is told so":             fences,
			"a log that is begun anew has nothing of what it had":      restarts,
			"nothing is written behind the end":                        ends,
			"a log that was lost is not gone on with":                  lost,
			"a log is bounded":                                         bounds,
			"a log is gone a while after its end":                      expires,
			"of five readers four get a seat, and a free one is taken": seats,
			"a seat that isn't kept is free again":                     seatsExpire,
		} {
			t.Run(name+"/"+guarantee, func(t *testing.T) {
				t.Parallel()
				check(t, open)
			})
		}
	}
}

func put(t *testing.T, l log, key string, last int, text string, end bool) {
	t.Helper()
	first := 0
	if had, err := l.Read(t.Context(), key, -1, 0); err != nil {
		t.Fatal(err)
	} else if n := len(had); n > 0 {
		first = had[n-1].Last + 1
	}
	if err := l.Append(t.Context(), key, first, eventlog.Entry{Last: last, Box: []byte(text)}, end); err != nil {
		t.Fatalf("append %d: %v", last, err)
	}
}

func texts(t *testing.T, l log, key string, after int) string {
	t.Helper()
	entries, err := l.Read(t.Context(), key, after, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, string(e.Box))
	}
	return strings.Join(all, " ")
}

func readsAfter(t *testing.T, open func(*testing.T, eventlog.Config) log) {
	t.Helper()
	l := open(t, eventlog.Config{})
	put(t, l, t.Name(), 1, "zero,one", false)
	put(t, l, t.Name(), 2, "two", false)
	put(t, l, t.Name(), 5, "three-five", true)
	for after, want := range map[int]string{-1: "zero,one two three-five", 0: "zero,one two three-five", 1: "two three-five", 4: "three-five", 5: "", 9: ""} {
		if got := texts(t, l, t.Name(), after); got != want {
			t.Errorf("after %d: %q, want %q", after, got, want)
		}
	}
	if got := texts(t, l, t.Name()+"other", -1); got != "" {
		t.Errorf("another log has %q", got)
	}
	if err := l.Drop(t.Context(), t.Name()); err != nil {
		t.Fatal(err)
	}
	if got := texts(t, l, t.Name(), -1); got != "" {
		t.Errorf("dropped, but has %q", got)
	}
}

func wakes(t *testing.T, open func(*testing.T, eventlog.Config) log) {
	t.Helper()
	l := open(t, eventlog.Config{})
	got := make(chan int, 1)
	go func() {
		entries, _ := l.Read(t.Context(), t.Name(), -1, time.Minute)
		got <- len(entries)
	}()
	put(t, l, t.Name(), 0, "x", false)
	select {
	case n := <-got:
		if n != 1 {
			t.Errorf("%d entries", n)
		}
	case <-time.After(30 * time.Second):
		t.Error("not woken")
	}
	entries, err := l.Read(t.Context(), t.Name(), 0, 20*time.Millisecond)
	if len(entries) != 0 || err != nil {
		t.Errorf("nothing came, but %v %v", entries, err)
	}
}

func fences(t *testing.T, open func(*testing.T, eventlog.Config) log) {
	t.Helper()
	l := open(t, eventlog.Config{})
	put(t, l, t.Name(), 4, "the successor's", false)
	for _, last := range []int{0, 3, 4, 9} {
		if err := l.Append(t.Context(), t.Name(), 0, eventlog.Entry{Last: last, Box: []byte("late")}, false); !errors.Is(err, eventlog.ErrStale) {
			t.Errorf("events 0 to %d after 4: %v", last, err)
		}
	}
	if got := texts(t, l, t.Name(), -1); got != "the successor's" {
		t.Errorf("log %q", got)
	}
}

func restarts(t *testing.T, open func(*testing.T, eventlog.Config) log) {
	t.Helper()
	l := open(t, eventlog.Config{MaxBytes: 2000})
	restart := func(first, last int) error {
		return l.Restart(t.Context(), t.Name(), first, eventlog.Entry{Last: last, Box: []byte("anew")})
	}
	if err := restart(4, 5); !errors.Is(err, eventlog.ErrLost) {
		t.Errorf("one that is gone: %v", err)
	}
	put(t, l, t.Name(), 3, strings.Repeat("a", 1500), false)
	if err := restart(3, 5); !errors.Is(err, eventlog.ErrStale) {
		t.Errorf("by a writer that was replaced: %v", err)
	}
	got := make(chan []eventlog.Entry, 1)
	go func() {
		entries, _ := l.Read(t.Context(), t.Name(), 3, time.Minute)
		got <- entries
	}()
	if err := restart(4, 5); err != nil {
		t.Fatal(err)
	}
	select {
	case entries := <-got:
		if len(entries) != 1 || string(entries[0].Box) != "anew" || entries[0].Last != 5 {
			t.Errorf("who waits is given %v", entries)
		}
	case <-time.After(30 * time.Second):
		t.Error("who waits is not woken")
	}
	put(t, l, t.Name(), 6, strings.Repeat("b", 1500), true) // there is room again
	if got := texts(t, l, t.Name(), -1); !strings.HasPrefix(got, "anew bbb") {
		t.Errorf("log %.20q", got)
	}
	if err := restart(7, 8); !errors.Is(err, eventlog.ErrStale) {
		t.Errorf("after its end: %v", err)
	}
}

func ends(t *testing.T, open func(*testing.T, eventlog.Config) log) {
	t.Helper()
	l := open(t, eventlog.Config{})
	put(t, l, t.Name(), 0, "last", true)
	if err := l.Append(t.Context(), t.Name(), 1, eventlog.Entry{Last: 1, Box: []byte("more")}, true); !errors.Is(err, eventlog.ErrStale) {
		t.Errorf("behind the end: %v", err)
	}
}

func lost(t *testing.T, open func(*testing.T, eventlog.Config) log) {
	t.Helper()
	l := open(t, eventlog.Config{})
	put(t, l, t.Name(), 3, "zero-three", false)
	if err := l.Append(t.Context(), t.Name(), 4, eventlog.Entry{Last: 5, Box: []byte("four,five")}, false); err != nil {
		t.Errorf("the events after those that are there: %v", err)
	}
	if err := l.Drop(t.Context(), t.Name()); err != nil {
		t.Fatal(err)
	}
	if err := l.Append(t.Context(), t.Name(), 6, eventlog.Entry{Last: 6, Box: []byte("six")}, false); !errors.Is(err, eventlog.ErrLost) {
		t.Errorf("after a loss: %v", err)
	}
	if got := texts(t, l, t.Name(), -1); got != "" {
		t.Errorf("a reader is shown %q", got)
	}
}

func bounds(t *testing.T, open func(*testing.T, eventlog.Config) log) {
	t.Helper()
	l := open(t, eventlog.Config{MaxBytes: 2000})
	put(t, l, t.Name(), 0, strings.Repeat("a", 1500), false)
	if err := l.Append(t.Context(), t.Name(), 1, eventlog.Entry{Last: 1, Box: make([]byte, 1500)}, false); !errors.Is(err, eventlog.ErrFull) {
		t.Errorf("beyond the bound: %v", err)
	}
	put(t, l, t.Name()+"other", 0, strings.Repeat("a", 1500), false)
}

// gone waits until a condition holds.
func gone(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatal(what)
		}
	}
}

func expires(t *testing.T, open func(*testing.T, eventlog.Config) log) {
	t.Helper()
	l := open(t, eventlog.Config{After: 50 * time.Millisecond})
	put(t, l, t.Name(), 0, "x", true)
	put(t, l, t.Name()+"runs", 0, "y", false)
	gone(t, "it stays for ever", func() bool { return texts(t, l, t.Name(), -1) == "" })
	if texts(t, l, t.Name()+"runs", -1) != "y" {
		t.Error("one that still runs is gone, too")
	}
}

func seats(t *testing.T, open func(*testing.T, eventlog.Config) log) {
	t.Helper()
	l := open(t, eventlog.Config{})
	hold := func(seat string) bool {
		t.Helper()
		ok, err := l.Hold(t.Context(), t.Name(), seat, 4)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	for _, seat := range []string{"a", "b", "c", "d", "a"} { // a's again
		if !hold(seat) {
			t.Errorf("no seat for %s", seat)
		}
	}
	if hold("e") {
		t.Error("a fifth seat")
	}
	if err := l.Leave(t.Context(), t.Name(), "b"); err != nil {
		t.Fatal(err)
	}
	if !hold("e") {
		t.Error("a free seat is not given")
	}
}

func seatsExpire(t *testing.T, open func(*testing.T, eventlog.Config) log) {
	t.Helper()
	l := open(t, eventlog.Config{SeatLife: 50 * time.Millisecond})
	if ok, err := l.Hold(t.Context(), t.Name(), "a", 1); !ok || err != nil {
		t.Fatal(ok, err)
	}
	gone(t, "a dead reader keeps its seat", func() bool {
		ok, err := l.Hold(t.Context(), t.Name(), "b", 1)
		return ok && err == nil
	})
}
