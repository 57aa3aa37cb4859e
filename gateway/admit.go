package gateway

import (
	"context"

	"weir/billing"
	"weir/gateway/admission"
	"weir/tenants"
)

// assumedOutput is the output that a request is charged for at admission whose
// bound is larger, or who has none: most bounds are far above what is made, and
// the rest becomes a debt.
const assumedOutput = 1024

// admit asks at the nodes that have limits: the tenant and the key. A key
// without a limit of its own has the plan's for keys.
func (x *exchange) admit(ctx context.Context) *Error {
	p := x.call.Principal
	nodes := make([]admission.Node, 0, 2)
	nodes = appendNode(nodes, string(p.Tenant), p.Plan.Limits)
	nodes = appendNode(nodes, string(p.Key), p.Limits.Or(p.Plan.KeyLimits))
	if len(nodes) == 0 {
		return nil
	}
	x.asked = admission.Request{ID: x.call.ID, Tenant: string(p.Tenant), Nodes: nodes, Estimate: x.estimated()}
	v, err := x.g.deps.Limits.Admit(ctx, &x.asked)
	x.limit = LimitState{
		Requests: v.Requests.Limit, RemainingRequests: v.Requests.Left, ResetRequests: v.Requests.Reset,
		Tokens: v.Tokens.Limit, RemainingTokens: v.Tokens.Left, ResetTokens: v.Tokens.Reset,
	}
	x.admitted = v.Admitted || err != nil // after an error the store may have admitted it all the same
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

func appendNode(nodes []admission.Node, id string, l tenants.Limits) []admission.Node {
	n := admission.Node{ID: id, Concurrency: l.Concurrency, PerMinute: admission.Counts{
		Requests: l.RequestsPerMinute, Tokens: l.TokensPerMinute,
		Uncached: l.UncachedTokensPerMinute, Generated: l.OutputTokensPerMinute,
	}}
	if id == "" || n.Concurrency == 0 && n.PerMinute == (admission.Counts{}) {
		return nodes
	}
	return append(nodes, n)
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
