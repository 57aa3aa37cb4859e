package gateway_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/tidwall/gjson"

	"weir/billing"
	"weir/gateway"
	"weir/scheduler"
	"weir/tenants"
)

func stream(c *gateway.Call) { c.Stream = true }

// What the engine gets is made by us: its name for the model, its key, our
// salt and id; and of the caller's nothing but the checked fields.
func TestEngineGetsARequestMadeByUs(t *testing.T) {
	t.Parallel()
	whole := events(chunk("a", 1), usageEvent, doneEvent)
	tests := []struct {
		name     string
		step     step
		call     func(*gateway.Call)
		engine   string
		path     string
		accept   string
		has, not []string
	}{
		{
			name: "a stream", step: whole, call: stream, path: "/v1/chat/completions", accept: "text/event-stream",
			has: []string{`"model":"org/engine"`, `"stream":true`, `"stream_options":{"include_usage":true,"continuous_usage_stats":true}`, `"messages":[`, `"cache_salt":"`},
		},
		{
			name: "a document", step: answers(200, document), path: "/v1/chat/completions", accept: "application/json",
			has: []string{`"model":"org/engine"`, `"cache_salt":"`}, not: []string{`"stream`},
		},
		{
			name: "a legacy completion", step: whole, call: func(c *gateway.Call) { c.Operation, c.Stream = gateway.Completions, true },
			path: "/v1/completions", accept: "text/event-stream",
		},
		{
			name: "embeddings", step: answers(200, `{"object":"list","data":[],"model":"vectors","usage":{"prompt_tokens":9,"total_tokens":9}}`),
			call: func(c *gateway.Call) { c.Operation, c.Model = gateway.Embeddings, "vectors" },
			path: "/v1/embeddings", accept: "application/json", has: []string{`"model":"vectors"`}, not: []string{`"stream`},
		},
		{
			name: "an engine without vLLM's extensions", step: whole, call: stream, engine: "llamacpp", path: "/v1/chat/completions", accept: "text/event-stream",
			has: []string{`"stream_options":{"include_usage":true}`}, not: []string{"cache_salt", "continuous"},
		},
		{name: "no fields at all", step: whole, call: func(c *gateway.Call) { c.Stream, c.Fields = true, nil }, path: "/v1/chat/completions", accept: "text/event-stream"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := serve(t, tt.step)
			h := build(t, []string{e.URL})
			if tt.engine != "" {
				p, _ := h.snapshot.Pool(poolName)
				p.Endpoints[0].Engine = tt.engine
			}
			if err := h.Run(t.Context(), h.call(tt.call), &caller{}); err != nil {
				t.Fatal(err)
			}
			got := e.seen()[0]
			if !gjson.Valid(got.body) {
				t.Errorf("not JSON: %s", got.body)
			}
			for _, s := range tt.has {
				if !strings.Contains(got.body, s) {
					t.Errorf("no %s in %s", s, got.body)
				}
			}
			for _, s := range tt.not {
				if strings.Contains(got.body, s) {
					t.Errorf("%s in %s", s, got.body)
				}
			}
			want := http.Header{
				"Accept": {tt.accept}, "Authorization": {"Bearer value of ENGINE_KEY"}, "Content-Type": {"application/json"},
				"Content-Length": {fmt.Sprint(len(got.body))}, "User-Agent": {"weir"}, "X-Request-Id": {"req_1.1"},
			}
			if diff := cmp.Diff(want, got.header); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
			if got.path != tt.path {
				t.Errorf("path %s, want %s", got.path, tt.path)
			}
		})
	}
}

func TestCacheSaltSeparatesTenantsAndModels(t *testing.T) {
	t.Parallel()
	e := serve(t, answers(200, document))
	h := build(t, []string{e.URL}, shared)
	for i, change := range []func(*gateway.Call){
		func(*gateway.Call) {},
		func(c *gateway.Call) { c.Model = "nick" }, // an alias is the same model
		func(c *gateway.Call) { c.Principal.Tenant = "ten_b" },
		func(c *gateway.Call) { c.Operation, c.Model = gateway.Embeddings, "vectors" },
	} {
		c := h.call(change)
		c.ID = fmt.Sprintf("req_%d", i)
		if err := h.Run(t.Context(), c, &caller{}); err != nil {
			t.Fatal(err)
		}
	}
	var salts []string
	for i, r := range e.seen() {
		salts = append(salts, gjson.Get(r.body, "cache_salt").Str)
		if len(salts[i]) < 32 || strings.Contains(salts[i], "ten_") {
			t.Errorf("salt %q", salts[i])
		}
		if got := h.pools.requests[i].CacheSalt; got != salts[i] {
			t.Errorf("the scheduler hashes with %q, the engine with %q", got, salts[i])
		}
	}
	if salts[0] != salts[1] || salts[0] == salts[2] || salts[0] == salts[3] || salts[2] == salts[3] {
		t.Errorf("salts of one tenant's model twice, another tenant's, another model: %q", salts)
	}
}

// untimed is an answer without the queue times in it, which differ from run to
// run, and how many there were.
func untimed(text string) (string, int) {
	times := regexp.MustCompile(`,"queue_time":0\.\d{6}`)
	return times.ReplaceAllString(text, ""), len(times.FindAllString(text, -1))
}

func TestSchedulerIsToldWhatItNeeds(t *testing.T) {
	t.Parallel()
	e := serve(t, answers(200, document))
	h := build(t, []string{closedPort(t), e.URL}, func(h *house) { h.plan.Weight, h.plan.TTFTMillis, h.plan.ReservedTokens = 3, 250, 9000 })
	to := &caller{}
	err := h.Run(t.Context(), h.call(func(c *gateway.Call) {
		c.Tier, c.MaxTokens, c.Choices, c.QueueTTL = tenants.TierPriority, 50, 2, time.Minute
		c.Prompt[1], c.Affinity, c.Session, c.Turn = c.Fields[len(`"messages":`):], "agent", "resp_1", 4
	}), to)
	if err != nil {
		t.Fatal(err)
	}
	first, second := h.pools.requests[0], h.pools.requests[1]
	if first.ID != "req_1.1" || first.Flow != (scheduler.Flow{FairnessID: "f_a", Band: 10}) || first.Weight != 3 ||
		first.OutputTokens != 100 || first.InputTokens == 0 || first.TTL != time.Minute || !first.QueuedAt.IsZero() || len(first.Exclude) != 0 {
		t.Errorf("first attempt: %+v", first)
	}
	if len(first.Prompt) != 1 || !strings.HasPrefix(string(first.Prompt[0]), `[{"role"`) || !strings.Contains(string(first.Body), string(first.Prompt[0])) ||
		first.Affinity != "ten_a/agent" || first.Session != "ten_a/resp_1" || first.Turn != 4 ||
		first.Model != "org/engine" || first.TTFT != 250*time.Millisecond || first.Reserved != 9000 {
		t.Errorf("first attempt: %+v", first)
	}
	if second.ID != "req_1.2" || second.QueuedAt.IsZero() || !cmp.Equal(second.Exclude, []string{"e1"}) || string(second.Body) != string(first.Body) {
		t.Errorf("second attempt: %+v", second)
	}
	want := []scheduler.ProgressKind{scheduler.HeadersReceived, scheduler.FirstToken, scheduler.EventReceived}
	if diff := cmp.Diff(want, h.pools.observed); diff != "" {
		t.Errorf("observed (-want +got):\n%s", diff)
	}
	last := h.pools.outcomes[1]
	if last != (scheduler.Outcome{Result: scheduler.Completed, InputTokens: 7, CachedTokens: 4, OutputTokens: 5}) {
		t.Errorf("outcome %+v", last)
	}
	if to.head.Band != "fast" || to.head.Tier != tenants.TierPriority || to.head.Stream {
		t.Errorf("head %+v", to.head)
	}
}

func TestTierServedIsTheDefaultWhereThePlanLacksTheOther(t *testing.T) {
	t.Parallel()
	e := serve(t, events(chunk("a", 1), usageEvent, doneEvent))
	h := build(t, []string{e.URL})
	to := &caller{}
	if err := h.Run(t.Context(), h.call(func(c *gateway.Call) { c.Stream, c.Tier = true, tenants.TierFlex }), to); err != nil {
		t.Fatal(err)
	}
	if r := h.ledger.all()[0]; r.Tier != "default" || to.head.Tier != tenants.TierDefault || !strings.Contains(to.text(), `"service_tier":"default"`) {
		t.Errorf("receipt %q, head %q, %s", r.Tier, to.head.Tier, to.text())
	}
}

func TestLimitsAreToldWithAnswerAndRefusal(t *testing.T) {
	t.Parallel()
	e := serve(t, answers(200, document))
	h := build(t, []string{e.URL}, func(h *house) { h.plan.KeyLimits.RequestsPerMinute = 1 })
	to := &caller{}
	if err := h.Run(t.Context(), h.call(nil), to); err != nil {
		t.Fatal(err)
	}
	if l := to.head.Limit; l.Requests != 1 || l.RemainingRequests != 0 || l.ResetRequests <= 0 {
		t.Errorf("with the answer: %+v", l)
	}
	err := h.Run(t.Context(), h.call(func(c *gateway.Call) { c.ID = "req_2" }), &caller{})
	refusal, _ := err.(*gateway.Error) //nolint:errorlint // Run promises exactly this type
	if refusal == nil || refusal.Cause != gateway.RateLimited || refusal.RetryAfter <= 0 || refusal.Limit.Requests != 1 {
		t.Errorf("refused with %+v", refusal)
	}
	// A key with a limit of its own is not bound by the plan's for keys.
	if err := h.Run(t.Context(), h.call(func(c *gateway.Call) {
		c.ID, c.Principal.Key, c.Principal.Limits.RequestsPerMinute = "req_3", "key_b", 5
	}), &caller{}); err != nil {
		t.Errorf("own limit: %v", err)
	}
}

func TestTokensAreChargedByEstimateAndCorrectedToWhatWasUsed(t *testing.T) {
	t.Parallel()
	e := serve(t, answers(200, document))
	h := build(t, []string{e.URL}, func(h *house) { h.plan.KeyLimits.TokensPerMinute = 10_000 })
	ask := func(id string, bound int) (*caller, *gateway.Error) {
		to := &caller{}
		err := h.Run(t.Context(), h.call(func(c *gateway.Call) { c.ID, c.MaxTokens = id, bound }), to)
		refusal, _ := err.(*gateway.Error) //nolint:errorlint // Run promises exactly this type
		return to, refusal
	}
	to, refusal := ask("req_1", 5000)
	if refusal != nil {
		t.Fatal(refusal)
	}
	// While it ran, a thousand tokens of output were set aside for it.
	if l := to.head.Limit; l.Tokens != 10_000 || l.RemainingTokens > 10_000-1024 || l.RemainingTokens < 8_000 || l.ResetTokens <= 0 {
		t.Errorf("with the answer: %+v", l)
	}
	used := int(h.ledger.all()[0].Usage.InputUncached + h.ledger.all()[0].Usage.Output + h.ledger.all()[0].Usage.Reasoning)
	to, _ = ask("req_2", 1)
	if left := to.head.Limit.RemainingTokens; left < 10_000-used-200 {
		t.Errorf("%d are left after %d were used: the rest of the estimate did not come back", left, used)
	}
	h.plan.KeyLimits.TokensPerMinute = 10
	if _, refusal = ask("req_3", 1); refusal == nil || refusal.Cause != gateway.TokenRateLimited || refusal.RetryAfter <= 0 || refusal.Limit.Tokens != 10 {
		t.Errorf("refused with %+v", refusal)
	}
}

// A caller that leaves costs the engine no more work: it learns of it within
// 100 ms. One of three tries is enough, for the machine may be busy.
func TestEngineIsCancelledWhenTheCallerLeaves(t *testing.T) {
	t.Parallel()
	for _, isStream := range []bool{true, false} {
		t.Run(fmt.Sprintf("stream %v", isStream), func(t *testing.T) {
			t.Parallel()
			best := time.Hour
			for range 3 {
				best = min(best, timeToCancel(t, isStream))
			}
			if best > 100*time.Millisecond {
				t.Errorf("the engine learns of it after %v", best)
			}
		})
	}
}

func timeToCancel(t *testing.T, isStream bool) time.Duration {
	t.Helper()
	arrived := make(chan struct{})
	e := serve(t, func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		hang(w, r)
	})
	h := build(t, []string{e.URL})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx, h.call(func(c *gateway.Call) { c.Stream = isStream }), &caller{}) }()
	<-arrived
	left := time.Now()
	cancel()
	<-e.gone
	took := time.Since(left)
	if got := causeOf(<-ended); got != gateway.ClientGone {
		t.Errorf("ended as %q", got)
	}
	h.idle(t)
	return took
}

// A finished stream gives its connection back; so the next one needs no other.
func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	addresses := make(map[string]bool)
	count := func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		addresses[r.RemoteAddr] = true
		mu.Unlock()
	}
	e := serve(t,
		then(count, events(chunk("a", 1), usageEvent, doneEvent)),
		then(count, answers(200, document)),
		then(count, answers(400, `{"error":{"message":"no"}}`)),
		then(count, events(chunk("a", 1), doneEvent)))
	h := build(t, []string{e.URL})
	for i := range 4 {
		c := h.call(func(c *gateway.Call) { c.ID, c.Stream = fmt.Sprintf("req_%d", i), i%3 == 0 })
		_ = h.Run(t.Context(), c, &caller{})
	}
	if len(addresses) != 1 {
		t.Errorf("%d connections, want 1", len(addresses))
	}
}

// An engine that may have closed a waiting connection, and lives, did nothing
// wrong. It may also have read the request, which so goes elsewhere.
func TestABreakOfAWaitingConnectionIsNoFault(t *testing.T) {
	t.Parallel()
	e := serve(t, answers(200, document), die)
	h := build(t, []string{e.URL})
	h.spare(serve(t, answers(200, document)).URL)
	for i := range 2 {
		if err := h.Run(t.Context(), h.call(func(c *gateway.Call) { c.ID = fmt.Sprintf("req_%d", i) }), &caller{}); err != nil {
			t.Fatal(err)
		}
	}
	want := []scheduler.Result{scheduler.Completed, scheduler.Abandoned, scheduler.Completed}
	if diff := cmp.Diff(want, h.pools.results()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestARequestThatTookAnEndpointDownIsNotCarriedOn(t *testing.T) {
	t.Parallel()
	e, spare := serve(t, die), serve(t, answers(200, document))
	h := build(t, []string{e.URL})
	h.spare(spare.URL)
	h.pools.probe = func(string) error { return errTest }

	if got := causeOf(h.Run(t.Context(), h.call(nil), &caller{})); got != gateway.UpstreamReset {
		t.Errorf("the first time: %q", got)
	}
	if n := len(spare.seen()); n != 0 {
		t.Errorf("tried %d times on the spare endpoint", n)
	}
	again := h.Run(t.Context(), h.call(func(c *gateway.Call) { c.ID = "req_2" }), &caller{})
	if got := causeOf(again); got != gateway.SuspectRequest {
		t.Errorf("again: %q", got)
	}
	for name, change := range map[string]func(*gateway.Call){
		"another tenant's":   func(c *gateway.Call) { c.ID, c.Principal.Tenant = "req_3", "ten_b" },
		"another body":       func(c *gateway.Call) { c.ID, c.Fields = "req_4", []byte(`"messages":[]`) },
		"after a good while": func(c *gateway.Call) { c.ID, c.ReceivedAt = "req_5", time.Now().Add(time.Hour) },
	} {
		if got := causeOf(h.Run(t.Context(), h.call(change), &caller{})); got == gateway.SuspectRequest {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// When a whole pool fails, retries are at most a tenth of what it completed,
// and a few to begin with.
func TestRetriesHaveABudget(t *testing.T) {
	t.Parallel()
	fails := answers(500, `{}`)
	e, other := serve(t, fails), serve(t, fails)
	h := build(t, []string{e.URL, other.URL})
	for i := range 20 {
		if got := causeOf(h.Run(t.Context(), h.call(func(c *gateway.Call) { c.ID = fmt.Sprintf("req_%d", i) }), &caller{})); got != gateway.UpstreamStatus {
			t.Fatal(got)
		}
	}
	if n := len(e.seen()) + len(other.seen()); n != 23 {
		t.Errorf("%d attempts for 20 requests, want 23", n)
	}
}

func TestOddStreamsComeOutWhole(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("y", 1<<20)
	emoji := chunk("你🌍", 1)
	cut := strings.Index(emoji, "🌍") + 2
	whole := chunk("a", 1) + chunk("b", 2) + usageEvent + doneEvent
	byByte := make([]string, len(whole))
	for i := range whole {
		byByte[i] = whole[i : i+1]
	}
	tests := []struct {
		name   string
		pieces []string
		usage  bool
		want   string
	}{
		{"one byte at a time", byByte, false, shown("a") + shown("b") + doneEvent},
		{"all in one piece", []string{whole}, false, shown("a") + shown("b") + doneEvent},
		{"carriage returns", []string{strings.ReplaceAll(whole, "\n", "\r\n")}, false, shown("a") + shown("b") + doneEvent},
		{"a line of 1 MiB", []string{chunk(long, 1), usageEvent, doneEvent}, false, shown(long) + doneEvent},
		{"a character cut between two segments", []string{emoji[:cut], emoji[cut:], usageEvent, doneEvent}, false, shown("你🌍") + doneEvent},
		{"an end marker without its blank line", []string{chunk("a", 1), usageEvent, "data: [DONE]\n"}, false, shown("a") + doneEvent},
		{"comments and ids of the engine", []string{": hi\n\nid: 1\n" + chunk("a", 1) + ": ping\n\n", usageEvent, doneEvent}, false, shown("a") + doneEvent},
		{"what comes after the end marker", []string{chunk("a", 1), usageEvent, doneEvent + chunk("b", 2)}, false, shown("a") + doneEvent},
		{
			"usage that was asked for",
			[]string{chunk("a", 1), usageEvent, doneEvent},
			true,
			strings.Replace(shown("a"), `}]}`, `}],"usage":null}`, 1) + strings.Replace(usageEvent, "org/engine", "pub", 1) + doneEvent,
		},
		{
			"usage on a chunk with choices",
			[]string{chunk("a", 1), chunk("b", 2), doneEvent},
			true,
			strings.Replace(shown("a"), `}]}`, `}],"usage":null}`, 1) + strings.Replace(shown("b"), `}]}`, `}],"usage":null}`, 1) +
				`data: {"id":"c","object":"chat.completion.chunk","created":7,"model":"pub","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":2,"total_tokens":13}}` + "\n\n" + doneEvent,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := build(t, []string{serve(t, events(tt.pieces...)).URL})
			to := &caller{}
			if err := h.Run(t.Context(), h.call(func(c *gateway.Call) { c.Stream, c.IncludeUsage = true, tt.usage }), to); err != nil {
				t.Fatal(err)
			}
			got, times := untimed(to.text())
			if got != tt.want || times > 0 != tt.usage {
				t.Errorf("got  %.600s\nwant %.600s", to.text(), tt.want)
			}
			if r := h.ledger.all(); len(r) != 1 || r[0].UsageSource != billing.UpstreamFinal {
				t.Errorf("receipts %+v", r)
			}
		})
	}
}

func TestRefusalsOfTheEngineReachTheCallerCleaned(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body     string
		op             gateway.Operation
		status         int
		cause          gateway.Cause
		message, param string
	}{
		{"vLLM's form", `{"error":{"message":"temperature must be non-negative","type":"BadRequestError","param":"temperature","code":400}}`, "", 400, gateway.UpstreamRefused, "temperature must be non-negative", "temperature"},
		{"the older flat form", `{"object":"error","message":"no such thing","type":"NotFoundError","code":404}`, "", 404, gateway.UpstreamRefused, "no such thing", ""},
		{"the web framework's detail", `{"detail":[{"msg":"Field required","loc":["body"]}]}`, "", 422, gateway.UpstreamRefused, "Field required", ""},
		{"the model's public name", `{"error":{"message":"org/engine does not support images"}}`, "", 400, gateway.UpstreamRefused, "pub does not support images", ""},
		{"no addresses", `{"error":{"message":"call to http://gpu-7.cluster.local:8000/x and 10.1.2.3:9000 failed"}}`, "", 400, gateway.UpstreamRefused, "call to [address] and [address] failed", ""},
		{"no stack trace", "{\"error\":{\"message\":\"bad input\\nTraceback (most recent call last):\\n File \\\"/opt/vllm/x.py\\\"\"}}", "", 400, gateway.UpstreamRefused, "bad input", ""},
		{"no paths", `{"error":{"message":"cannot open /opt/models/secret/config.json now"}}`, "", 400, gateway.UpstreamRefused, "cannot open [path] now", ""},
		{"a page", `<html>nope</html>`, "", 413, gateway.UpstreamRefused, "", ""},
		{"a strange parameter", `{"error":{"message":"m","param":"<b>\n"}}`, "", 400, gateway.UpstreamRefused, "m", ""},
		{"vLLM's full context", `{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.","type":"BadRequestError","code":400}}`, "", 400, gateway.ContextTooLong, "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens.", "messages"},
		{"SGLang's full context", `{"object":"error","message":"The input (5000 tokens) is longer than the model's context length (4096 tokens).","code":400}`, gateway.Completions, 400, gateway.ContextTooLong, "The input (5000 tokens) is longer than the model's context length (4096 tokens).", "prompt"},
		{"llama.cpp's full context", `{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_ctx":4096}}`, "", 400, gateway.ContextTooLong, "the request exceeds the available context size, try increasing it", "messages"},
		{"a failure's text is ours to read only", `{"error":{"message":"CUDA error on node-3"}}`, "", 500, gateway.UpstreamStatus, "", ""},
		{"an engine that rejects our key is no caller's fault", `{"error":{"message":"Unauthorized"}}`, "", 401, gateway.UpstreamStatus, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := build(t, []string{serve(t, answers(tt.status, tt.body)).URL})
			err := h.Run(t.Context(), h.call(func(c *gateway.Call) {
				if tt.op != "" {
					c.Operation = tt.op
				}
			}), &caller{})
			e, _ := err.(*gateway.Error) //nolint:errorlint // Run promises exactly this type
			if e == nil || e.Cause != tt.cause || e.Message != tt.message || e.Param != tt.param {
				t.Errorf("got %+v", e)
			}
		})
	}
}

func TestABusyEngineSaysWhenToComeAgain(t *testing.T) {
	t.Parallel()
	h := build(t, []string{serve(t, answers(429, `{}`)).URL})
	e, _ := h.Run(t.Context(), h.call(nil), &caller{}).(*gateway.Error) //nolint:errorlint // Run promises exactly this type
	if e == nil || e.Cause != gateway.UpstreamBusy || e.RetryAfter != 7*time.Second {
		t.Errorf("got %+v", e)
	}
}

// Many exchanges of all kinds at once leave nothing behind.
func TestManyAtOnceLeaveNothing(t *testing.T) {
	t.Parallel()
	e := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.Header.Get("X-Request-Id")[4] {
		case '0':
			answers(500, `{}`)(w, r)
		case '1':
			then(events(chunk("a", 1)), die)(w, r)
		case '2':
			then(events(chunk("a", 1)), hang)(w, r)
		default:
			events(chunk("a", 1), usageEvent, doneEvent)(w, r)
		}
	})
	h := build(t, []string{e.URL}, func(h *house) { h.plan.Limits.Concurrency = 0; h.plan.KeyLimits.Concurrency = 1000 })
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			to := &caller{onSend: func(string) {
				if i%10 == 2 {
					cancel()
				}
			}}
			_ = h.Run(ctx, h.call(func(c *gateway.Call) { c.ID, c.Stream = fmt.Sprintf("req_%d.%d", i%10, i), true }), to)
		})
	}
	all.Wait()
	h.idle(t)
	receipts := h.ledger.all()
	ids := make(map[string]bool)
	for _, r := range receipts {
		ids[r.RequestID] = true
	}
	if len(ids) != len(receipts) {
		t.Errorf("%d receipts for %d requests", len(receipts), len(ids))
	}
	if len(receipts) != 200 {
		t.Errorf("%d receipts for 200 exchanges", len(receipts))
	}
}

// A connection that can't be made to the first target of a lease is tried at
// the next one.
func TestTargetsAreTriedInTheirOrder(t *testing.T) {
	t.Parallel()
	e := serve(t, answers(200, document))
	h := build(t, []string{closedPort(t)})
	h.pools.other = several{h.pools.queue, []scheduler.Target{
		{Endpoint: "e1", URL: closedPort(t)}, {Endpoint: "e9", URL: e.URL, Headers: [][2]string{{"X-Prefill", "p"}}},
	}}
	if err := h.Run(t.Context(), h.call(nil), &caller{}); err != nil {
		t.Fatal(err)
	}
	got := e.seen()[0].header
	if got.Get("X-Prefill") != "p" || got.Get("Authorization") != "" {
		t.Errorf("headers %v", got)
	}
	if r := h.ledger.all()[0]; r.Endpoint != "e9" || r.Attempts != 1 {
		t.Errorf("receipt %+v", r)
	}
}

type several struct {
	scheduler.Scheduler
	targets []scheduler.Target
}

func (s several) Schedule(ctx context.Context, r scheduler.Request) (scheduler.Lease, error) {
	l, err := s.Scheduler.Schedule(ctx, r)
	return leaseWith{l, s.targets}, err
}

type leaseWith struct {
	scheduler.Lease
	targets []scheduler.Target
}

func (l leaseWith) Targets() []scheduler.Target { return l.targets }
