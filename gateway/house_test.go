package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"weir/billing"
	"weir/gateway"
	"weir/gateway/admission"
	"weir/gateway/catalogue"
	"weir/scheduler"
	"weir/tenants"
)

const poolName = "main"

// house is a gateway with all it needs: real scheduler and limits, a ledger in
// memory, and engines that do what a test scripts.
type house struct {
	*gateway.Gateway
	snapshot *catalogue.Snapshot
	limits   *admission.Memory // nil: a store that can't answer
	ledger   *ledger
	funds    gateway.Funds // nil: nothing can be held
	pools    *pools
	plan     *tenants.Plan
	logs     *lockedBuffer
	metrics  *prometheus.Registry
	config   gateway.Config
}

// build takes the URLs of the engines. Options may change any part before the
// gateway is made.
func build(tb testing.TB, urls []string, options ...func(*house)) *house {
	tb.Helper()
	var endpoints []string
	for i, u := range urls {
		endpoints = append(endpoints, fmt.Sprintf("{id: e%d, url: %q, engine: sim, api_key_env: ENGINE_KEY}", i+1, u))
	}
	doc, _, err := catalogue.Parse([]byte(`apiVersion: weir/v1
bands: [{name: standard, priority: 0}, {name: fast, priority: 10}, {name: spare, priority: -10}]
pools: [{name: main, isolation: single-tenant, tenants: [ten_a], endpoints: [` + strings.Join(endpoints, ", ") + `]}]
models:
  - name: pub
    aliases: [nick]
    engine_model: org/engine
    operations: [chat, completions]
    context_length: 4096
    routes: [{pool: main}]
    timeouts: {connect: 2s, first_byte: 10s, idle: 5s, total: 60s}
  - {name: vectors, operations: [embeddings], routes: [{pool: main}]}
  - {name: gone, operations: [chat], routes: [{pool: main}], shutdown_date: 2020-01-01T00:00:00Z}
`))
	if err != nil {
		tb.Fatal(err)
	}
	book := billing.NewBook([]billing.Price{{
		Model: "pub", Version: 7, Tiers: billing.DefaultTiers(),
		Input: 1_000_000, CachedInput: 500_000, Output: 2_000_000, Reasoning: 3_000_000,
	}})
	h := &house{
		snapshot: doc.Snapshot(book),
		limits:   admission.NewMemory(admission.MemoryConfig{}),
		ledger:   &ledger{},
		plan: &tenants.Plan{
			Name: "basic", Weight: 1,
			Bands:  map[tenants.Tier]string{tenants.TierDefault: "standard", tenants.TierPriority: "fast"},
			Limits: tenants.Limits{Concurrency: 1},
		},
		logs: &lockedBuffer{}, metrics: prometheus.NewRegistry(),
		config: gateway.Config{
			SaltSecret: []byte("salt"),
			Secrets:    func(env string) string { return "value of " + env },
		},
	}
	h.pools = newPools(urls)
	for _, o := range options {
		o(h)
	}
	tb.Cleanup(h.pools.close)
	var limits admission.Store = silentStore{}
	var intents admission.Intents
	if h.limits != nil {
		limits, intents = h.limits, h.limits
	}
	h.Gateway = gateway.New(slog.New(slog.NewJSONHandler(h.logs, nil)), gateway.Deps{
		Catalogue: h, Limits: limits, Intents: intents, Pools: h.pools, Receipts: h.ledger, Funds: h.funds, Metrics: h.metrics,
	}, h.config)
	tb.Cleanup(h.Close)
	return h
}

// shared opens the pool to all tenants.
func shared(h *house) {
	pool, _ := h.snapshot.Pool(poolName)
	pool.Isolation, pool.Tenants = "", nil
}

func (h *house) Snapshot() *catalogue.Snapshot { return h.snapshot }

// call is a chat of one tenant; change may be nil.
func (h *house) call(change func(*gateway.Call)) gateway.Call {
	c := gateway.Call{
		ID: "req_1", ClientRequestID: "theirs", Operation: gateway.Chat, Model: "pub",
		Fields:    []byte(`"messages":[{"role":"user","content":"hello there, engine"}]`),
		Principal: &tenants.Principal{Tenant: "ten_a", Project: "prj_a", Key: "key_a", Plan: h.plan, FairnessID: "f_a"},
		Choices:   1, ReceivedAt: time.Now(),
	}
	if change != nil {
		change(&c)
	}
	return c
}

// idle fails the test if anything is still held: the plan lets one request run
// at a time, and the pool's scheduler knows all live leases.
func (h *house) idle(t *testing.T) {
	t.Helper()
	if h.limits == nil {
		return
	}
	node := []admission.Node{{ID: "ten_a", Concurrency: 1}}
	v, err := h.limits.Admit(context.WithoutCancel(t.Context()), probe("req_probe", node))
	if err != nil || !v.Admitted {
		t.Errorf("a slot is still held (%v)", err)
	}
	_ = h.limits.Release(context.WithoutCancel(t.Context()), probe("req_probe", node), admission.Counts{})
	for _, e := range h.pools.queue.State().Endpoints {
		if e.Live != 0 {
			t.Errorf("endpoint %s still has %d leases", e.ID, e.Live)
		}
	}
}

// keyNode is the node of the test's key.
var keyNode = []admission.Node{{ID: "key_a", Concurrency: 1}}

// silentStore is a limits store that is lost.
type silentStore struct{}

func (silentStore) Admit(context.Context, *admission.Request) (admission.Verdict, error) {
	return admission.Verdict{}, errLeft
}

func (silentStore) Release(context.Context, *admission.Request, admission.Counts) error {
	return errLeft
}

func (silentStore) Look(context.Context, string, []admission.Node) ([]admission.Standing, error) {
	return nil, errLeft
}

// probe asks the limits beside the gateway.
func probe(id string, nodes []admission.Node) *admission.Request {
	return &admission.Request{ID: id, Tenant: "ten_a", Nodes: nodes, Estimate: admission.Counts{Requests: 1}}
}

func options(o func(*house)) []func(*house) {
	if o == nil {
		return nil
	}
	return []func(*house){o}
}

// pools is one pool with a real scheduler that remembers how leases ended.
type pools struct {
	queue *scheduler.Embedded
	other scheduler.Scheduler // in its place, if set
	probe func(endpoint string) error
	mute  bool // it doesn't say where a request stands

	mu       sync.Mutex
	requests []scheduler.Request
	outcomes []scheduler.Outcome
	observed []scheduler.ProgressKind
	avoid    string // an endpoint that first attempts don't go to
	then     func() // after each grant; may be nil
}

// onSchedule calls f after each grant.
func (p *pools) onSchedule(f func()) { p.then = f }

// reset forgets what was seen.
func (p *pools) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests, p.outcomes, p.observed = nil, nil, nil
}

// spare adds an endpoint that is the last choice.
func (h *house) spare(url string) {
	pool, _ := h.snapshot.Pool(poolName)
	pool.Endpoints = append(pool.Endpoints, catalogue.Endpoint{ID: "e2", URL: url})
	p := h.pools
	first := p.queue.State().Endpoints[0]
	p.queue.SetEndpoints([]scheduler.Endpoint{{ID: first.ID, URL: first.URL}, {ID: "e2", URL: url}})
	p.queue.SetHealth("e2", scheduler.Healthy)
	p.avoid = "e2"
}

func newPools(urls []string) *pools {
	// No circuit opens, so that each test says itself which endpoint is used.
	p := &pools{queue: scheduler.New(scheduler.Config{MaxConcurrency: 8, Breaker: scheduler.Breaker{Faults: 1000}}, time.Now)}
	var endpoints []scheduler.Endpoint
	for i, u := range urls {
		endpoints = append(endpoints, scheduler.Endpoint{ID: fmt.Sprintf("e%d", i+1), URL: u})
	}
	p.queue.SetEndpoints(endpoints)
	for _, e := range endpoints {
		p.queue.SetHealth(e.ID, scheduler.Healthy)
	}
	return p
}

func (p *pools) close() { p.queue.Close() }

func (p *pools) Pressure(band int) (float64, time.Duration) { return p.queue.Pressure(band) }

func (p *pools) Scheduler(name string) (scheduler.Scheduler, bool) {
	if p.mute {
		return struct{ scheduler.Scheduler }{p}, name == poolName
	}
	return p, name == poolName
}

func (p *pools) State() scheduler.State { return p.queue.State() }

func (p *pools) Position(id string) (scheduler.Position, bool) { return p.queue.Position(id) }

func (p *pools) Probe(_ context.Context, _, endpoint string) error {
	if p.probe == nil {
		return nil
	}
	return p.probe(endpoint)
}

func (p *pools) Schedule(ctx context.Context, r scheduler.Request) (scheduler.Lease, error) {
	p.mu.Lock()
	p.requests = append(p.requests, r)
	p.mu.Unlock()
	s := p.other
	if s == nil {
		s = p.queue
	}
	if len(r.Exclude) == 0 && p.avoid != "" {
		r.Exclude = []string{p.avoid}
	}
	l, err := s.Schedule(ctx, r)
	if err != nil {
		return nil, err
	}
	if p.then != nil {
		p.then()
	}
	return &spiedLease{l, p}, nil
}

type spiedLease struct {
	scheduler.Lease
	pools *pools
}

func (l *spiedLease) Tokens() int {
	if known, ok := l.Lease.(interface{ Tokens() int }); ok {
		return known.Tokens()
	}
	return 0
}

func (l *spiedLease) Observe(p scheduler.Progress) {
	l.pools.mu.Lock()
	l.pools.observed = append(l.pools.observed, p.Kind)
	l.pools.mu.Unlock()
	l.Lease.Observe(p)
}

func (l *spiedLease) End(o scheduler.Outcome) {
	l.pools.mu.Lock()
	l.pools.outcomes = append(l.pools.outcomes, o)
	l.pools.mu.Unlock()
	l.Lease.End(o)
}

// results lists how the leases ended.
func (p *pools) results() []scheduler.Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []scheduler.Result
	for _, o := range p.outcomes {
		out = append(out, o.Result)
	}
	return out
}

// refusing is a scheduler that gives nothing.
type refusing struct{ refusal *scheduler.Refusal }

func (r refusing) Schedule(context.Context, scheduler.Request) (scheduler.Lease, error) {
	return nil, r.refusal
}

// evicting takes the endpoint back when its channel says so.
type evicting struct {
	scheduler.Scheduler
	when chan struct{}
}

func (e evicting) Schedule(ctx context.Context, r scheduler.Request) (scheduler.Lease, error) {
	l, err := e.Scheduler.Schedule(ctx, r)
	return evictable{l, e.when}, err
}

type evictable struct {
	scheduler.Lease
	when chan struct{}
}

func (e evictable) Evicted() <-chan struct{} { return e.when }

// ledger is a Settler in memory: idempotent by request id, like the real one.
type ledger struct {
	mu       sync.Mutex
	receipts []billing.Receipt
	calls    int
	err      error
	onSettle func()
	next     gateway.Settler // stores what this one took; nil: nobody
	booked   []billing.Receipt
}

func (l *ledger) Settle(ctx context.Context, r billing.Receipt, effect func(*pgx.Batch)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if l.onSettle != nil {
		l.onSettle()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if l.err != nil {
		return l.err
	}
	l.receipts = append(l.receipts, r)
	if l.next != nil {
		l.booked = append(l.booked, r)
		return l.next.Settle(ctx, r, effect)
	}
	return nil
}

func (l *ledger) all() []billing.Receipt {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]billing.Receipt(nil), l.receipts...)
}

func (l *ledger) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.receipts, l.calls = nil, 0
}

// caller is a Sink that remembers.
type caller struct {
	mu     sync.Mutex
	begins int
	head   gateway.Head
	bytes  bytes.Buffer
	sends  int
	failed []error
	leave  int          // after this many sends each fails; 0 is never
	onSend func(string) // may be nil
}

var errLeft = errors.New("connection closed")

func (c *caller) Begin(_ context.Context, h gateway.Head) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begins++
	c.head = h
	return nil
}

func (c *caller) Send(_ context.Context, p []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begins != 1 || len(c.failed) > 0 {
		panic("Send out of order")
	}
	if c.leave > 0 && c.sends >= c.leave {
		return errLeft
	}
	c.sends++
	c.bytes.Write(p)
	if c.onSend != nil {
		c.onSend(string(p))
	}
	return nil
}

func (c *caller) Fail(_ context.Context, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.begins != 1 {
		panic("Fail before Begin")
	}
	c.failed = append(c.failed, err)
}

func (c *caller) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes.String()
}

// lockedBuffer is where logs go.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// engine is a scripted model server: the n-th request meets the n-th step, the
// last step is for all further ones.
type engine struct {
	*httptest.Server

	mu       sync.Mutex
	requests []seenRequest
	gone     chan struct{} // receives when a request's context ends before its step does
}

type seenRequest struct {
	body   string
	header http.Header
	path   string
}

type step func(w http.ResponseWriter, r *http.Request)

func serve(tb testing.TB, steps ...step) *engine {
	tb.Helper()
	e := &engine{gone: make(chan struct{}, 16)}
	e.Server = httptest.NewServer(e.handler(steps))
	tb.Cleanup(e.Close)
	return e
}

func (e *engine) handler(steps []step) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		e.mu.Lock()
		n := len(e.requests)
		e.requests = append(e.requests, seenRequest{string(body), r.Header.Clone(), r.URL.Path})
		e.mu.Unlock()
		steps[min(n, len(steps)-1)](w, r)
		if r.Context().Err() != nil {
			select {
			case e.gone <- struct{}{}:
			default:
			}
		}
	})
}

func (e *engine) seen() []seenRequest {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]seenRequest(nil), e.requests...)
}

// chunk is an engine's event with one token; n is its running count, -1 for none.
func chunk(text string, n int) string {
	usage := ""
	if n >= 0 {
		usage = fmt.Sprintf(`,"usage":{"prompt_tokens":11,"completion_tokens":%d,"total_tokens":%d}`, n, 11+n)
	}
	return fmt.Sprintf(`data: {"id":"c","object":"chat.completion.chunk","created":7,"model":"org/engine","choices":[{"index":0,"delta":{"content":%q},"finish_reason":null}]%s}`, text, usage) + "\n\n"
}

// shown is what a caller sees of it.
func shown(text string) string {
	return strings.Replace(chunk(text, -1), "org/engine", "pub", 1)
}

const (
	usageEvent = `data: {"id":"c","object":"chat.completion.chunk","created":7,"model":"org/engine","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"reasoning_tokens":2}}}` + "\n\n"
	doneEvent  = "data: [DONE]\n\n"
	document   = `{"id":"c","model":"org/engine","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":11,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}}`
)

// events writes each piece by itself, as an event stream.
func events(pieces ...string) step {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for _, p := range pieces {
			_, _ = io.WriteString(w, p)
			_ = http.NewResponseController(w).Flush()
		}
	}
}

// then is one step after another.
func then(steps ...step) step {
	return func(w http.ResponseWriter, r *http.Request) {
		for _, s := range steps {
			s(w, r)
		}
	}
}

// hang waits until the client leaves.
func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// pause makes sure that what comes next is another read of the gateway.
func pause(_ http.ResponseWriter, r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-time.After(20 * time.Millisecond):
	}
}

// die breaks the connection off.
func die(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// answers writes a status and a body.
func answers(status int, body string) step {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "7")
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// closedPort is a URL where nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	return "http://" + l.Addr().String()
}

func causeOf(err error) gateway.Cause {
	if e, ok := errors.AsType[*gateway.Error](err); ok {
		return e.Cause
	}
	if err != nil {
		return gateway.Cause("not a *gateway.Error: " + err.Error())
	}
	return gateway.Success
}
