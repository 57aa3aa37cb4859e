package kvevents_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"weir/scheduler"
	"weir/scheduler/kvevents"
	"weir/scheduler/kvevents/zmtp"
)

// script is a publisher that publishes what a test tells it to, in any order.
type script struct {
	t *testing.T
	l net.Listener

	mu      sync.Mutex
	conns   []net.Conn
	subs    []*zmtp.Conn
	changed chan struct{}
}

func newScript(t *testing.T) *script {
	t.Helper()
	s := &script{t: t, l: listen(t), changed: make(chan struct{}, 64)}
	serve(t, s.l, func(c net.Conn) {
		z, err := zmtp.Open(c, "PUB", 1<<20)
		if err != nil {
			return
		}
		if _, err := z.Receive(); err != nil { // the subscription
			return
		}
		s.mu.Lock()
		s.conns, s.subs = append(s.conns, c), append(s.subs, z)
		s.mu.Unlock()
		s.changed <- struct{}{}
		_, _ = z.Receive() // until it leaves
	})
	return s
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve handles connections until the test ends.
func serve(t *testing.T, l net.Listener, handle func(net.Conn)) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			all.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
}

func to(l net.Listener) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
}

// connected waits for the next subscriber.
func (s *script) connected() {
	s.t.Helper()
	select {
	case <-s.changed:
	case <-time.After(10 * time.Second):
		s.t.Fatal("nobody subscribes")
	}
}

func (s *script) publish(seq uint64, payload []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, z := range s.subs {
		_ = z.Send([]byte("kv@pod@m"), binary.BigEndian.AppendUint64(nil, seq), payload)
	}
}

// cut ends all connections.
func (s *script) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.conns, s.subs = nil, nil
}

// replays is a listener that sends again what is in the history at the time:
// message i is number first+i.
type replays struct {
	net.Listener

	mu      sync.Mutex
	first   uint64
	history [][]byte
	asked   int
}

func newReplays(t *testing.T) *replays {
	t.Helper()
	r := &replays{Listener: listen(t)}
	serve(t, r.Listener, func(c net.Conn) {
		z, err := zmtp.Open(c, "ROUTER", 1<<20)
		if err != nil {
			return
		}
		m, err := z.Receive()
		if err != nil || len(m) != 2 {
			return
		}
		from := binary.BigEndian.Uint64(m[1])
		r.mu.Lock()
		r.asked++
		first, history := r.first, slices.Clone(r.history)
		r.mu.Unlock()
		for i, payload := range history {
			if seq := first + uint64(i); seq >= from {
				_ = z.Send(nil, binary.BigEndian.AppendUint64(nil, seq), payload)
			}
		}
		_ = z.Send(nil, binary.BigEndian.AppendUint64(nil, ^uint64(0)), nil)
		_, _ = z.Receive()
	})
	return r
}

func (r *replays) set(first uint64, history ...[]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.first, r.history = first, history
}

// batch is a message with one event that stores blocks of 16 tokens, the n-th of
// which is all n; blocks from to until follow each other.
func batch(t *testing.T, from, until int) []byte {
	t.Helper()
	var hashes, tokens []any
	var parent any
	if from > 0 {
		parent = 1000 + from - 1
	}
	for n := from; n < until; n++ {
		hashes = append(hashes, 1000+n)
		for range 16 {
			tokens = append(tokens, n)
		}
	}
	return pack(t, []any{1.5, []any{[]any{"BlockStored", hashes, parent, tokens, 16, nil, "GPU"}}, 0})
}

func pack(t *testing.T, v any) []byte {
	t.Helper()
	b, err := msgpack.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// prompt is the tokens of the first n blocks that batch makes.
func prompt(n int) (tokens []uint64) {
	for i := range n {
		for range 16 {
			tokens = append(tokens, uint64(i))
		}
	}
	return tokens
}

// reader is a scheduler that is told by a follower.
type reader struct {
	*scheduler.Embedded

	t        *testing.T
	follower *kvevents.Follower
}

func follow(t *testing.T, s kvevents.Source) *reader {
	t.Helper()
	e := scheduler.New(scheduler.Config{Profile: scheduler.Profile{Precise: scheduler.PreciseCache{Enabled: true}}}, nil)
	t.Cleanup(e.Close)
	e.SetEndpoints([]scheduler.Endpoint{{ID: "a"}})
	s.ID = "a"
	f := kvevents.New(slog.New(slog.DiscardHandler), s, e)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Run(ctx)
	}()
	t.Cleanup(func() { stop(); <-done })
	return &reader{Embedded: e, t: t, follower: f}
}

// expects waits until the endpoint's cache is so.
func (r *reader) expects(trust scheduler.Trust, blocks int) {
	r.t.Helper()
	r.until(fmt.Sprintf("%v with %d blocks", trust, blocks), func() bool {
		s := r.State().Endpoints[0].Cache
		return s.Trust == trust && s.HBM == blocks
	})
}

// until waits for something.
func (r *reader) until(what string, is func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if is() {
			return
		}
		<-time.After(time.Millisecond)
	}
	r.t.Fatalf("want %s, have %+v; %+v", what, r.State().Endpoints[0].Cache, r.follower.Stats())
}

// cached is how much of the first blocks of a prompt is expected to be found.
func (r *reader) cached(n int) int {
	r.t.Helper()
	l, err := r.Schedule(r.t.Context(), scheduler.Request{ID: "1", Model: "m", Tokens: scheduler.PreciseCache{}.Chain(append(prompt(n), 1<<40), "")})
	if err != nil {
		r.t.Fatal(err)
	}
	l.End(scheduler.Outcome{Result: scheduler.Abandoned})
	d, _ := r.Decision("1")
	return d.CachedTokens
}
