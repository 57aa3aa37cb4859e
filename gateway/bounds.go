package gateway

import (
	"context"
	"maps"
	"slices"

	"weir/gateway/admission"
	"weir/tenants"
)

// Allowance is what is left of a rate.
type Allowance = admission.Allowance

// Bound is one of the things that limit a caller, and how it stands. Rates whose
// Limit is 0, and Slots of 0, don't bind.
type Bound struct {
	Scope string // tenant, model (the tenant's use of it), project or key
	Name  string // the id, or the model's name

	Requests, Tokens, Uncached, Output Allowance // a minute

	Slots int // requests at once
	Live  int // that run or wait now
}

// The scopes of bounds.
const (
	TenantScope  = "tenant"
	ModelScope   = "model"
	ProjectScope = "project"
	KeyScope     = "key"
)

// Bounds tells what limits a caller, and how far each limit is used: of its
// tenant, of the models that the tenant has limits for and the key may use, of
// its project and of its key. The error is an *Error.
func (g *Gateway) Bounds(ctx context.Context, p *tenants.Principal) ([]Bound, error) {
	var nodes []admission.Node
	var bounds []Bound
	add := func(scope, name, id string, l tenants.Limits) {
		if more := appendNode(nodes, id, l); len(more) > len(nodes) {
			nodes = more
			bounds = append(bounds, Bound{Scope: scope, Name: name, Slots: l.Concurrency})
		}
	}
	add(TenantScope, string(p.Tenant), string(p.Tenant), p.Plan.Limits)
	models := slices.AppendSeq(slices.Collect(maps.Keys(p.Plan.ModelLimits)), maps.Keys(p.ModelLimits))
	slices.Sort(models)
	for _, model := range slices.Compact(models) {
		if p.MayUse(model) {
			add(ModelScope, model, modelNode(p.Tenant, model), p.ModelLimit(model))
		}
	}
	add(ProjectScope, string(p.Project), string(p.Project), p.ProjectLimits.Or(p.Plan.ProjectLimits))
	add(KeyScope, string(p.Key), string(p.Key), p.Limits.Or(p.Plan.KeyLimits))
	standing, err := g.deps.Limits.Look(ctx, string(p.Tenant), nodes)
	if err != nil {
		return nil, &Error{Cause: LimitsUnknown, Err: err}
	}
	for i := range bounds {
		b, s := &bounds[i], &standing[i]
		b.Requests, b.Tokens = s.Rates[admission.RequestMeter], s.Rates[admission.TokenMeter]
		b.Uncached, b.Output = s.Rates[admission.UncachedMeter], s.Rates[admission.GeneratedMeter]
		b.Live = s.Live
	}
	return bounds, nil
}
