package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/tidwall/gjson"

	"weir/gateway/admission"
	"weir/gateway/upstream"
	"weir/scheduler"
)

const (
	countTime    = 30 * time.Second // for one answer of an engine's tokenizer
	maxCountBody = 64 << 20         // bytes of it: most list every token
)

// endpoints is a scheduler that shows those of its pool.
type endpoints interface {
	State() scheduler.State
}

// CountTokens asks a model server how many tokens the prompt of the call is,
// as its own template and tokenizer make it. It counts against the caller's
// limits, but takes no lease and writes no receipt: an engine's tokenizer
// works beside its accelerator. The error is an *Error; NotCounted where the
// engine has no tokenizer to ask.
func (g *Gateway) CountTokens(ctx context.Context, c Call) (int64, error) {
	x := newExchange(g, &c, nil)
	n, err := x.count(ctx)
	if err != nil {
		return 0, err
	}
	return n, nil
}

func (x *exchange) count(ctx context.Context) (int64, *Error) {
	if err := x.resolve(); err != nil {
		return 0, err
	}
	defer func() {
		if x.admitted {
			x.release(context.WithoutCancel(ctx), admission.Counts{})
		}
	}()
	if err := x.admit(ctx, nil); err != nil {
		return 0, err
	}
	return x.tokenize(ctx)
}

// tokenize asks a model server for the length of the prompt.
func (x *exchange) tokenize(ctx context.Context) (int64, *Error) {
	target, ok := x.anyTarget()
	if !ok {
		return 0, &Error{Cause: NoEndpoint}
	}
	c := x.call
	c.Stream = false
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	endpoint := x.pool.Endpoint(target.Endpoint)
	to := newDestination(target, &endpoint)
	to.accept, to.requestID = "application/json", attemptID(x.call.ID, 1)
	body := engineBody(&c, x.model, x.pool, x.g.engines.cacheSalt(x.call.Principal.Tenant, x.model.Name))
	if to.engine == llamaCPP {
		return x.countInSteps(ctx, to, body)
	}
	to.path = "/tokenize"
	answer, err := x.ask(ctx, to, body)
	if err != nil {
		return 0, err
	}
	if n := answer.Get("count"); n.Type == gjson.Number {
		return n.Int(), nil
	}
	return 0, &Error{Cause: UpstreamInvalid, Err: errNoCount}
}

var errNoCount = errors.New("a tokenizer's answer without a count")

// countInSteps asks llama.cpp, which renders the template and tokenizes it in
// two calls.
func (x *exchange) countInSteps(ctx context.Context, to *destination, body []byte) (int64, *Error) {
	to.path = "/apply-template"
	rendered, err := x.ask(ctx, to, body)
	if err != nil {
		return 0, err
	}
	prompt := rendered.Get("prompt")
	if prompt.Type != gjson.String {
		return 0, &Error{Cause: UpstreamInvalid, Err: errNoCount}
	}
	to.path = "/tokenize"
	answer, err := x.ask(ctx, to, []byte(`{"content":`+prompt.Raw+`,"add_special":true,"parse_special":true}`))
	if err != nil {
		return 0, err
	}
	tokens := answer.Get("tokens")
	if !tokens.IsArray() {
		return 0, &Error{Cause: UpstreamInvalid, Err: errNoCount}
	}
	return answer.Get("tokens.#").Int(), nil
}

// anyTarget is an endpoint of the pool that serves.
func (x *exchange) anyTarget() (scheduler.Target, bool) {
	var all []scheduler.Target
	if s, ok := x.queue.(endpoints); ok {
		for _, e := range s.State().Endpoints {
			if e.Health == scheduler.Healthy && e.Circuit == scheduler.CircuitClosed && !e.Draining {
				all = append(all, scheduler.Target{Endpoint: e.ID, URL: e.URL})
			}
		}
	} else { // a remote scheduler keeps them to itself
		for _, e := range x.pool.Endpoints {
			all = append(all, scheduler.Target{Endpoint: e.ID, URL: e.URL})
		}
	}
	if len(all) == 0 {
		return scheduler.Target{}, false
	}
	return all[rand.IntN(len(all))], true //nolint:gosec // a share of load is no secret
}

// ask sends one question that is no exchange.
func (x *exchange) ask(ctx context.Context, to *destination, body []byte) (gjson.Result, *Error) {
	resp, err := x.g.engines.post(ctx, &upstream.Trip{}, to, body)
	if err != nil {
		return gjson.Result{}, x.unanswered(ctx, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxCountBody))
	switch {
	case err != nil:
		return gjson.Result{}, x.unanswered(ctx, err)
	case resp.StatusCode == http.StatusOK && gjson.ValidBytes(answer):
		return gjson.ParseBytes(answer), nil
	case resp.StatusCode == http.StatusOK:
		return gjson.Result{}, &Error{Cause: UpstreamInvalid, Err: errNotJSON}
	}
	e := responseError(resp, answer)
	switch resp.StatusCode {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return gjson.Result{}, &Error{Cause: NotCounted, Param: "model", Err: e}
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		if to.engine == sglang { // those that tokenize plain prompts alone say that one is missing
			return gjson.Result{}, &Error{Cause: NotCounted, Param: "model", Err: e}
		}
	}
	forCaller(e, x.model, x.call.Operation)
	return gjson.Result{}, e
}

func (x *exchange) unanswered(ctx context.Context, err error) *Error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &Error{Cause: FirstByteLimit, Err: err}
	case ctx.Err() != nil:
		return ended(ctx)
	default:
		return &Error{Cause: ConnectFailed, Err: fmt.Errorf("tokenizer: %w", err)}
	}
}
