package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"weir/billing"
	"weir/gateway/admission"
	"weir/tenants"
)

// assumedOutput is the output that a request is charged for at admission whose
// bound is larger, or who has none: most bounds are far above what is made, and
// the rest becomes a debt.
const assumedOutput = 1024

// admit asks at the nodes that have limits: the tenant, its use of the model,
// the project and the key, all or none, and has the intent kept; nil is none.
func (x *exchange) admit(ctx context.Context, intent *admission.Intent) *Error {
	p := x.call.Principal
	x.asked = admission.Request{ID: x.call.ID, Tenant: string(p.Tenant), Nodes: nodesOf(p, x.model.Name), Intent: intent}
	if len(x.asked.Nodes) == 0 && intent == nil {
		return nil
	}
	x.asked.Estimate = x.estimated()
	x.rise()
	v, err := x.g.deps.Limits.Admit(ctx, &x.asked)
	x.limit = LimitState{
		Requests: v.Requests.Limit, RemainingRequests: v.Requests.Left, ResetRequests: v.Requests.Reset,
		Tokens: v.Tokens.Limit, RemainingTokens: v.Tokens.Left, ResetTokens: v.Tokens.Reset,
	}
	x.admitted = v.Admitted || err != nil // after an error the store may have admitted it all the same
	if x.admitted && x.trace != nil {
		x.g.traces.add(x.trace)
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return ended(ctx)
	case err != nil:
		return &Error{Cause: LimitsUnknown, Err: err}
	case v.Admitted:
		return nil
	case v.Slots:
		return &Error{Cause: TooManyAtOnce, RetryAfter: v.Retry, Limit: x.limit}
	case v.Meter != admission.RequestMeter:
		return &Error{Cause: TokenRateLimited, RetryAfter: v.Retry, Limit: x.limit}
	default:
		return &Error{Cause: RateLimited, RetryAfter: v.Retry, Limit: x.limit}
	}
}

// nodesOf are the nodes with limits at which a request is counted. A key or a
// project without limits of its own has the plan's for them.
func nodesOf(p *tenants.Principal, model string) []admission.Node {
	nodes := make([]admission.Node, 0, 4)
	nodes = appendNode(nodes, string(p.Tenant), p.Plan.Limits)
	if l := p.ModelLimit(model); l != (tenants.Limits{}) {
		nodes = appendNode(nodes, modelNode(p.Tenant, model), l)
	}
	nodes = appendNode(nodes, string(p.Project), p.ProjectLimits.Or(p.Plan.ProjectLimits))
	return appendNode(nodes, string(p.Key), p.Limits.Or(p.Plan.KeyLimits))
}

func appendNode(nodes []admission.Node, id string, l tenants.Limits) []admission.Node {
	if id == "" || l == (tenants.Limits{}) {
		return nodes
	}
	return append(nodes, admission.Node{ID: id, Concurrency: l.Concurrency, PerMinute: admission.Counts{
		Requests: l.RequestsPerMinute, Tokens: l.TokensPerMinute,
		Uncached: l.UncachedTokensPerMinute, Generated: l.OutputTokensPerMinute,
	}})
}

// modelNode is the id of a tenant's use of a model. A model's name may be long
// and have any characters: it is hashed.
func modelNode(t tenants.ID, model string) string {
	sum := sha256.Sum256([]byte(model))
	return string(t) + "/mdl_" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:16]))
}

// rise raises the limits by the plan's burst while the pool has room for it.
func (x *exchange) rise() {
	burst := x.call.Principal.Plan.Burst
	if burst <= 1 {
		return
	}
	pool, ok := x.queue.(pressured)
	if !ok {
		return // a scheduler elsewhere doesn't tell: what is guaranteed holds
	}
	if full, _ := pool.Pressure(x.priority); full >= x.g.cfg.BurstBelow {
		return
	}
	for i := range x.asked.Nodes {
		x.asked.Nodes[i].Rise = int(burst * 100)
	}
}

// estimated is what the request is charged until it is known: the whole prompt,
// as if none of it were cached, and the output that it may have.
func (x *exchange) estimated() admission.Counts {
	prompt, output := int(x.meter.prompt), 0
	if x.call.Operation != Embeddings {
		output = assumedOutput * max(x.call.Choices, 1)
		if bound := x.outputBound(); bound > 0 {
			output = min(output, bound)
		}
	}
	return admission.Counts{Requests: 1, Tokens: prompt + output, Uncached: prompt, Generated: output}
}

// counted is what an exchange used, as the limits see it: what was cached is
// free.
func counted(u billing.Usage) admission.Counts {
	output := int(u.Output + u.Reasoning)
	return admission.Counts{
		Requests: 1, Tokens: int(u.InputUncached) + output, Uncached: int(u.InputUncached), Generated: output,
	}
}
