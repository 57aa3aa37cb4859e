package gateway_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/billing"
	"weir/gateway"
	"weir/scheduler"
)

// What an engine sends from its own /v1/responses.
const (
	nativeBegin = `data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_x","status":"in_progress","usage":null}}` + "\n\n" +
		`data: {"type":"response.in_progress","sequence_number":1,"response":{"id":"resp_x","status":"in_progress"}}` + "\n\n"
	nativeDelta = `data: {"type":"response.output_text.delta","output_index":0,"item_id":"msg_x","delta":"hi"}` + "\n\n"
	nativeUsage = `"usage":{"input_tokens":11,"input_tokens_details":{"cached_tokens":4},"output_tokens":5,"output_tokens_details":{"reasoning_tokens":2}}`
	nativeEnd   = `data: {"type":"response.completed","response":{"id":"resp_x","status":"completed","output":[],` + nativeUsage + `}}` + "\n\n"
)

func nativeCall(c *gateway.Call) {
	c.Operation, c.Stream = gateway.Responses, true
	c.Fields = []byte(`"store":false,"input":[{"role":"user","content":"hello there, engine"}]`)
}

func TestHowAnEnginesOwnResponseEnds(t *testing.T) {
	t.Parallel()
	full := billing.Usage{InputUncached: 7, InputCached: 4, Output: 3, Reasoning: 2}
	ours := billing.Usage{InputUncached: 18, Output: 1} // four characters a token, one token a delta
	for _, tt := range []struct {
		name    string
		steps   []step
		spare   []step
		cause   gateway.Cause
		seen    string
		results []scheduler.Result
		source  billing.UsageSource
		usage   billing.Usage
	}{
		{
			name: "the last event is success", steps: []step{events("event: response.created\n"+nativeBegin, nativeDelta, nativeEnd)},
			seen: nativeDelta + nativeEnd + doneEvent, results: []scheduler.Result{scheduler.Completed}, source: billing.UpstreamFinal, usage: full,
		},
		{
			name: "so is one that says that the answer was cut off", steps: []step{events(nativeDelta, strings.ReplaceAll(nativeEnd, "completed", "incomplete"))},
			seen: nativeDelta + strings.ReplaceAll(nativeEnd, "completed", "incomplete") + doneEvent, results: []scheduler.Result{scheduler.Completed}, source: billing.UpstreamFinal, usage: full,
		},
		{
			name: "a last event without the blank line after it counts", steps: []step{events(nativeDelta, strings.TrimSuffix(nativeEnd, "\n\n"))},
			seen: nativeDelta + nativeEnd + doneEvent, results: []scheduler.Result{scheduler.Completed}, source: billing.UpstreamFinal, usage: full,
		},
		{
			name: "an event on several lines is one", steps: []step{events(strings.ReplaceAll(nativeDelta, `,"`, ",\ndata: \"")+"", nativeEnd)},
			seen: nativeDelta + nativeEnd + doneEvent, results: []scheduler.Result{scheduler.Completed}, source: billing.UpstreamFinal, usage: full,
		},
		{
			name: "no usage at the end is our count", steps: []step{events(nativeDelta, strings.Replace(nativeEnd, ","+nativeUsage, "", 1))},
			seen: nativeDelta + strings.Replace(nativeEnd, ","+nativeUsage, "", 1) + doneEvent, results: []scheduler.Result{scheduler.Completed}, source: billing.GatewayCount, usage: ours,
		},
		{
			name: "an end of the stream without its last event is a failure", steps: []step{events(nativeBegin, nativeDelta)},
			cause: gateway.UpstreamDied, seen: nativeDelta, results: []scheduler.Result{scheduler.EndpointFault}, source: billing.GatewayCount, usage: ours,
		},
		{
			name: "an end mark of chats is not that event", steps: []step{events(nativeDelta, doneEvent)},
			cause: gateway.UpstreamDied, seen: nativeDelta, results: []scheduler.Result{scheduler.EndpointFault}, source: billing.GatewayCount, usage: ours,
		},
		{
			name: "an end without a response is none", steps: []step{events(nativeDelta, `data: {"type":"response.completed"}`+"\n\n")},
			cause: gateway.UpstreamDied, seen: nativeDelta, results: []scheduler.Result{scheduler.EndpointFault}, source: billing.GatewayCount, usage: ours,
		},
		{
			name: "half an event is none", steps: []step{events(nativeDelta, nativeDelta[:40]+"\n\n")},
			cause: gateway.UpstreamDied, seen: nativeDelta, results: []scheduler.Result{scheduler.EndpointFault}, source: billing.GatewayCount, usage: ours,
		},
		{
			name: "a failure before any item goes elsewhere", steps: []step{events(nativeBegin, `data: {"type":"response.failed","response":{"status":"failed","error":{"code":"server_error","message":"x"}}}`+"\n\n")},
			spare: []step{events(nativeBegin, nativeDelta, nativeEnd)},
			seen:  nativeDelta + nativeEnd + doneEvent, results: []scheduler.Result{scheduler.EndpointFault, scheduler.Completed}, source: billing.UpstreamFinal, usage: full,
		},
		{
			name: "a break before any item too", steps: []step{then(events(nativeBegin), die)}, spare: []step{events(nativeBegin, nativeDelta, nativeEnd)},
			seen: nativeDelta + nativeEnd + doneEvent, results: []scheduler.Result{scheduler.EndpointFault, scheduler.Completed}, source: billing.UpstreamFinal, usage: full,
		},
		{
			name: "a failure after one is told", steps: []step{events(nativeDelta, strings.ReplaceAll(nativeEnd, "completed", "failed"))}, spare: []step{die},
			cause: gateway.UpstreamDied, seen: nativeDelta, results: []scheduler.Result{scheduler.EndpointFault}, source: billing.UpstreamPartial, usage: full,
		},
		{
			name: "a completed one whose status says that it failed", steps: []step{events(nativeDelta, `data: {"type":"response.completed","response":{"status":"failed"}}`+"\n\n")},
			cause: gateway.UpstreamDied, seen: nativeDelta, results: []scheduler.Result{scheduler.EndpointFault}, source: billing.GatewayCount, usage: ours,
		},
		{
			name: "a cancelled one", steps: []step{events(nativeDelta, `data: {"type":"response.completed","response":{"status":"cancelled"}}`+"\n\n")},
			cause: gateway.UpstreamDied, seen: nativeDelta, results: []scheduler.Result{scheduler.EndpointFault}, source: billing.GatewayCount, usage: ours,
		},
		{
			name: "an error event", steps: []step{events(nativeBegin, `data: {"type":"error","code":"server_error","message":"x"}`+"\n\n")},
			cause: gateway.UpstreamStatus, results: []scheduler.Result{scheduler.EndpointFault}, source: billing.NoUsage,
		},
		{
			name: "an error without a type", steps: []step{events(nativeBegin, `data: {"error":{"message":"x","code":500}}`+"\n\n")},
			cause: gateway.UpstreamStatus, results: []scheduler.Result{scheduler.EndpointFault}, source: billing.NoUsage,
		},
		{
			name: "a context that doesn't fit is the caller's", steps: []step{events(nativeBegin, `data: {"type":"error","error":{"code":"context_length_exceeded","message":"too long"}}`+"\n\n")}, spare: []step{die},
			cause: gateway.ContextTooLong, results: []scheduler.Result{scheduler.CallerFault}, source: billing.NoUsage,
		},
		{
			name: "a full engine", steps: []step{events(nativeBegin, `data: {"type":"response.failed","response":{"error":{"code":"rate_limit_exceeded","message":"later"}}}`+"\n\n")},
			cause: gateway.UpstreamBusy, results: []scheduler.Result{scheduler.Overloaded}, source: billing.NoUsage,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := build(t, []string{serve(t, tt.steps...).URL})
			if tt.spare != nil {
				h.spare(serve(t, tt.spare...).URL)
			}
			to := &caller{}
			settled := ""
			h.ledger.onSettle = func() { settled = to.text() }
			err := h.Run(t.Context(), h.call(nativeCall), to)
			want := tt.cause
			if want == "" {
				want = gateway.Success
			}
			if got := causeOf(err); got != want {
				t.Errorf("ended as %q (%v), want %q", got, err, want)
			}
			if diff := cmp.Diff(tt.seen, to.text()); diff != "" {
				t.Errorf("passed on (-want +got):\n%s", diff)
			}
			if strings.Contains(settled, "[DONE]") {
				t.Error("the end was shown before the receipt was stored")
			}
			if diff := cmp.Diff(tt.results, h.pools.results()); diff != "" {
				t.Errorf("leases (-want +got):\n%s", diff)
			}
			h.idle(t)
			r := h.ledger.all()
			if len(r) != 1 || r[0].Usage != tt.usage || r[0].UsageSource != tt.source || r[0].Operation != "responses" {
				t.Errorf("receipts %+v", r)
			}
		})
	}
}

func TestAnEngineIsAskedForAResponseAtItsOwnAddress(t *testing.T) {
	t.Parallel()
	e := serve(t, events(nativeEnd))
	h := build(t, []string{e.URL}, shared)
	to := &caller{}
	if err := h.Run(t.Context(), h.call(nativeCall), to); err != nil {
		t.Fatal(err)
	}
	seen := e.seen()[0]
	const salt = `"cache_salt":"`
	if seen.path != "/v1/responses" || !strings.HasPrefix(seen.body, `{"model":"org/engine",`+salt) ||
		!strings.HasSuffix(seen.body, `,"stream":true,"store":false,"input":[{"role":"user","content":"hello there, engine"}]}`) {
		t.Errorf("%s was sent %s", seen.path, seen.body)
	}
	if strings.Contains(to.text(), "cached_tokens") || !strings.Contains(to.text(), `"output_tokens":5`) {
		t.Errorf("of an endpoint that may mix tenants the caller sees %s", to.text())
	}
	if r := h.ledger.all()[0]; r.Usage.InputCached != 0 {
		t.Errorf("and what the caller can ask for tells it: %+v", r)
	}
}

// patience is longer than the time between two tokens below.
func patience(_ http.ResponseWriter, r *http.Request) {
	select {
	case <-r.Context().Done():
	case <-time.After(300 * time.Millisecond):
	}
}

// The first event of a response says only that the engine is there: the time
// for the first token is not that between two.
func TestAnEngineThatOnlySaidItIsThereHasTheTimeForAFirstByte(t *testing.T) {
	t.Parallel()
	h := build(t, []string{serve(t, then(events(nativeBegin), patience, events(nativeDelta, nativeEnd))).URL}, func(h *house) {
		m, _ := h.snapshot.Lookup("pub")
		m.Timeouts.Idle = 50 * time.Millisecond
	})
	if err := h.Run(t.Context(), h.call(nativeCall), &caller{}); err != nil {
		t.Error(err)
	}
}

// Where the money ends, an engine's own response ends as at its bound, and costs
// no more than there was.
func TestAnEnginesOwnResponseEndsWhereTheMoneyDoes(t *testing.T) {
	t.Parallel()
	e := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/responses" {
			answers(http.StatusBadRequest, `{}`)(w, r) // its tokenizer knows chats alone
			return
		}
		events(nativeBegin)(w, r)
		for r.Context().Err() == nil {
			events(nativeDelta)(w, r)
		}
	})
	const credit = 1_000_000
	a := newBooks(t).open(t, "ten_native", credit)
	h := build(t, []string{e.URL}, a.enforce, func(h *house) { h.config.HoldSlice = 64 })
	to := &caller{}
	if err := h.Run(t.Context(), h.call(nativeCall), to); err != nil {
		t.Fatal(err)
	}
	before, end, found := strings.Cut(to.text(), `data: {"type":"response.incomplete",`)
	if !found || !strings.HasSuffix(end, `"weir":{"code":"budget_exhausted"}}`+"\n\n"+doneEvent) || strings.Count(before, nativeDelta) < 16 {
		t.Errorf("the stream ends with %s", end)
	}
	r := h.ledger.all()[0]
	if r.Outcome != "budget_exhausted" || r.CostNano == 0 || r.CostNano > credit || r.Usage.Output != int64(strings.Count(before, nativeDelta)) {
		t.Errorf("receipt %+v", r)
	}
	a.balanced(t, h.ledger.all())
}
