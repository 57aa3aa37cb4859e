package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"weir/gateway/catalogue"
	"weir/gateway/upstream"
	"weir/scheduler"
	"weir/tenants"
)

var (
	errShared  = errors.New("a prompt of one salt came from the cache for another: the engine ignores cache_salt")
	errNoHit   = errors.New("a repeated prompt came not from the cache: the engine has none, or doesn't say so (vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report)")
	errNoModel = errors.New("it serves no model with chat or completions, by which to probe it")
)

// How a probe is made. One prompt fills many cache blocks. An endpoint may be
// several engines, each with its own cache: the same salt has to hit at one of
// a few attempts, another salt at none.
const (
	probeWords   = 60 // of 26 random characters
	probeRepeats = 4
	probeOthers  = 3
	probeAnswer  = 1 << 20 // bytes that are read
)

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
// errShared where it doesn't, and any other where nothing was learnt. It
// returns the prompt that it used.
func (g *Gateway) proveEndpoint(ctx context.Context, by probe, t scheduler.Target, older string) (prompt string, err error) {
	ctx, cancel := context.WithTimeout(ctx, proveLimit)
	defer cancel()
	if by.model == nil {
		return "", errNoModel
	}
	if older != "" { // what has left the fast cache must not come back for another
		if err := g.expectMiss(ctx, by, t, older); err != nil {
			return "", err
		}
	}
	words := probeWords
	if most := by.model.Context / 40; most > 0 {
		words = min(words, most)
	}
	for range words {
		prompt += strings.ToLower(rand.Text()) + " "
	}
	salt, hit := g.probeSalt(by), false
	for n := 0; n < probeRepeats && !hit; n++ {
		cached, err := g.cachedTokens(ctx, by, t, salt, prompt)
		if err != nil {
			return "", err
		}
		hit = n > 0 && cached > 0 // the template alone may hit at the first time
	}
	if !hit {
		return prompt, errNoHit
	}
	for range probeOthers {
		if err := g.expectMiss(ctx, by, t, prompt); err != nil {
			return prompt, err
		}
	}
	return prompt, nil
}

func (g *Gateway) expectMiss(ctx context.Context, by probe, t scheduler.Target, prompt string) error {
	cached, err := g.cachedTokens(ctx, by, t, g.probeSalt(by), prompt)
	if err == nil && cached > 0 {
		err = errShared
	}
	return err
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
