package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/tidwall/gjson"

	"weir/gateway/catalogue"
	"weir/gateway/conformance"
	"weir/gateway/upstream"
	"weir/scheduler"
	"weir/tenants"
)

var errNoModel = errors.New("it serves no model with chat or completions, by which to probe it")

const probeAnswer = 1 << 20 // bytes that are read

// probe is what an endpoint's probe needs to know of its pool.
type probe struct {
	pool  *catalogue.Pool
	model *catalogue.Model // nil: none can be probed
	op    Operation
}

func (by probe) spot(t scheduler.Target) spot {
	return spot{by.pool.Name, t.Endpoint, t.URL, by.op == Responses}
}

// probesOf finds a model of the pool whose usage tells of the cache; and one
// whose responses are asked for at the engines' own endpoint, if there is one.
func probesOf(snap *catalogue.Snapshot, p *catalogue.Pool) []probe {
	found := map[Operation]*catalogue.Model{}
	for _, m := range snap.Models() {
		if !slices.ContainsFunc(m.Routes, func(r catalogue.Route) bool { return r.Pool == p.Name }) {
			continue
		}
		for _, op := range []Operation{Chat, Completions, Responses} {
			serves := slices.Contains(m.Operations, op.sold()) && (op != Responses || m.Upstream == catalogue.ResponsesUpstream)
			if serves && found[op] == nil {
				found[op] = m
			}
		}
	}
	var all []probe
	if m := found[Chat]; m != nil {
		all = append(all, probe{p, m, Chat})
	} else {
		all = append(all, probe{p, found[Completions], Completions})
	}
	if m := found[Responses]; m != nil {
		all = append(all, probe{p, m, Responses})
	}
	return all
}

// proveEndpoint finds out whether the endpoint's prefix cache keeps salts
// apart. An older prompt is one that a former probe sent. The error is
// conformance.ErrShared where it doesn't, and any other where nothing was
// learnt. It returns the prompt that it used.
func (g *Gateway) proveEndpoint(ctx context.Context, by probe, t scheduler.Target, older string) (prompt string, err error) {
	ctx, cancel := context.WithTimeout(ctx, proveLimit)
	defer cancel()
	if by.model == nil {
		return "", errNoModel
	}
	return conformance.Probe{
		Cached: func(ctx context.Context, salt, prompt string) (int64, error) {
			return g.cachedTokens(ctx, by, t, salt, prompt)
		},
		Salt:    func() string { return g.probeSalt(by) },
		Context: by.model.Context,
		Older:   older,
	}.Run(ctx)
}

// probeSalt is that of a tenant who doesn't exist.
func (g *Gateway) probeSalt(by probe) string {
	return g.engines.cacheSalt(tenants.ID("probe "+rand.Text()), by.model.Name)
}

// cachedTokens sends one prompt and returns how much of it came from the cache.
func (g *Gateway) cachedTokens(ctx context.Context, by probe, t scheduler.Target, salt, prompt string) (int64, error) {
	ask, usage := `"max_tokens":1,"messages":[{"role":"user","content":%s}]`, "usage.prompt_tokens_details.cached_tokens"
	switch by.op {
	case Completions:
		ask = `"max_tokens":1,"prompt":%s`
	case Responses:
		ask, usage = `"max_output_tokens":16,"store":false,"input":%s`, "usage.input_tokens_details.cached_tokens"
	default:
	}
	body := fmt.Sprintf(`{"model":%s,"cache_salt":%s,`+ask+`}`, quoteJSON(engineName(by.model)), quoteJSON(salt), quoteJSON(prompt))
	endpoint := by.pool.Endpoint(t.Endpoint)
	to := newDestination(t, &endpoint)
	to.path, to.accept, to.requestID = by.op.Path(), "application/json", "isolation."+rand.Text()
	resp, err := g.engines.post(ctx, &upstream.Trip{}, to, []byte(body))
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, probeAnswer))
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return 0, responseError(resp, answer)
	}
	return gjson.GetBytes(answer, usage).Int(), nil
}
