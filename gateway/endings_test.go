package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weir/billing"
	"weir/gateway"
	"weir/scheduler"
	"weir/tenants"
)

var errTest = errors.New("as the test wants")

// scene is one way in which an exchange can end, and what has to be true then.
type scene struct {
	name    string
	steps   []step                  // of the first engine
	spare   []step                  // of a second one; nil for none
	url     func(*testing.T) string // instead of an engine
	house   func(*house)
	call    func(*gateway.Call)
	context func(context.Context, *house, *caller) context.Context
	caller  *caller

	cause   gateway.Cause
	seen    string // by the caller; events, or the document
	failed  bool   // the caller had seen a beginning, then an error
	results []scheduler.Result
	receipt *billing.Receipt // what of it matters; nil for none
}

// endings are all of them. Each call makes new ones.
func endings() []scene {
	stream := func(c *gateway.Call) { c.Stream = true }
	leaveAfter := func(text string, cause error) func(context.Context, *house, *caller) context.Context {
		return func(ctx context.Context, _ *house, c *caller) context.Context {
			ctx, cancel := context.WithCancelCause(ctx)
			c.onSend = func(s string) {
				if strings.Contains(s, text) {
					cancel(cause)
				}
			}
			return ctx
		}
	}
	refuse := func(r scheduler.Reason) func(*house) {
		return func(h *house) { h.pools.other = refusing{&scheduler.Refusal{Reason: r}} }
	}
	full := billing.Usage{InputUncached: 7, InputCached: 4, Output: 3, Reasoning: 2}
	fullCost := int64((7*1_000_000 + 4*500_000 + 3*2_000_000 + 2*3_000_000) / 1000)
	none := func(c gateway.Cause, attempts int) *billing.Receipt {
		return &billing.Receipt{Outcome: string(c), Attempts: attempts, UsageSource: billing.NoUsage}
	}
	partial := func(c gateway.Cause, n int64) *billing.Receipt {
		return &billing.Receipt{
			Outcome: string(c), Attempts: 1, UsageSource: billing.UpstreamPartial,
			Usage: billing.Usage{InputUncached: 11, Output: n}, CostNano: 11_000 + n*2000,
		}
	}

	return []scene{
		{
			name: "a stream that is whole", steps: []step{events(chunk("a", 1), chunk("b", 2), usageEvent, doneEvent)}, call: stream,
			cause: gateway.Success, seen: shown("a") + shown("b") + doneEvent, results: []scheduler.Result{scheduler.Completed},
			receipt: &billing.Receipt{Outcome: "completed", Attempts: 1, UsageSource: billing.UpstreamFinal, Usage: full, CostNano: fullCost},
		},
		{
			name: "a document", steps: []step{answers(200, document)},
			cause: gateway.Success, seen: strings.Replace(document, "org/engine", "pub", 1), results: []scheduler.Result{scheduler.Completed},
			receipt: &billing.Receipt{
				Outcome: "completed", Attempts: 1, UsageSource: billing.UpstreamFinal,
				Usage: billing.Usage{InputUncached: 7, InputCached: 4, Output: 5}, CostNano: 7000 + 2000 + 10_000,
			},
		},
		{
			name: "an engine that counts nothing", steps: []step{events(chunk("a", -1), chunk("b", -1), doneEvent)}, call: stream,
			cause: gateway.Success, seen: shown("a") + shown("b") + doneEvent, results: []scheduler.Result{scheduler.Completed},
			receipt: &billing.Receipt{
				Outcome: "completed", Attempts: 1, UsageSource: billing.GatewayCount,
				Usage: billing.Usage{InputUncached: 16, Output: 2}, CostNano: 16_000 + 4000,
			},
		},
		{
			name: "media are no text where the engine counts nothing", steps: []step{events(chunk("a", -1), doneEvent)},
			call: func(c *gateway.Call) {
				stream(c)
				image := `"data:image/png;base64,` + strings.Repeat("A", 100_000) + `"`
				c.Fields = fmt.Appendf(nil, `"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":%s}}]}]`, image)
				c.MediaBytes = len(image)
			},
			cause: gateway.Success, seen: shown("a") + doneEvent, results: []scheduler.Result{scheduler.Completed},
			receipt: &billing.Receipt{
				Outcome: "completed", Attempts: 1, UsageSource: billing.GatewayCount,
				Usage: billing.Usage{InputUncached: 21, Output: 1}, CostNano: 21_000 + 2000,
			},
		},
		{
			name: "no more input is counted here than the model's context holds", steps: []step{events(chunk("a", -1), doneEvent)},
			call: func(c *gateway.Call) {
				stream(c)
				c.Fields = fmt.Appendf(nil, `"messages":[{"role":"user","content":%q}]`, strings.Repeat("a", 100_000))
			},
			cause: gateway.Success, seen: shown("a") + doneEvent, results: []scheduler.Result{scheduler.Completed},
			receipt: &billing.Receipt{
				Outcome: "completed", Attempts: 1, UsageSource: billing.GatewayCount,
				Usage: billing.Usage{InputUncached: 4096, Output: 1}, CostNano: 4_096_000 + 2000,
			},
		},
		{name: "an unknown model", steps: []step{die}, call: func(c *gateway.Call) { c.Model = "nope" }, cause: gateway.ModelNotFound},
		{name: "a model that was shut down", steps: []step{die}, call: func(c *gateway.Call) { c.Model = "gone" }, cause: gateway.ModelNotFound},
		{name: "a model that the key may not use looks unknown", steps: []step{die}, call: func(c *gateway.Call) { c.Principal.Models = []string{"other"} }, cause: gateway.ModelNotFound},
		{name: "a model that doesn't do this", steps: []step{die}, call: func(c *gateway.Call) { c.Operation = gateway.Embeddings }, cause: gateway.WrongOperation},
		{
			name: "too many requests", steps: []step{die}, cause: gateway.RateLimited,
			house: func(h *house) {
				h.plan.KeyLimits.RequestsPerMinute = 1
			},
			context: func(ctx context.Context, h *house, _ *caller) context.Context {
				_ = h.Run(ctx, h.call(func(c *gateway.Call) { c.ID = "req_0"; c.Model = "pub" }), &caller{})
				h.ledger.reset()
				h.pools.reset()
				return ctx
			},
		},
		{
			name: "too many at once", steps: []step{die}, cause: gateway.TooManyAtOnce,
			house: func(h *house) { h.plan.KeyLimits.Concurrency = 1 },
			context: func(ctx context.Context, h *house, _ *caller) context.Context {
				_, _ = h.limits.Admit(ctx, probe("req_0", keyNode))
				return ctx
			},
		},
		{name: "limits that can't be asked", steps: []step{die}, house: func(h *house) { h.limits = nil }, cause: gateway.LimitsUnknown},
		{name: "a full flow", steps: []step{die}, house: refuse(scheduler.FlowFull), cause: gateway.FlowFull},
		{name: "a full band", steps: []step{die}, house: refuse(scheduler.BandFull), cause: gateway.BandFull},
		{name: "a low band shed", steps: []step{die}, house: refuse(scheduler.ShedLoad), cause: gateway.Shed},
		{name: "a full pool", steps: []step{die}, house: refuse(scheduler.PoolFull), cause: gateway.PoolFull},
		{name: "too long in the queue", steps: []step{die}, house: refuse(scheduler.QueueTimeout), cause: gateway.QueueTimeout},
		{name: "no endpoint", steps: []step{die}, house: refuse(scheduler.NoEndpoints), cause: gateway.NoEndpoint},
		{name: "a scheduler that shuts down", steps: []step{die}, house: refuse(scheduler.ShuttingDown), cause: gateway.ShuttingDown},
		{name: "a scheduler that is broken", steps: []step{die}, house: refuse(scheduler.Internal), cause: gateway.Internal},
		{
			name: "a caller that leaves the queue", steps: []step{die}, cause: gateway.ClientGone,
			context: func(ctx context.Context, _ *house, _ *caller) context.Context {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				return ctx
			},
		},
		{
			name: "nobody listens at the only endpoint", url: closedPort, cause: gateway.ConnectFailed,
			results: []scheduler.Result{scheduler.EndpointFault}, receipt: none(gateway.ConnectFailed, 1),
		},
		{
			name: "a reset before any answer, at the only endpoint", steps: []step{die}, cause: gateway.UpstreamReset,
			results: []scheduler.Result{scheduler.EndpointFault}, receipt: none(gateway.UpstreamReset, 1),
		},
		{
			name: "a reset before any answer, twice", steps: []step{die}, spare: []step{die}, cause: gateway.UpstreamReset,
			results: []scheduler.Result{scheduler.EndpointFault, scheduler.EndpointFault}, receipt: none(gateway.UpstreamReset, 2),
		},
		{
			name: "a reset, then an answer", steps: []step{die}, spare: []step{events(chunk("a", 1), usageEvent, doneEvent)}, call: stream,
			cause: gateway.Success, seen: shown("a") + doneEvent, results: []scheduler.Result{scheduler.EndpointFault, scheduler.Completed},
			receipt: &billing.Receipt{Outcome: "completed", Attempts: 2, UsageSource: billing.UpstreamFinal, Usage: full, CostNano: fullCost},
		},
		{
			name: "an engine's own failure, twice", steps: []step{answers(500, `{"error":{"message":"cuda at 10.0.0.1"}}`)}, spare: []step{answers(500, `{}`)}, cause: gateway.UpstreamStatus,
			results: []scheduler.Result{scheduler.EndpointFault, scheduler.EndpointFault}, receipt: none(gateway.UpstreamStatus, 2),
		},
		{
			name: "a full engine, then an answer", steps: []step{answers(503, `{}`)}, spare: []step{answers(200, document)},
			cause: gateway.Success, seen: strings.Replace(document, "org/engine", "pub", 1),
			results: []scheduler.Result{scheduler.Overloaded, scheduler.Completed},
			receipt: &billing.Receipt{
				Outcome: "completed", Attempts: 2, UsageSource: billing.UpstreamFinal,
				Usage: billing.Usage{InputUncached: 7, InputCached: 4, Output: 5}, CostNano: 19_000,
			},
		},
		{
			name: "full engines", steps: []step{answers(429, `{}`)}, spare: []step{answers(503, `{}`)}, cause: gateway.UpstreamBusy,
			results: []scheduler.Result{scheduler.Overloaded, scheduler.Overloaded}, receipt: none(gateway.UpstreamBusy, 2),
		},
		{
			name: "a request that the engine refuses", steps: []step{answers(400, `{"error":{"message":"bad n","type":"BadRequestError","param":"n","code":400}}`)},
			spare: []step{answers(200, document)}, cause: gateway.UpstreamRefused,
			results: []scheduler.Result{scheduler.CallerFault}, receipt: none(gateway.UpstreamRefused, 1),
		},
		{
			name: "a prompt that is too long", steps: []step{answers(400, `{"error":{"message":"This model's maximum context length is 4096 tokens.","type":"BadRequestError","code":400}}`)},
			cause:   gateway.ContextTooLong,
			results: []scheduler.Result{scheduler.CallerFault}, receipt: none(gateway.ContextTooLong, 1),
		},
		{
			name: "a page in place of a document", steps: []step{answers(200, `<html>`)}, cause: gateway.UpstreamInvalid,
			results: []scheduler.Result{scheduler.EndpointFault}, receipt: none(gateway.UpstreamInvalid, 1),
		},
		{
			name: "a document in place of a stream", steps: []step{answers(200, document)}, call: stream, cause: gateway.UpstreamInvalid,
			results: []scheduler.Result{scheduler.EndpointFault}, receipt: none(gateway.UpstreamInvalid, 1),
		},
		{
			name: "a stream that ends before it began", steps: []step{events()}, call: stream, cause: gateway.UpstreamInvalid,
			results: []scheduler.Result{scheduler.EndpointFault}, receipt: none(gateway.UpstreamInvalid, 1),
		},
		{
			name: "an error as the first event, then an answer elsewhere", steps: []step{events("data: {\"error\":{\"message\":\"x\",\"code\":500}}\n\n", doneEvent)},
			spare: []step{events(chunk("a", 1), usageEvent, doneEvent)}, call: stream,
			cause: gateway.Success, seen: shown("a") + doneEvent, results: []scheduler.Result{scheduler.EndpointFault, scheduler.Completed},
			receipt: &billing.Receipt{Outcome: "completed", Attempts: 2, UsageSource: billing.UpstreamFinal, Usage: full, CostNano: fullCost},
		},
		{
			name: "an error after some tokens", steps: []step{events(chunk("a", 1), chunk("b", 2), "data: {\"error\":{\"message\":\"x\"}}\n\n", doneEvent)},
			spare: []step{die}, call: stream, cause: gateway.UpstreamDied, seen: shown("a") + shown("b"), failed: true,
			results: []scheduler.Result{scheduler.EndpointFault}, receipt: partial(gateway.UpstreamDied, 2),
		},
		{
			name: "an error in the field that some engines use for it", steps: []step{events(chunk("a", 1), "error: {\"code\":500,\"message\":\"x\"}\n\n")},
			call: stream, cause: gateway.UpstreamDied, seen: shown("a"), failed: true,
			results: []scheduler.Result{scheduler.EndpointFault}, receipt: partial(gateway.UpstreamDied, 1),
		},
		{
			name: "an engine that aborts", steps: []step{events(chunk("a", 1), `data: {"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}`+"\n\n", doneEvent)},
			call: stream, cause: gateway.UpstreamDied, seen: shown("a"), failed: true,
			results: []scheduler.Result{scheduler.EndpointFault}, receipt: partial(gateway.UpstreamDied, 1),
		},
		{
			name: "no end marker", steps: []step{events(chunk("a", 1), usageEvent)}, call: stream,
			cause: gateway.UpstreamDied, seen: shown("a"), failed: true, results: []scheduler.Result{scheduler.EndpointFault},
			receipt: &billing.Receipt{Outcome: "upstream_died", Attempts: 1, UsageSource: billing.UpstreamPartial, Usage: full, CostNano: fullCost},
		},
		{
			name: "a connection that breaks in mid-stream", steps: []step{then(events(chunk("a", 1), chunk("b", 2)), die)}, spare: []step{die}, call: stream,
			cause: gateway.UpstreamDied, seen: shown("a") + shown("b"), failed: true,
			results: []scheduler.Result{scheduler.EndpointFault}, receipt: partial(gateway.UpstreamDied, 2),
		},
		{
			name: "a break in mid-stream of an engine that counts nothing", steps: []step{then(events(chunk("a", -1), chunk("b", -1)), die)}, call: stream,
			cause: gateway.UpstreamDied, seen: shown("a") + shown("b"), failed: true, results: []scheduler.Result{scheduler.EndpointFault},
			receipt: &billing.Receipt{
				Outcome: "upstream_died", Attempts: 1, UsageSource: billing.GatewayCount,
				Usage: billing.Usage{InputUncached: 16, Output: 2}, CostNano: 20_000,
			},
		},
		{
			name: "a connection that breaks within a document", cause: gateway.UpstreamReset,
			steps: []step{func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Length", "1000")
				answers(200, document)(w, r)
			}},
			results: []scheduler.Result{scheduler.EndpointFault}, receipt: none(gateway.UpstreamReset, 1),
		},
		{
			name: "an event beyond the limit", steps: []step{events(chunk("a", 1), "data: "+strings.Repeat("x", 1<<20))}, call: stream,
			house: func(h *house) { h.config.MaxEvent = 100_000 },
			cause: gateway.UpstreamDied, seen: shown("a"), failed: true,
			results: []scheduler.Result{scheduler.EndpointFault}, receipt: partial(gateway.UpstreamDied, 1),
		},
		{
			name: "a document beyond the limit", steps: []step{answers(200, document)}, house: func(h *house) { h.config.MaxDocument = 50 },
			cause: gateway.UpstreamInvalid, results: []scheduler.Result{scheduler.EndpointFault}, receipt: none(gateway.UpstreamInvalid, 1),
		},
		{
			name: "a caller that leaves in mid-stream", steps: []step{then(events(chunk("a", 1), chunk("b", 2)), hang)}, call: stream,
			context: leaveAfter(`"b"`, context.Canceled), caller: &caller{},
			cause: gateway.ClientGone, seen: shown("a") + shown("b"),
			results: []scheduler.Result{scheduler.Abandoned}, receipt: partial(gateway.ClientGone, 2),
		},
		{
			name: "a caller whose connection is found closed", steps: []step{then(events(chunk("a", 1)), pause, events(chunk("b", 2)), hang)}, call: stream,
			caller: &caller{leave: 1}, cause: gateway.ClientGone, seen: shown("a"),
			results: []scheduler.Result{scheduler.Abandoned}, receipt: partial(gateway.ClientGone, 2),
		},
		{
			name: "a caller that leaves before the first token is charged nothing", steps: []step{hang}, call: stream,
			context: func(ctx context.Context, h *house, _ *caller) context.Context {
				ctx, cancel := context.WithCancel(ctx)
				h.pools.onSchedule(cancel)
				return ctx
			},
			cause: gateway.ClientGone, results: []scheduler.Result{scheduler.Abandoned}, receipt: none(gateway.ClientGone, 1),
		},
		{
			name: "a caller that leaves just before the end marker gets a whole receipt", steps: []step{events(chunk("a", 1), usageEvent, doneEvent)}, call: stream,
			caller: &caller{leave: 1}, cause: gateway.Success, seen: shown("a"), results: []scheduler.Result{scheduler.Completed},
			receipt: &billing.Receipt{Outcome: "completed", Attempts: 1, UsageSource: billing.UpstreamFinal, Usage: full, CostNano: fullCost},
		},
		{
			name: "a key that is revoked in mid-stream", steps: []step{then(events(chunk("a", 1)), hang)}, call: stream,
			context: leaveAfter(`"a"`, tenants.ErrRevoked), cause: gateway.KeyRevoked, seen: shown("a"), failed: true,
			results: []scheduler.Result{scheduler.Abandoned}, receipt: partial(gateway.KeyRevoked, 1),
		},
		{
			name: "an eviction in mid-stream is charged nothing", steps: []step{then(events(chunk("a", 1)), hang)}, call: stream,
			context: func(ctx context.Context, h *house, c *caller) context.Context {
				when := make(chan struct{})
				h.pools.other = evicting{h.pools.queue, when}
				c.onSend = func(string) { close(when) }
				return ctx
			},
			cause: gateway.Evicted, seen: shown("a"), failed: true,
			results: []scheduler.Result{scheduler.Abandoned}, receipt: none(gateway.Evicted, 1),
		},
		{
			name: "a receipt of a stream that can't be stored", steps: []step{events(chunk("a", 1), usageEvent, doneEvent)}, call: stream,
			house: func(h *house) { h.ledger.err = errTest }, cause: gateway.StoreDown, seen: shown("a"), failed: true,
			results: []scheduler.Result{scheduler.Completed},
		},
		{
			name: "a receipt of a document that can't be stored", steps: []step{answers(200, document)},
			house: func(h *house) { h.ledger.err = errTest }, cause: gateway.StoreDown, results: []scheduler.Result{scheduler.Completed},
		},
		{
			name: "a receipt that no try will store is a fault of ours", steps: []step{answers(200, document)},
			house: func(h *house) { h.ledger.err = fmt.Errorf("%w: text", billing.ErrReceipt) }, cause: gateway.Internal, results: []scheduler.Result{scheduler.Completed},
		},
		{
			name: "a receipt that Postgres refuses is a fault of ours", steps: []step{events(chunk("a", 1), usageEvent, doneEvent)}, call: stream,
			house: func(h *house) { h.ledger.err = fmt.Errorf("%w: req_1", billing.ErrRejected) }, cause: gateway.Internal, seen: shown("a"), failed: true,
			results: []scheduler.Result{scheduler.Completed},
		},
		{
			name: "a defect of ours in mid-stream", steps: []step{then(events(chunk("a", 1)), hang)}, call: stream,
			caller: &caller{onSend: func(string) { panic("defect") }}, cause: gateway.Internal, seen: shown("a"), failed: true,
			results: []scheduler.Result{scheduler.Abandoned}, receipt: none(gateway.Internal, 1),
		},
	}
}

// TestEveryEnding: however an exchange ends, its lease ends once with the
// right result, its slots are free, one receipt says what it used, and the
// caller sees either the whole answer or an error, after the receipt.
func TestEveryEnding(t *testing.T) {
	t.Parallel()
	for _, tt := range endings() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h, to, ctx := tt.set(t)
			settled := ""
			h.ledger.onSettle = func() { settled = to.text() }

			err := h.Run(ctx, h.call(tt.call), to)

			if got := causeOf(err); got != tt.cause {
				t.Errorf("ended as %q (%v), want %q", got, err, tt.cause)
			}
			seen, _ := untimed(to.text())
			if diff := cmp.Diff(tt.seen, seen); diff != "" {
				t.Errorf("seen by the caller (-want +got):\n%s", diff)
			}
			if got := len(to.failed) == 1; got != tt.failed || len(to.failed) > 1 {
				t.Errorf("told of the failure %d times, want %v", len(to.failed), tt.failed)
			}
			if diff := cmp.Diff(tt.results, h.pools.results()); diff != "" {
				t.Errorf("leases (-want +got):\n%s", diff)
			}
			if tt.cause == gateway.Success && (strings.Contains(settled, "[DONE]") || strings.HasPrefix(settled, "{")) {
				t.Errorf("the end was shown before the receipt was stored")
			}
			h.idle(t)
			checkReceipt(t, h, tt.receipt)
			if n := strings.Count(h.logs.String(), `"msg":"exchange"`); n == 0 || strings.Contains(h.logs.String(), "hello there") {
				t.Errorf("%d lines, or the prompt, in the log:\n%s", n, h.logs)
			}
		})
	}
}

// set makes the scene ready. Options come before its own.
func (s *scene) set(t *testing.T, before ...func(*house)) (h *house, to *caller, ctx context.Context) {
	t.Helper()
	var url string
	if s.url != nil {
		url = s.url(t)
	} else {
		url = serve(t, s.steps...).URL
	}
	h = build(t, []string{url}, append(before, options(s.house)...)...)
	if s.spare != nil {
		h.spare(serve(t, s.spare...).URL)
	}
	to, ctx = s.caller, t.Context()
	if to == nil {
		to = &caller{}
	}
	if s.context != nil {
		ctx = s.context(ctx, h, to)
	}
	return h, to, ctx
}

// checkReceipt compares what a test cares for.
func checkReceipt(t *testing.T, h *house, want *billing.Receipt) {
	t.Helper()
	got := h.ledger.all()
	if want == nil {
		if len(got) != 0 {
			t.Errorf("a receipt where none belongs: %+v", got)
		}
		return
	}
	if len(got) != 1 {
		t.Fatalf("%d receipts, want 1", len(got))
	}
	g := got[0]
	if diff := cmp.Diff(*want, billing.Receipt{
		Outcome: g.Outcome, Attempts: g.Attempts, UsageSource: g.UsageSource, Usage: g.Usage, CostNano: g.CostNano,
	}); diff != "" {
		t.Errorf("receipt (-want +got):\n%s", diff)
	}
	if g.RequestID != "req_1" || g.ClientRequestID != "theirs" || g.Tenant != "ten_a" || g.Project != "prj_a" || g.Key != "key_a" ||
		g.Model != "pub" || g.Pool != poolName || g.Endpoint == "" || g.Band != "standard" || g.Tier != "default" ||
		g.PriceVersion != 7 || g.Operation != "chat" || g.StartedAt.IsZero() || g.Duration <= 0 {
		t.Errorf("receipt lacks something: %+v", g)
	}
	if (g.TTFT > 0) != (g.Usage.Output > 0) && g.Outcome != string(gateway.Internal) && g.Outcome != string(gateway.Evicted) {
		t.Errorf("TTFT %v with %d tokens", g.TTFT, g.Usage.Output)
	}
}
