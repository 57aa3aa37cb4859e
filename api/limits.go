package api

import (
	"context"

	"weir/gateway"
	"weir/tenants"
)

// Limits tells what limits a caller. gateway.Gateway is one.
type Limits interface {
	Bounds(ctx context.Context, p *tenants.Principal) ([]gateway.Bound, error)
}

// limitList is what limits a key, of all that it belongs to.
type limitList struct {
	Object string                  `json:"object"`
	Data   []limitView             `json:"data"`
	Tiers  map[tenants.Tier]string `json:"service_tiers"`
	Burst  float64                 `json:"burst"`
}

type limitView struct {
	Object      string     `json:"object"`
	Scope       string     `json:"scope"`
	ID          string     `json:"id"`
	Requests    *rateView  `json:"requests_per_minute"`
	Tokens      *rateView  `json:"tokens_per_minute"`
	Uncached    *rateView  `json:"uncached_tokens_per_minute"`
	Output      *rateView  `json:"output_tokens_per_minute"`
	Concurrency *slotsView `json:"concurrency"`
}

type rateView struct {
	Limit     int     `json:"limit"`
	Remaining int     `json:"remaining"`
	Reset     float64 `json:"reset"` // seconds
}

type slotsView struct {
	Limit int `json:"limit"`
	Used  int `json:"used"`
}

// listLimits shows what limits the caller's key. A limit of a model that the
// caller can't use is not shown: that it exists is not the caller's to know.
func (s *Server) listLimits(x *exchange) error {
	plan := x.principal.Plan
	list := limitList{Object: "list", Data: []limitView{}, Tiers: plan.Bands, Burst: max(plan.Burst, 1)}
	if s.limits == nil {
		return s.answerJSON(x, list)
	}
	bounds, err := s.limits.Bounds(x.Request().Context(), x.principal)
	if err != nil {
		return err
	}
	snap := s.catalogue()
	for _, b := range bounds {
		if b.Scope == gateway.ModelScope {
			if m, ok := snap.Lookup(b.Name); !ok || !offers(snap, m, x) {
				continue
			}
		}
		list.Data = append(list.Data, viewOfBound(b))
	}
	return s.answerJSON(x, list)
}

func viewOfBound(b gateway.Bound) limitView {
	v := limitView{Object: "limit", Scope: b.Scope, ID: b.Name}
	for _, r := range [...]struct {
		at   **rateView
		rate *gateway.Allowance
	}{{&v.Requests, &b.Requests}, {&v.Tokens, &b.Tokens}, {&v.Uncached, &b.Uncached}, {&v.Output, &b.Output}} {
		if r.rate.Limit > 0 {
			*r.at = &rateView{Limit: r.rate.Limit, Remaining: r.rate.Left, Reset: seconds(r.rate.Reset)}
		}
	}
	if b.Slots > 0 {
		v.Concurrency = &slotsView{Limit: b.Slots, Used: b.Live}
	}
	return v
}
