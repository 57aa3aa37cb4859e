package admission_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"weir/gateway/admission"
	"weir/gateway/admission/admissiontest"
)

func TestRedisOnMiniredisKeepsTheContract(t *testing.T) {
	t.Parallel()
	admissiontest.Test(t, func(t *testing.T) admissiontest.Fixture {
		t.Helper()
		c, m := newClock(), miniredis.RunT(t)
		m.SetTime(c.Now())
		store := newRedis(t, m.Addr(), admission.RedisConfig{})
		return admissiontest.Fixture{
			Store: store,
			Advance: func(d time.Duration) {
				c.Advance(d)
				m.SetTime(c.Now())
				m.FastForward(d)
			},
			SlotTTL: 30 * time.Second,
			Die:     func(t *testing.T) admission.Intents { t.Helper(); return survivor(t, store, m.Addr()) },
		}
	})
}

func TestRedisServerKeepsTheContract(t *testing.T) {
	t.Parallel()
	addr := startRedis(t)
	var databases atomic.Int32
	admissiontest.Test(t, func(t *testing.T) admissiontest.Fixture {
		t.Helper()
		db := int(databases.Add(1)) - 1 // an empty database for each guarantee
		const life = 3 * time.Second
		at := fmt.Sprintf("%s/%d", addr, db)
		store := newRedis(t, at, admission.RedisConfig{SlotTTL: life})
		return admissiontest.Fixture{
			Store:   store,
			Advance: func(d time.Duration) { <-time.After(d) },
			Slack:   time.Minute,
			SlotTTL: life,
			Die:     func(t *testing.T) admission.Intents { t.Helper(); return survivor(t, store, at) },
		}
	})
}

// doubled asks for twice the limits: what a replica's half of them is then is
// what the contract asks for.
type doubled struct{ *admission.Redis }

func double(nodes []admission.Node) []admission.Node {
	out := slices.Clone(nodes)
	for i := range out {
		p := &out[i].PerMinute
		out[i].Concurrency *= 2
		*p = admission.Counts{Requests: 2 * p.Requests, Tokens: 2 * p.Tokens, Uncached: 2 * p.Uncached, Generated: 2 * p.Generated}
	}
	return out
}

func (d doubled) with(r *admission.Request) *admission.Request {
	c := *r
	c.Nodes = double(r.Nodes)
	return &c
}

func (d doubled) Admit(ctx context.Context, r *admission.Request) (admission.Verdict, error) {
	return d.Redis.Admit(ctx, d.with(r))
}

func (d doubled) Release(ctx context.Context, r *admission.Request, used admission.Counts) error {
	return d.Redis.Release(ctx, d.with(r), used)
}

func (d doubled) Look(ctx context.Context, tenant string, nodes []admission.Node) ([]admission.Standing, error) {
	return d.Redis.Look(ctx, tenant, double(nodes))
}

// One of two replicas that lost their Redis keeps the contract within its half.
func TestRedisLostKeepsTheContractWithinItsShare(t *testing.T) {
	t.Parallel()
	admissiontest.Test(t, func(t *testing.T) admissiontest.Fixture {
		t.Helper()
		c, dir := newClock(), t.TempDir()
		journal := openJournal(t, dir)
		store := newRedis(t, nowhere(t), admission.RedisConfig{Now: c.Now, Replicas: func() int { return 2 }, Journal: journal})
		for i := range 3 {
			admits(t, store, fmt.Sprintf("req_first_%d", i), admission.Node{ID: "key_first", Concurrency: 10})
		}
		if store.Healthy() {
			t.Fatal("a Redis that is not there counts as healthy")
		}
		return admissiontest.Fixture{
			Store:   doubled{store},
			Advance: c.Advance,
			SlotTTL: admission.MaxHold,
			Die:     func(t *testing.T) admission.Intents { t.Helper(); return heir(t, dir, journal) },
		}
	})
}

// nowhere is an address where nothing listens.
func nowhere(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// survivor is another replica, after the store told Redis what it had to: its
// last releases were on their way.
func survivor(t *testing.T, store *admission.Redis, addr string) *admission.Redis {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := store.Run(ctx); err != nil {
		t.Fatal(err)
	}
	return newRedis(t, addr, admission.RedisConfig{})
}

// A request that was admitted in process and asked again when Redis was back is
// corrected where it was charged.
func TestRedisRepeatedCallIsCorrectedWhereItWasCharged(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := newRedis(t, m.Addr(), quick())
	node := []admission.Node{{ID: "ten_a", PerMinute: admission.Counts{Tokens: 1000}}}
	r := &admission.Request{ID: "req_1", Tenant: "ten_a", Nodes: node, Estimate: admission.Counts{Requests: 1, Tokens: 800}}
	must := func(step string) {
		t.Helper()
		if v, err := s.Admit(t.Context(), r); err != nil || !v.Admitted {
			t.Fatalf("%s: %+v, %v", step, v, err)
		}
	}
	must("through Redis")
	m.SetError("LOADING for a moment")
	must("in process")
	m.SetError("")
	if err := s.Release(t.Context(), r, admission.Counts{Requests: 1}); err != nil {
		t.Fatal(err)
	}
	next := *r
	next.ID = "req_2"
	if v, err := s.Admit(t.Context(), &next); err != nil || !v.Admitted || v.Tokens.Left < 200 || v.Tokens.Left > 210 {
		t.Errorf("%+v, %v, want what the first did not use back in Redis", v, err)
	}
}

// newRedis is a store whose calls may take long: the machine of a test may be busy.
func newRedis(tb testing.TB, addr string, cfg admission.RedisConfig) *admission.Redis {
	tb.Helper()
	client, err := admission.Client(admission.ClientConfig{URL: "redis://" + addr})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = client.Close() })
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	return admission.NewRedis(slog.New(slog.DiscardHandler), client, cfg)
}

// startRedis starts a private redis-server without persistence and returns its
// address.
func startRedis(tb testing.TB) string {
	tb.Helper()
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		tb.Skip("redis-server is not installed (apt-get install redis-server)")
	}
	for range 5 { // another process may take the port between our look and the start
		l, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		addr := l.Addr().String()
		_ = l.Close()
		if serveRedis(tb, binary, addr) {
			return addr
		}
	}
	tb.Fatal("redis-server does not start")
	return ""
}

func serveRedis(tb testing.TB, binary, addr string) bool {
	tb.Helper()
	_, port, _ := net.SplitHostPort(addr)
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	cmd := exec.CommandContext(ctx, binary, "--port", port, "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--databases", "64", "--dir", tb.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	ready := make(chan bool, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "Ready to accept connections") {
				ready <- true
			}
		}
		close(ready)
		_ = cmd.Wait()
	}()
	tb.Cleanup(func() { cancel(); <-done })
	return <-ready
}

// run keeps a store's Run going for the length of a test.
func run(t *testing.T, s *admission.Redis) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func admits(t *testing.T, s admission.Store, id string, nodes ...admission.Node) bool {
	t.Helper()
	v, err := s.Admit(t.Context(), ask(id, nodes))
	if err != nil {
		t.Fatalf("admit %s: %v", id, err)
	}
	return v.Admitted
}

func quick() admission.RedisConfig {
	return admission.RedisConfig{Renew: 20 * time.Millisecond, Probe: 20 * time.Millisecond}
}

func TestRedisReplicasShareLimits(t *testing.T) {
	t.Parallel()
	addr := startRedis(t)
	stores := make([]*admission.Redis, 3)
	for i := range stores {
		stores[i] = newRedis(t, addr, admission.RedisConfig{})
	}
	nodes := []admission.Node{{ID: "key_a", PerMinute: admission.Counts{Requests: 1000}}, {ID: "ten_a", Concurrency: 10}}
	var admitted atomic.Int32
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if v, err := stores[i%3].Admit(t.Context(), ask(fmt.Sprintf("req_%d", i), nodes)); err == nil && v.Admitted {
				admitted.Add(1)
			}
		})
	}
	wg.Wait()
	if admitted.Load() != 10 {
		t.Errorf("three replicas admitted %d, want 10 together", admitted.Load())
	}
}

func TestRedisRenewsLiveSlotsAndLetsReleasedOnesGo(t *testing.T) {
	t.Parallel()
	addr := startRedis(t)
	cfg := quick()
	cfg.SlotTTL = 400 * time.Millisecond
	holder, other := newRedis(t, addr, cfg), newRedis(t, addr, cfg)
	run(t, holder)
	node := admission.Node{ID: "ten_a", Concurrency: 1}
	if !admits(t, holder, "req_long", node) {
		t.Fatal("the first request is refused")
	}
	for end := time.Now().Add(3 * cfg.SlotTTL); time.Now().Before(end); <-time.After(20 * time.Millisecond) {
		if admits(t, other, "req_other", node) {
			t.Fatal("the slot of a living holder was given away")
		}
	}
	if err := holder.Release(t.Context(), ask("req_long", []admission.Node{node}), one); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the slot is free", func() bool { return admits(t, other, "req_other", node) })
}

func TestRedisThatLostItsDataLearnsTheLiveSlotsAgain(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s, other := newRedis(t, m.Addr(), quick()), newRedis(t, m.Addr(), quick())
	run(t, s)
	node := admission.Node{ID: "ten_a", Concurrency: 1}
	if !admits(t, s, "req_1", node) {
		t.Fatal("refused")
	}
	m.FlushAll()
	eventually(t, "the slot is back", func() bool { return m.Exists("weir:{ten_a}:live:ten_a") })
	if admits(t, other, "req_2", node) {
		t.Error("a second request got the only slot")
	}
}

func TestRedisLost(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	cfg := quick()
	cfg.Replicas = func() int { return 2 }
	s, other := newRedis(t, m.Addr(), cfg), newRedis(t, m.Addr(), cfg)
	run(t, s)
	nodes := []admission.Node{{ID: "key_a"}, {ID: "ten_a", Concurrency: 10}}
	for i := range 3 {
		if !admits(t, s, fmt.Sprintf("req_before_%d", i), nodes...) {
			t.Fatal("refused while Redis was there")
		}
	}

	m.Close()
	admitted := 3
	for i := range 20 {
		if admits(t, s, fmt.Sprintf("req_lost_%d", i), nodes...) {
			admitted++
		}
	}
	if admitted != 5 {
		t.Errorf("%d live while Redis is lost, want half of the ten slots, those from before counted in", admitted)
	}
	if s.Healthy() {
		t.Error("healthy without Redis")
	}
	if err := s.Release(t.Context(), ask("req_before_0", nodes), one); err != nil {
		t.Errorf("release while Redis is lost: %v", err)
	}

	if err := m.Restart(); err != nil { // with the old data: req_before_0 is still in it
		t.Fatal(err)
	}
	eventually(t, "Redis is back", s.Healthy)
	eventually(t, "the live set is what this replica holds", func() bool {
		live, _ := m.ZMembers("weir:{ten_a}:live:ten_a")
		return len(live) == 4
	})
	free := 0
	for i := range 20 {
		if admits(t, other, fmt.Sprintf("req_other_%d", i), nodes...) {
			free++
		}
	}
	if free != 6 {
		t.Errorf("the other replica got %d slots, want the 6 that are free", free)
	}
}

func TestRedisThatIsAwayAtTheStartIsKnownBeforeTheFirstRequest(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	s := newRedis(t, l.Addr().String(), admission.RedisConfig{})
	run(t, s)
	eventually(t, "it is lost", func() bool { return !s.Healthy() })
}

func TestRedisThatHangsCostsATimeoutAndThenNothing(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts, never answers
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := newRedis(t, l.Addr().String(), admission.RedisConfig{Timeout: 20 * time.Millisecond})
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Requests: 1000}, Concurrency: 1000}
	for i := 0; s.Healthy(); i++ {
		if i == 10 {
			t.Fatal("a Redis that hangs still counts as healthy after ten calls")
		}
		if !admits(t, s, fmt.Sprintf("req_%d", i), node) {
			t.Fatal("refused: want the store in process to decide")
		}
	}
	start := time.Now()
	for i := range 100 {
		admits(t, s, fmt.Sprintf("req_after_%d", i), node)
	}
	if took := time.Since(start); took > 100*20*time.Millisecond/2 {
		t.Errorf("100 admissions took %v: they wait for the lost Redis", took)
	}
}

func TestRedisOneFailureDoesNotDivideTheLimits(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := newRedis(t, m.Addr(), admission.RedisConfig{})
	node := admission.Node{ID: "ten_a", Concurrency: 5}
	m.SetError("LOADING for a moment")
	if !admits(t, s, "req_1", node) {
		t.Error("refused: want the store in process to decide")
	}
	m.SetError("")
	if !s.Healthy() {
		t.Error("one failure made the store degraded")
	}
	if !admits(t, s, "req_2", node) {
		t.Error("refused")
	}
}

// What a replica had admitted through Redis counts when it has to judge by itself:
// losing Redis gives nobody a fresh minute.
func TestRedisLostGivesNoFreshAllowance(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := newRedis(t, m.Addr(), admission.RedisConfig{})
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Requests: 10}}
	admitted := 0
	for i := range 30 {
		if i == 7 {
			m.Close()
		}
		if admits(t, s, fmt.Sprintf("req_%d", i), node) {
			admitted++
		}
	}
	if admitted != 10 || s.Healthy() {
		t.Errorf("%d admitted of ten a minute, with Redis and without (healthy: %v)", admitted, s.Healthy())
	}
}

// A first answer that fails is asked for again, before this replica admits by
// itself what the others know nothing of.
func TestRedisThatFailsOnceStillDecides(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s, other := newRedis(t, m.Addr(), admission.RedisConfig{}), newRedis(t, m.Addr(), admission.RedisConfig{})
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Requests: 1}}
	if !admits(t, other, "req_1", node) {
		t.Fatal("refused")
	}
	var calls atomic.Int32
	m.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
		if strings.HasPrefix(strings.ToUpper(cmd), "EVAL") && calls.Add(1) == 1 {
			c.WriteError("LOADING for a moment")
			return true
		}
		return false
	})
	if admits(t, s, "req_2", node) {
		t.Error("a second request got in at a limit of one, since one answer of Redis failed")
	}
}

func TestRedisCallerThatLeftHoldsNothing(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := newRedis(t, m.Addr(), quick())
	node := admission.Node{ID: "ten_a", Concurrency: 1}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if v, err := s.Admit(ctx, ask("req_gone", []admission.Node{node})); err == nil {
		t.Errorf("verdict = %+v, want the context's error", v)
	}
	if !s.Healthy() {
		t.Error("a caller that left made the store degraded")
	}
	run(t, s)
	eventually(t, "the slot is free", func() bool { return admits(t, s, "req_next", node) })
}

func TestRedisSurvivesALostScriptCache(t *testing.T) {
	t.Parallel()
	addr := startRedis(t)
	s := newRedis(t, addr, admission.RedisConfig{})
	client := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { _ = client.Close() })
	node := admission.Node{ID: "ten_a", PerMinute: admission.Counts{Requests: 5}}
	for i := range 3 {
		if !admits(t, s, "req_"+strconv.Itoa(i), node) {
			t.Fatal("refused")
		}
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if !s.Healthy() {
		t.Error("a flushed script cache counts as a failure")
	}
}

func TestRedisKeepsNothingOfAnIdleTenant(t *testing.T) {
	t.Parallel()
	m := miniredis.RunT(t)
	s := newRedis(t, m.Addr(), admission.RedisConfig{})
	nodes := []admission.Node{{ID: "key_a", PerMinute: admission.Counts{Requests: 10}, Concurrency: 2}, {ID: "ten_a", PerMinute: admission.Counts{Requests: 100}}}
	admits(t, s, "req_1", nodes...)
	for _, key := range m.Keys() {
		if !strings.Contains(key, "{ten_a}") {
			t.Errorf("key %q lacks the tenant's hash tag", key)
		}
		if m.TTL(key) <= 0 {
			t.Errorf("key %q never expires", key)
		}
	}
	m.FastForward(time.Minute)
	if left := m.Keys(); len(left) > 0 {
		t.Errorf("after a minute %v are left", left)
	}
}

func TestClientErrorsHideThePassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"redis://:s3cret@127.0.0.1:bad", "http://:s3cret@127.0.0.1", "redis://:s3cret@[::1"} {
		if _, err := admission.Client(admission.ClientConfig{URL: url}); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("error = %v, want one without the password", err)
		}
	}
}

func BenchmarkRedisAdmitAndRelease(b *testing.B) {
	s := newRedis(b, startRedis(b), admission.RedisConfig{})
	nodes := []admission.Node{
		{ID: "ten_abcdefghijklmnopqrstuvwxyz", PerMinute: admission.Counts{Requests: 50_000_000}, Concurrency: 1000},
		{ID: "key_abcdefghijklmnopqrstuvwxyz", PerMinute: admission.Counts{Requests: 50_000_000}, Concurrency: 1000},
	}
	b.ReportAllocs()
	for b.Loop() {
		if v, err := s.Admit(b.Context(), ask("req_abcdefghijklmnopqrstuvwxyz", nodes)); err != nil || !v.Admitted {
			b.Fatalf("verdict = %+v, error = %v", v, err)
		}
		_ = s.Release(b.Context(), ask("req_abcdefghijklmnopqrstuvwxyz", nodes), one)
	}
}

// The four nodes of a request that is billed, in process and in Redis.
func BenchmarkAdmitAndReleaseWithIntent(b *testing.B) {
	nodes := []admission.Node{
		{ID: "ten_abcdefghijklmnopqrstuvwxyz", PerMinute: admission.Counts{Requests: 50_000_000, Tokens: 1 << 40}, Concurrency: 1000},
		{ID: "ten_abcdefghijklmnopqrstuvwxyz/mdl_abcdefghijklmnopqrstuvwxyz", PerMinute: admission.Counts{Tokens: 1 << 40}},
		{ID: "prj_abcdefghijklmnopqrstuvwxyz", PerMinute: admission.Counts{Requests: 50_000_000}},
		{ID: "key_abcdefghijklmnopqrstuvwxyz", PerMinute: admission.Counts{Requests: 50_000_000}, Concurrency: 1000},
	}
	r := asked(1)
	r.Nodes, r.Estimate = nodes, admission.Counts{Requests: 1, Tokens: 100}
	for _, c := range []struct {
		name string
		open func(b *testing.B) admission.Store
	}{
		{"file", func(b *testing.B) admission.Store {
			b.Helper()
			j, err := admission.OpenJournal(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = j.Close() })
			return admission.NewMemory(admission.MemoryConfig{Journal: j})
		}},
		{"redis", func(b *testing.B) admission.Store {
			b.Helper()
			return newRedis(b, startRedis(b), admission.RedisConfig{})
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := c.open(b)
			b.ReportAllocs()
			for b.Loop() {
				if v, err := s.Admit(b.Context(), r); err != nil || !v.Admitted {
					b.Fatalf("verdict = %+v, error = %v", v, err)
				}
				_ = s.Release(b.Context(), r, one)
			}
		})
	}
}
