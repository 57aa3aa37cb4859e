package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/gateway"
	"weir/gateway/catalogue"
	"weir/tenants"
)

// keyring is an authenticator over a few keys in memory.
type keyring struct {
	mu     sync.Mutex
	keys   map[string]*tenants.Principal
	faults map[string]error
	asked  int
}

func (k *keyring) Authenticate(_ context.Context, secret string, _ netip.Addr) (*tenants.Principal, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	if err, ok := k.faults[secret]; ok {
		return nil, err
	}
	if p, ok := k.keys[secret]; ok {
		return p, nil
	}
	return nil, tenants.ErrUnknownKey
}

func (k *keyring) Guard(ctx context.Context, _ *tenants.Principal) (context.Context, func()) {
	guarded, cancel := context.WithCancelCause(ctx)
	return guarded, func() { cancel(nil) }
}

// runner is a gateway whose exchanges are a function.
type runner func(ctx context.Context, c gateway.Call, s gateway.Sink) error

func (r runner) Run(ctx context.Context, c gateway.Call, s gateway.Sink) error { return r(ctx, c, s) }

func (runner) CountTokens(_ context.Context, c gateway.Call) (int64, error) {
	return int64(len(c.Fields)), nil
}

// shop is a catalogue in memory.
type shop []*catalogue.Model

func (s shop) Models() []*catalogue.Model { return s }

func (s shop) Lookup(name string) (*catalogue.Model, bool) {
	for _, m := range s {
		if m.Name == name || slices.Contains(m.Aliases, name) {
			return m, true
		}
	}
	return nil, false
}

// Offers keeps what is served elsewhere from everybody.
func (shop) Offers(m *catalogue.Model, _ *tenants.Principal) bool {
	return len(m.Routes) == 0 || m.Routes[0].Pool != "elsewhere"
}

func newShop() shop {
	shutdown := time.Date(2999, 3, 1, 0, 0, 0, 0, time.UTC)
	past := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return shop{
		{Name: "org/big", Created: 1700000000, OwnedBy: "org", Context: 131072, MaxOutput: 4096, ShutdownDate: &shutdown, TemplateKeys: []string{"enable_thinking"}},
		{Name: "org/gone", ShutdownDate: &past},
		{Name: "org/theirs", Routes: []catalogue.Route{{Pool: "elsewhere"}}},
		{Name: "sim-chat", Aliases: []string{"gpt-sim"}},
	}
}

func newKeyring() *keyring {
	plan := &tenants.Plan{Name: "basic", Bands: map[tenants.Tier]string{tenants.TierDefault: "standard"}, Weight: 1}
	principal := func(kind tenants.Kind, scopes, models []string) *tenants.Principal {
		return &tenants.Principal{Tenant: "ten_a", Key: "key_a", Kind: kind, Scopes: scopes, Models: models, Plan: plan}
	}
	return &keyring{
		keys: map[string]*tenants.Principal{
			"good":   principal(tenants.ProjectKey, nil, nil),
			"narrow": principal(tenants.ServiceKey, []string{tenants.ScopeEmbeddings}, nil),
			"one":    principal(tenants.ProjectKey, nil, []string{"sim-chat"}),
			"admin":  principal(tenants.AdminKey, nil, nil),
		},
		faults: map[string]error{
			"malformed": tenants.ErrMalformedKey,
			"expired":   fmt.Errorf("look up key: %w", tenants.ErrExpired),
			"revoked":   tenants.ErrRevoked,
			"elsewhere": tenants.ErrAddress,
			"suspended": tenants.ErrSuspended,
			"dark":      fmt.Errorf("%w: connection refused", tenants.ErrUnavailable),
			"broken":    errors.New("secret internals of db-host:5432"),
		},
	}
}

// respond answers every exchange with a small document, or three events.
func respond(ctx context.Context, c gateway.Call, s gateway.Sink) error {
	shutdown := time.Date(2999, 3, 1, 0, 0, 0, 0, time.UTC)
	head := gateway.Head{Stream: c.Stream, Shutdown: &shutdown, Band: "standard", QueueTime: 12 * time.Millisecond, Limit: gateway.LimitState{Requests: 60, RemainingRequests: 59, ResetRequests: time.Second}}
	if err := s.Begin(ctx, head); err != nil {
		return err
	}
	if !c.Stream {
		return s.Send(ctx, documentFor(c.Operation))
	}
	for _, event := range []string{`{"choices":[{"index":0,"delta":{"role":"assistant","content":"hi"}}]}`, `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`, `[DONE]`} {
		if err := s.Send(ctx, []byte("data: "+event+"\n\n")); err != nil {
			return err
		}
	}
	return nil
}

func documentFor(op gateway.Operation) []byte {
	switch op {
	case gateway.Completions:
		return []byte(`{"id":"c","object":"text_completion","created":1,"model":"sim-chat","choices":[{"index":0,"text":"hi","finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
	case gateway.Embeddings:
		return []byte(`{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,0.2]}],"model":"sim-embed","usage":{"prompt_tokens":1,"total_tokens":1}}`)
	default:
		return []byte(`{"id":"c","object":"chat.completion","created":1,"model":"sim-chat","choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
	}
}

// house is a server on loopback with what it was built from.
type house struct {
	url      string
	server   *Server
	keys     *keyring
	registry *prometheus.Registry
	logs     *logBuffer
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newHouse(t *testing.T, run runner, config Config) *house {
	t.Helper()
	h := &house{keys: newKeyring(), registry: prometheus.NewRegistry(), logs: &logBuffer{}}
	log := slog.New(slog.NewTextHandler(h.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if run == nil {
		run = respond
	}
	h.server = New(log, Deps{
		Config: config, Keys: h.keys, Gateway: run, Catalogue: func() Catalogue { return newShop() },
		Registerer: h.registry, Gatherer: h.registry,
	})
	ts := httptest.NewUnstartedServer(nil)
	ts.Config = h.server.HTTPServer("", h.server.Handler())
	ts.Start()
	t.Cleanup(ts.Close)
	h.url = ts.URL
	return h
}

const helloBody = `{"model":"sim-chat","messages":[{"role":"user","content":"hi"}]}`

type reply struct {
	status int
	header http.Header
	body   string
}

// send makes a request with the good key, unless headers say otherwise. Headers
// are pairs; an empty value removes the header.
func (h *house) send(t *testing.T, method, path string, body io.Reader, headers ...string) reply {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, h.url+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer good")
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
		} else {
			r.Header.Set(headers[i], headers[i+1])
		}
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, string(got)}
}

func (h *house) chat(t *testing.T, body string, headers ...string) reply {
	t.Helper()
	return h.send(t, http.MethodPost, "/v1/chat/completions", strings.NewReader(body), headers...)
}

// wantError checks the whole envelope and returns it.
func wantError(t *testing.T, r reply, status int, code string) envelopeError {
	t.Helper()
	var raw struct {
		Error map[string]json.RawMessage `json:"error"`
	}
	var e envelope
	if err := json.Unmarshal([]byte(r.body), &raw); err != nil {
		t.Fatalf("status %d, not an envelope: %q", r.status, r.body)
	}
	if err := json.Unmarshal([]byte(r.body), &e); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"message", "type", "param", "code"} {
		if _, ok := raw.Error[key]; !ok {
			t.Errorf("the envelope lacks %q: %s", key, r.body)
		}
	}
	got := ""
	if e.Error.Code != nil {
		got = *e.Error.Code
	}
	if r.status != status || got != code || e.Error.Message == "" {
		t.Errorf("want %d %q, got %d: %s", status, code, r.status, r.body)
	}
	if r.header.Get("Content-Type") != "application/json" || !strings.HasPrefix(r.header.Get("X-Request-Id"), "req_") {
		t.Errorf("headers of an error: %v", r.header)
	}
	return e.Error
}

func TestADocumentCarriesItsHeaders(t *testing.T) {
	t.Parallel()
	var got gateway.Call
	h := newHouse(t, func(ctx context.Context, c gateway.Call, s gateway.Sink) error {
		got = c
		got.Fields = bytes.Clone(c.Fields) // lent until Run returns
		return respond(ctx, c, s)
	}, Config{})
	r := h.chat(t, `{"model":"sim-chat","messages":[{"role":"user","content":"hi"}],"user":"u","top_k":3}`,
		"X-Client-Request-Id", "mine-1", "X-Weir-Queue-Ttl", "2.5", "X-Request-Id", "req_forged")
	if r.status != http.StatusOK || r.body != string(documentFor(gateway.Chat)) {
		t.Fatalf("got %d %s", r.status, r.body)
	}
	want := map[string]string{
		"Content-Type": "application/json", "Cache-Control": "no-store", "Openai-Version": "2020-10-01",
		"X-Weir-Queue-Ms": "12", "Sunset": "Fri, 01 Mar 2999 00:00:00 GMT", "X-Weir-Band": "standard", "X-Weir-Ignored": "user", "X-Request-Id": got.ID,
		"X-Ratelimit-Limit-Requests": "60", "X-Ratelimit-Remaining-Requests": "59", "X-Ratelimit-Reset-Requests": "1s",
	}
	for name, value := range want {
		if r.header.Get(name) != value {
			t.Errorf("%s: want %q, got %q", name, value, r.header.Get(name))
		}
	}
	if r.header.Get("Openai-Processing-Ms") == "" || r.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("headers: %v", r.header)
	}
	if len(got.ID) != len("req_")+26 || got.ID == "req_forged" {
		t.Errorf("id %q", got.ID)
	}
	if got.ClientRequestID != "mine-1" || got.QueueTTL != 2500*time.Millisecond || got.Principal.Key != "key_a" || got.ReceivedAt.IsZero() {
		t.Errorf("call: %+v", got)
	}
	if want := `"messages":[{"role":"user","content":"hi"}],"top_k":3`; string(got.Fields) != want {
		t.Errorf("want fields %s, got %s", want, got.Fields)
	}
}

func TestAStreamIsFlushedEventByEvent(t *testing.T) {
	t.Parallel()
	next := make(chan struct{})
	h := newHouse(t, func(ctx context.Context, _ gateway.Call, s gateway.Sink) error {
		if err := s.Begin(ctx, gateway.Head{Stream: true}); err != nil {
			return err
		}
		for _, event := range []string{"data: 1\n\n", "data: 2\n\n", "data: [DONE]\n\n"} {
			if err := s.Send(ctx, []byte(event)); err != nil {
				return err
			}
			<-next
		}
		return nil
	}, Config{})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/v1/chat/completions", strings.NewReader(helloBody[:len(helloBody)-1]+`,"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer good")
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream; charset=utf-8" {
		t.Errorf("type %q", got)
	}
	if resp.Header.Get("X-Accel-Buffering") != "no" || !strings.HasPrefix(resp.Header.Get("Cache-Control"), "no-cache") {
		t.Errorf("headers: %v", resp.Header)
	}
	// Each event arrives while the exchange waits for us.
	for _, want := range []string{"data: 1\n\n", "data: 2\n\n", "data: [DONE]\n\n"} {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != want {
			t.Fatalf("want %q, got %q (%v)", want, got, err)
		}
		next <- struct{}{}
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) > 0 {
		t.Errorf("behind the end: %q (%v)", rest, err)
	}
}

func TestABrokenStreamEndsWithAnErrorEventAndWithoutDone(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(ctx context.Context, _ gateway.Call, s gateway.Sink) error {
		err := errors.Join(s.Begin(ctx, gateway.Head{Stream: true}), s.Send(ctx, []byte("data: 1\n\n")))
		died := &gateway.Error{Cause: gateway.UpstreamDied, Err: errors.New("10.0.0.7: reset")}
		s.Fail(ctx, died)
		return errors.Join(err, died)
	}, Config{})
	r := h.chat(t, helloBody)
	event, ok := strings.CutPrefix(r.body, "data: 1\n\ndata: ")
	if !ok || !strings.HasSuffix(event, "\n\n") || strings.Contains(event, "DONE") || strings.Contains(event, "10.0.0.7") {
		t.Fatalf("got %q", r.body)
	}
	var e envelope
	if err := json.Unmarshal([]byte(event), &e); err != nil || e.Error.Type != "server_error" {
		t.Errorf("event %q: %v", event, err)
	}
}

func TestAFailureBeforeTheFirstByteHasItsOwnStatus(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{true, false} {
		h := newHouse(t, func(ctx context.Context, _ gateway.Call, s gateway.Sink) error {
			if err := s.Begin(ctx, gateway.Head{Stream: stream}); err != nil {
				return err
			}
			busy := &gateway.Error{Cause: gateway.UpstreamBusy}
			s.Fail(ctx, busy)
			return busy
		}, Config{})
		wantError(t, h.chat(t, helloBody), http.StatusServiceUnavailable, "server_is_overloaded")
	}
}

func TestADocumentThatIsCutDoesNotPassForWhole(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(ctx context.Context, _ gateway.Call, s gateway.Sink) error {
		err := errors.Join(s.Begin(ctx, gateway.Head{Stream: true}), s.Send(ctx, []byte("data: 1\n\n")))
		panic(fmt.Sprint("in the middle: ", err))
	}, Config{})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/v1/chat/completions", strings.NewReader(helloBody))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer good")
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the answer looks whole")
	}
}

func TestAPanicIsAnErrorOfOursThatTellsNothing(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(context.Context, gateway.Call, gateway.Sink) error { panic("the password is hunter2") }, Config{})
	r := h.chat(t, helloBody)
	wantError(t, r, http.StatusInternalServerError, "")
	if strings.Contains(r.body, "hunter2") {
		t.Error("the panic's text reached the caller")
	}
	if !strings.Contains(h.logs.String(), "request panicked") {
		t.Error("the panic is not in the log")
	}
	if again := h.chat(t, helloBody); again.status != http.StatusInternalServerError {
		t.Errorf("the server does not go on: %d", again.status)
	}
}

func TestOnlyListedRoutesExist(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	tests := []struct {
		method, path string
		status       int
		code         string
	}{
		{http.MethodGet, "/", 404, "unknown_url"},
		{http.MethodGet, "/v1", 404, "unknown_url"},
		{http.MethodPost, "/v1/chat/completions/", 404, "unknown_url"},
		{http.MethodPost, "/v1//chat/completions", 404, "unknown_url"},
		{http.MethodPost, "/v1/chat%2Fcompletions", 404, "unknown_url"},
		{http.MethodPost, "/v1/chat/../chat/completions", 404, "unknown_url"},
		{http.MethodPost, "/V1/chat/completions", 404, "unknown_url"},
		{http.MethodPost, "/tokenize", 404, "unknown_url"},
		{http.MethodPost, "/invocations", 404, "unknown_url"},
		{http.MethodGet, "/metrics", 404, "unknown_url"},
		{http.MethodGet, "/healthz", 404, "unknown_url"},
		{http.MethodGet, "/ops/v1/pools", 404, "unknown_url"},
		{http.MethodGet, "/v1/completions", 405, "method_not_supported"},
		{http.MethodDelete, "/v1/models", 405, "method_not_supported"},
		{http.MethodPost, "/v1/models/sim-chat", 405, "method_not_supported"},
		{http.MethodOptions, "/v1/chat/completions", 405, "method_not_supported"},
		{http.MethodOptions, "/nowhere", 405, "method_not_supported"},
	}
	for _, tt := range tests {
		t.Run(tt.method+" "+tt.path, func(t *testing.T) {
			t.Parallel()
			wantError(t, h.send(t, tt.method, tt.path, nil), tt.status, tt.code)
		})
	}
}

func TestModels(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	big := `{"id":"org/big","object":"model","created":1700000000,"owned_by":"org","context_length":131072,"max_output_tokens":4096,"shutdown_date":"2999-03-01"}`
	sim := `{"id":"sim-chat","object":"model","created":0,"owned_by":"weir"}`
	tests := []struct {
		name, path, key string
		status          int
		want            string
	}{
		{"all models", "/v1/models", "good", 200, `{"object":"list","data":[` + big + `,` + sim + `]}`},
		{"those that the key may use", "/v1/models", "one", 200, `{"object":"list","data":[` + sim + `]}`},
		{"one", "/v1/models/sim-chat", "good", 200, sim},
		{"by its alias", "/v1/models/gpt-sim", "one", 200, sim},
		{"a name with a slash", "/v1/models/org/big", "good", 200, big},
		{"a name with an escaped slash", "/v1/models/org%2Fbig", "good", 200, big},
		{"an unknown one", "/v1/models/nothing", "good", 404, ""},
		{"one that the key may not use looks unknown", "/v1/models/org/big", "one", 404, ""},
		{"one that is shut down looks unknown, and is not listed", "/v1/models/org/gone", "good", 404, ""},
		{"one that no pool may serve to the caller looks unknown, and is not listed", "/v1/models/org/theirs", "good", 404, ""},
		{"no name", "/v1/models/", "good", 404, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := h.send(t, http.MethodGet, tt.path, nil, "Authorization", "Bearer "+tt.key)
			if tt.status != http.StatusOK {
				wantError(t, r, tt.status, "model_not_found")
				return
			}
			if r.status != tt.status || r.body != tt.want {
				t.Errorf("want %s, got %d %s", tt.want, r.status, r.body)
			}
		})
	}
}

// What a caller sends in headers that are ours, or an engine's, is no part of
// the call.
func TestInternalHeadersChangeNothing(t *testing.T) {
	t.Parallel()
	var calls []string
	h := newHouse(t, func(ctx context.Context, c gateway.Call, s gateway.Sink) error {
		c.ID, c.ReceivedAt = "", time.Time{}
		calls = append(calls, fmt.Sprintf("%+v %s", c, c.Fields))
		return respond(ctx, c, s)
	}, Config{})
	plain := h.chat(t, helloBody)
	forged := h.chat(t, helloBody,
		"X-Request-Id", "req_1", "X-Data-Parallel-Rank", "1", "X-Gateway-Priority", "9", "X-Gateway-Inference-Objective", "top",
		"X-Gateway-Inference-Fairness-Id", "other", "X-Llm-D-Priority", "9", "X-Weir-Band", "top", "X-Weir-Tenant", "ten_b",
		"X-Forwarded-For", "10.0.0.1", "Openai-Organization", "org_b", "Cookie", "session=1", "Traceparent", "00-1-1-01",
	)
	if plain.status != 200 || forged.status != 200 || len(calls) != 2 || calls[0] != calls[1] {
		t.Errorf("the calls differ:\n%s", strings.Join(calls, "\n"))
	}
	for _, name := range []string{"X-Weir-Band", "X-Request-Id", "X-Weir-Tenant"} {
		if name != "X-Request-Id" && plain.header.Get(name) != forged.header.Get(name) || forged.header.Get(name) == "req_1" {
			t.Errorf("%s was taken over: %q", name, forged.header.Get(name))
		}
	}
}

func TestIgnoredNamesCannotForgeHeaders(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	r := h.chat(t, helloBody[:len(helloBody)-1]+`,"a\r\nSet-Cookie: x=1":1,"fine":2,"`+strings.Repeat("l", 100)+`":3}`)
	if got := r.header.Get("X-Weir-Ignored"); r.status != 200 || got != "?, fine, ?" || r.header.Get("Set-Cookie") != "" {
		t.Errorf("got %d %q", r.status, got)
	}
	var many strings.Builder
	for i := range 100 {
		fmt.Fprintf(&many, `,"x%d":1`, i)
	}
	r = h.chat(t, helloBody[:len(helloBody)-1]+many.String()+"}")
	if got := r.header.Get("X-Weir-Ignored"); r.status != 200 || len(got) > 1024 || !strings.HasSuffix(got, ", ...") {
		t.Errorf("got %d %q", r.status, got)
	}
}

func TestHeadersOfTheCallerAreBounded(t *testing.T) {
	t.Parallel()
	var ids []string
	h := newHouse(t, func(ctx context.Context, c gateway.Call, s gateway.Sink) error {
		ids = append(ids, c.ClientRequestID)
		return respond(ctx, c, s)
	}, Config{})
	for _, id := range []string{"fine", strings.Repeat("x", 129), "with space", "ünicode"} {
		h.chat(t, helloBody, "X-Client-Request-Id", id)
	}
	if got := strings.Join(ids, "|"); got != "fine|||" {
		t.Errorf("got %q", got)
	}
	for _, ttl := range []string{"soon", "-1", "0", "48h", "1e300", "NaN"} {
		e := wantError(t, h.chat(t, helloBody, "X-Weir-Queue-Ttl", ttl), http.StatusBadRequest, "invalid_value")
		if e.Param == nil || *e.Param != "x-weir-queue-ttl" {
			t.Errorf("%s: param %v", ttl, e.Param)
		}
	}
	if r := h.chat(t, helloBody, "X-Weir-Queue-Ttl", "1m30s"); r.status != 200 {
		t.Errorf("a duration: %d", r.status)
	}
}

func TestRequestsAreCountedByRouteAndStatus(t *testing.T) {
	t.Parallel()
	h := newHouse(t, nil, Config{})
	h.chat(t, helloBody)
	h.chat(t, "{}")
	h.send(t, http.MethodGet, "/v1/models/a/b", nil)
	h.send(t, http.MethodGet, "/random/"+strings.Repeat("x", 50), nil)
	families, err := h.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				labels += l.GetValue() + " "
			}
			got[labels] = m.GetCounter().GetValue()
		}
	}
	for _, want := range []string{"/v1/chat/completions 200 ", "/v1/chat/completions 400 ", "/v1/models/* 404 ", "none 404 "} {
		if got[want] != 1 {
			t.Errorf("%q is %v in %v", want, got[want], got)
		}
	}
}
