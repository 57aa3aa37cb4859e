package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"weir/billing"
	"weir/gateway"
	"weir/scheduler"
	"weir/tenants"
)

func brokeOf(err error) *billing.Broke {
	broke, _ := errors.AsType[*billing.Broke](err)
	return broke
}

// silent is a network that never answers.
func silent(ctx context.Context, _, _ string) (net.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// talker is an engine that counts a prompt as 11 tokens and says one token after
// another, as many as it is asked for.
func talker(w http.ResponseWriter, r *http.Request, body string) {
	if r.URL.Path == "/tokenize" {
		answers(200, `{"count":11}`)(w, r)
		return
	}
	n := int(gjson.Get(body, "max_tokens").Int())
	if n == 0 || n == deaf {
		n = 4000
	}
	if !gjson.Get(body, "stream").Bool() {
		answers(200, fmt.Sprintf(`{"id":"c","model":"org/engine","choices":[{"message":{"content":"hi"},"finish_reason":"length"}],"usage":{"prompt_tokens":11,"completion_tokens":%d}}`, n))(w, r)
		return
	}
	for i := range n {
		if r.Context().Err() != nil {
			return
		}
		events(chunk("t", i+1))(w, r)
	}
	events(`data: {"id":"c","object":"chat.completion.chunk","created":7,"model":"org/engine","choices":[{"index":0,"delta":{},"finish_reason":"length"}]}`+"\n\n",
		fmt.Sprintf(`data: {"id":"c","object":"chat.completion.chunk","created":7,"model":"org/engine","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":%d}}`, n)+"\n\n", doneEvent)(w, r)
}

// deaf is a bound that the talker doesn't heed.
const deaf = 101

// talk serves a talker.
func talk(t *testing.T) *engine {
	t.Helper()
	e := &engine{gone: make(chan struct{}, 16)}
	e.Server = httptest.NewServer(e.handler([]step{func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		talker(w, r, string(body))
	}}))
	t.Cleanup(e.Close)
	return e
}

// What a call costs at these prices: 1000 nano-USD for a token of its prompt,
// 2000 for one of its answer, of which 3000 are held.
const (
	promptNano = 11 * 1000
	tokenNano  = 2000
	heldNano   = 3000
	spare      = 16 // tokens of output, beyond what a stream may have
)

func TestAStreamEndsWhereTheMoneyDoes(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	for i, tt := range []struct {
		name   string
		call   func(*gateway.Call)
		credit int64 // in tokens of output, beyond the prompt
		tokens int64 // of the answer
		house  func(*house)
		ends   string
	}{
		{
			name: "a chat", credit: 500 + spare, tokens: 500,
			ends: `{"id":"c","object":"chat.completion.chunk","created":7,"model":"pub","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}],"weir":{"code":"budget_exhausted"}}`,
		},
		{
			name: "a chat whose caller wants the usage", credit: 500 + spare, tokens: 500, call: func(c *gateway.Call) { c.IncludeUsage = true },
			ends: `{"id":"c","object":"chat.completion.chunk","created":7,"model":"pub","choices":[],"usage":{"prompt_tokens":11,"completion_tokens":500,"total_tokens":511}}`,
		},
		{
			name: "a completion", credit: 300 + spare, tokens: 300, call: func(c *gateway.Call) { c.Operation = gateway.Completions },
			ends: `{"id":"c","object":"chat.completion.chunk","created":7,"model":"pub","choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length"}],"weir":{"code":"budget_exhausted"}}`,
		},
		{
			name: "an engine that goes on beyond its bound", credit: 500 + spare, tokens: 500, house: maxOutput(deaf),
			ends: `{"id":"c","object":"chat.completion.chunk","created":7,"model":"pub","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}],"weir":{"code":"budget_exhausted"}}`,
		},
		{
			name: "two choices", credit: 300 + 2*spare, tokens: 300, call: func(c *gateway.Call) { c.Choices = 2 },
			ends: `{"id":"c","object":"chat.completion.chunk","created":7,"model":"pub","choices":[{"index":1,"delta":{},"logprobs":null,"finish_reason":"length"}],"weir":{"code":"budget_exhausted"}}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := talk(t)
			a := b.open(t, fmt.Sprint("ten_", i), promptNano+1+tt.credit*heldNano)
			h := build(t, []string{e.URL}, append(options(tt.house), a.enforce, func(h *house) { h.config.HoldSlice = 64 })...)
			to := &caller{}
			err := h.Run(t.Context(), h.call(func(c *gateway.Call) {
				c.Stream = true
				if tt.call != nil {
					tt.call(c)
				}
			}), to)
			if err != nil {
				t.Fatal(err)
			}
			seen, _ := untimed(to.text())
			all := strings.Split(strings.TrimSuffix(seen, "\n\n"), "\n\n")
			if n := len(all); n < 3 || all[n-1]+"\n\n" != doneEvent || all[n-2] != "data: "+tt.ends {
				t.Errorf("the end was\n%s", strings.Join(all[max(0, len(all)-4):], "\n"))
			}
			if len(to.failed) != 0 {
				t.Errorf("the caller was told of a failure: %v", to.failed)
			}
			r := h.ledger.all()[0]
			if r.Outcome != "budget_exhausted" || r.UsageSource != billing.UpstreamPartial || r.Usage.Output != tt.tokens || r.CostNano != promptNano+tt.tokens*tokenNano {
				t.Errorf("receipt %+v", r)
			}
			if got := h.pools.results(); len(got) != 1 || got[0] != scheduler.Abandoned {
				t.Errorf("leases ended as %v", got)
			}
			h.idle(t)
			a.balanced(t, h.ledger.all())
		})
	}
}

// A stream that is paid for while it runs goes on.
func TestATopUpKeepsAStreamGoing(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	e := talk(t)
	a := b.open(t, "ten_1", promptNano+1+(100+spare)*heldNano)
	h := build(t, []string{e.URL}, a.enforce, func(h *house) { h.config.HoldSlice = 64 })
	var paid sync.Once
	to := &caller{}
	to.onSend = func(string) {
		paid.Do(func() {
			const more = 10_000 * heldNano
			b.look(t, `SELECT lot FROM weir_credit('ten_1', 'paid', $1, 'more')`, int64(more))
			a.credit += more
		})
	}
	err := h.Run(t.Context(), h.call(func(c *gateway.Call) {
		c.Stream, c.MaxTokens = true, 600
		c.Fields = append(c.Fields, `,"max_tokens":600`...)
	}), to)
	if r := h.ledger.all()[0]; err != nil || r.Outcome != "completed" || r.Usage.Output != 600 {
		t.Errorf("%v, %+v", err, r)
	}
	a.balanced(t, h.ledger.all())
}

// A document has no end that could be cut off: its engine is told where the
// money ends.
func TestADocumentIsBoundedByTheMoney(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	for i, tt := range []struct {
		name   string
		credit int64 // tokens of output beyond the prompt
		call   func(*gateway.Call)
		model  func(*house)
		bound  string // max_tokens and max_completion_tokens at the engine
		count  bool   // the prompt was counted
		cause  gateway.Cause
	}{
		{name: "enough for all", credit: 100_000, bound: ""},
		{name: "the model's bound, where the caller has none", credit: 100_000, bound: "100 100", model: maxOutput(100)},
		{name: "the caller's bound", credit: 100_000, bound: "200 ", model: maxOutput(100), call: maxTokens(200)},
		{name: "what is there", credit: 120, bound: "120 120", count: true},
		{name: "what is there, in place of the caller's", credit: 120, bound: "120 120", call: maxTokens(2000), count: true},
		{name: "the caller's, which is less", credit: 120, bound: "100 ", call: maxTokens(100), count: true},
		{name: "shared by two choices", credit: 120, bound: "60 60", call: func(c *gateway.Call) { c.Choices = 2 }, count: true},
		{name: "the least that is worth it", credit: 16, bound: "16 16", count: true},
		{name: "too little", credit: 15, count: true, cause: gateway.InsufficientQuota},
		{name: "nothing", credit: -12, cause: gateway.InsufficientQuota},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := talk(t)
			a := b.open(t, fmt.Sprint("ten_", i), max(promptNano+tt.credit*heldNano, 0))
			h := build(t, []string{e.URL}, append([]func(*house){a.enforce}, options(tt.model)...)...)
			err := h.Run(t.Context(), h.call(tt.call), &caller{})
			if got := causeOf(err); got != tt.cause && (tt.cause != "" || got != gateway.Success) {
				t.Errorf("ended as %q (%v), want %q", got, err, tt.cause)
			}
			counted, bound := false, "none"
			for _, r := range e.seen() {
				if r.path == "/tokenize" {
					counted = true
					continue
				}
				bound = strings.TrimSpace(gjson.Get(r.body, "max_tokens").Raw + " " + gjson.Get(r.body, "max_completion_tokens").Raw)
				if !gjson.Valid(r.body) || strings.Count(r.body, `"max_tokens"`) > 1 {
					t.Errorf("sent %s", r.body)
				}
			}
			if want := strings.TrimSpace(tt.bound); tt.cause == "" && bound != want || counted != tt.count {
				t.Errorf("the engine was told %q, want %q; counted: %v", bound, want, counted)
			}
			h.idle(t)
			a.balanced(t, h.ledger.all())
		})
	}
}

func maxOutput(n int) func(*house) {
	return func(h *house) { m, _ := h.snapshot.Lookup("pub"); m.MaxOutput = n }
}

func maxTokens(n int) func(*gateway.Call) {
	return func(c *gateway.Call) {
		c.MaxTokens = n
		c.Fields = append(c.Fields, fmt.Sprintf(`,"max_tokens":%d`, n)...)
	}
}

func TestARefusalSaysWhoseCreditIsGone(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	for i, tt := range []struct{ node, scope, whose string }{
		{"prj_a", "project", "project"}, {"key_a", "key", "API key"}, {"", "", "organization"},
	} {
		t.Run(tt.whose, func(t *testing.T) {
			t.Parallel()
			e := serve(t, die)
			credit := int64(1_000_000_000)
			if tt.node == "" {
				credit = 0
			}
			a := b.open(t, fmt.Sprint("ten_", i), credit)
			if tt.node != "" {
				b.look(t, `SELECT weir_allot($1, $2, $3, 0, NULL)`, a.tenant, a.own(tt.node), tt.scope)
			}
			h := build(t, []string{e.URL}, a.enforce)
			err := h.Run(t.Context(), h.call(func(c *gateway.Call) { c.Principal.Billing.Nodes = []string{"ten_a", "prj_a", "key_a"} }), &caller{})
			var failure *gateway.Error
			if !errors.As(err, &failure) || failure.Cause != gateway.InsufficientQuota || !strings.Contains(failure.Message, "credit of this "+tt.whose+" ") {
				t.Errorf("refused with %v: %q", err, failure.Message)
			}
			if len(e.seen()) != 0 {
				t.Error("an engine was asked")
			}
			h.idle(t)
			a.balanced(t, h.ledger.all())
		})
	}
}

// Credit that others hold may come back, and a caller is told so; what is spent
// doesn't.
func TestARefusalTellsCreditThatIsHeldFromCreditThatIsSpent(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	const credit = promptNano + 100*heldNano
	a := b.open(t, "ten_held", credit)
	other := b.join(t, "ten_held", 0, "rep_other")
	held, err := other.Funds.Hold(t.Context(), billing.HoldRequest{Tenant: "ten_held", Nodes: []string{"ten_held"}, Nano: credit})
	if err != nil {
		t.Fatal(err)
	}
	h := build(t, []string{serve(t, die).URL}, a.enforce)
	refused := func(n int) *gateway.Error {
		failure, ok := errors.AsType[*gateway.Error](h.Run(t.Context(), h.call(func(c *gateway.Call) { c.ID = fmt.Sprint("req_", n) }), &caller{}))
		if !ok {
			t.Fatal("it is not refused")
		}
		return failure
	}
	if f := refused(1); f.Cause != gateway.MoneyHeld || !strings.Contains(f.Message, "credit of this organization is held") {
		t.Errorf("while it is held: %v: %q", f, f.Message)
	}
	if f := refused(2); f.Cause != gateway.MoneyHeld {
		t.Errorf("while that is believed: %v", f)
	}
	receipt := billing.Receipt{
		RequestID: "req_other", Project: "prj_a", Key: "key_a", Operation: "chat", Model: "pub", UsageSource: billing.NoUsage, StartedAt: time.Now(),
		Outcome: "completed", Mode: billing.ModeEnforce, Chunks: held.Chunks(), CostNano: credit,
	}
	if err := other.Settle(t.Context(), receipt, nil); err != nil {
		t.Fatal(err)
	}
	held.Settle(credit)
	until(t, "the refusal is believed no more", func() bool { return refused(3).Cause == gateway.InsufficientQuota })
	h.idle(t)
}

// Only enforced money is held, and only of what has a price above zero.
func TestModesOfBilling(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		config billing.Mode // the installation's
		tenant string       // the tenant's own
		house  func(*house)
		cause  gateway.Cause
		mode   billing.Mode
	}{
		{name: "off by default", mode: billing.ModeOff},
		{name: "shadow refuses nobody", config: billing.ModeShadow, mode: billing.ModeShadow},
		{name: "a tenant's own mode goes first", config: billing.ModeEnforce, tenant: "shadow", mode: billing.ModeShadow},
		{name: "enforce", tenant: "enforce", cause: gateway.MoneyUnknown},
		{name: "a model for free", config: billing.ModeEnforce, mode: billing.ModeEnforce, house: price(billing.Price{Model: "pub", Version: 7, Tiers: billing.DefaultTiers()})},
		{name: "a model without a price", config: billing.ModeEnforce, cause: gateway.Unpriced, house: price(billing.Price{Model: "other", Version: 8})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := build(t, []string{talk(t).URL}, append([]func(*house){func(h *house) { h.config.BillingMode, h.funds = tt.config, away{} }}, options(tt.house)...)...)
			err := h.Run(t.Context(), h.call(func(c *gateway.Call) { c.Principal.Billing.Mode = tt.tenant }), &caller{})
			if got := causeOf(err); got != tt.cause && (tt.cause != "" || got != gateway.Success) {
				t.Errorf("ended as %q (%v), want %q", got, err, tt.cause)
			}
			receipts := h.ledger.all()
			switch {
			case tt.cause != "" && len(receipts) != 0:
				t.Errorf("receipts %+v", receipts)
			case tt.cause == "" && (len(receipts) != 1 || receipts[0].Mode != tt.mode || receipts[0].Chunks != nil):
				t.Errorf("receipts %+v", receipts)
			}
			h.idle(t)
		})
	}
}

func price(p billing.Price) func(*house) {
	return func(h *house) { h.snapshot.Prices = billing.NewBook([]billing.Price{p}) }
}

// away are wallets that nobody can ask.
type away struct{}

func (away) Hold(context.Context, billing.HoldRequest) (*billing.Hold, error) {
	return nil, billing.ErrUnavailable
}

// Many callers at once, of documents and of streams, at one replica and at
// three, spend no more than there is. Some are refused for what others only
// hold; once those are done, it can be spent to the last request.
func TestCallersAtOnceSpendNoMoreThanThereIs(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	for _, tt := range []struct {
		name     string
		replicas int
		stream   bool
	}{
		{"documents at one replica", 1, false},
		{"documents at three", 3, false},
		{"streams at one replica", 1, true},
		{"streams at three", 3, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			const callers, worth, output = 200, 50, 40
			const credit = worth * (promptNano + output*tokenNano)
			e := talk(t)
			tenant := "ten_" + strings.ReplaceAll(tt.name, " ", "_")
			var accounts []*account
			var houses []*house
			for i := range tt.replicas {
				a := b.join(t, tenant, credit, fmt.Sprint("rep_", tenant, i))
				accounts = append(accounts, a)
				houses = append(houses, build(t, []string{e.URL}, a.enforce, func(h *house) {
					h.config.HoldSlice = 64
					h.plan.Limits = tenants.Limits{}
				}))
			}
			b.look(t, `SELECT lot FROM weir_credit($1, 'paid', $2, 'top-up')`, tenant, int64(credit))
			ask := func(i int) gateway.Cause {
				h := houses[i%tt.replicas]
				return causeOf(h.Run(t.Context(), h.call(func(c *gateway.Call) {
					c.ID, c.Stream = fmt.Sprint("req_", i), tt.stream
					maxTokens(output)(c)
				}), &caller{}))
			}
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					if got := ask(i); got != gateway.Success && got != gateway.InsufficientQuota && got != gateway.MoneyHeld {
						t.Errorf("caller %d: %v", i, got)
					}
				})
			}
			wg.Wait()
			for i, refused := callers, 0; refused < 3; i++ {
				if ask(i) != gateway.Success {
					refused++
					time.Sleep(time.Second) // a refusal is believed for a while
				} else if refused = 0; i > 2*callers {
					t.Fatal("there is no end to it")
				}
			}
			var receipts []billing.Receipt
			for i, h := range houses {
				receipts = append(receipts, h.ledger.all()...)
				if accounts[i].Open() != 0 {
					t.Errorf("%d holds are open", accounts[i].Open())
				}
				accounts[i].stop()
			}
			spent := accounts[0].balanced(t, receipts)
			least := int64(promptNano + 16*heldNano) // that a request is begun with
			if tt.stream {
				least += spare * heldNano
			}
			if credit-spent >= least {
				t.Errorf("%d of %d are left, and a request can be begun with %d", credit-spent, int64(credit), least)
			}
		})
	}
}
