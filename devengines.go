package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"weir/gateway/catalogue"
	"weir/scheduler/enginesim"
	"weir/tenants"
)

// simulated is how many simulated servers share the pool of the playground.
const simulated = 3

// devEngines is what a playground serves: model names, and the catalogue's
// pools and models as YAML.
type devEngines struct {
	models []string // public names
	pools  []devPool
	routes []string // YAML list items, as are the next
	prices []string
}

// devPool is one pool of a playground.
type devPool struct {
	name      string
	isolation string // that it claims, so that cached tokens are shown
	endpoints string // YAML list items
}

// yaml is the pool for the catalogue. The playground's tenant has a pool of one
// tenant; before there is a tenant, such a pool claims nothing.
func (p devPool) yaml(tenant string) string {
	text := "- name: " + p.name + "\n"
	switch {
	case p.isolation != tenants.IsolationSingleTenant:
		text += "  isolation: " + p.isolation + "\n"
	case tenant != "":
		text += "  isolation: " + p.isolation + "\n  tenants: [" + tenant + "]\n"
	}
	return text + "  endpoints:\n" + p.endpoints
}

// addNative puts a model on sale once more, asked for responses at the engine's
// own endpoint for them.
func (e *devEngines) addNative(pool, model, engineModel string) {
	e.models = append(e.models, model)
	e.routes = append(e.routes, fmt.Sprintf("- {name: %q, engine_model: %q, operations: [chat], upstream: responses, routes: [{pool: %s}]}", model, engineModel, pool))
}

func (e *devEngines) add(pool, model, operations string, templateKeys ...string) {
	e.models = append(e.models, model)
	e.routes = append(e.routes, fmt.Sprintf("- {name: %q, operations: [%s], routes: [{pool: %s}], chat_template_kwargs: [%s]}",
		model, operations, pool, strings.Join(templateKeys, ", ")))
}

// startEngines starts the simulated servers or finds the ones given, and adds
// the real model where asked.
func (p *playground) startEngines(ctx context.Context) (*devEngines, error) {
	e := &devEngines{}
	var err error
	if len(p.opts.endpoints) > 0 {
		err = p.ownEndpoints(ctx, e)
	} else {
		err = p.simulatedPool(ctx, e)
	}
	if err == nil && p.opts.realModel {
		err = p.realModel(ctx, e)
	}
	return e, err
}

func (p *playground) simulatedPool(ctx context.Context, e *devEngines) error {
	var pool strings.Builder
	for i := range simulated {
		s, err := startSim(ctx, "127.0.0.1:0", enginesim.Config{Models: []string{"sim-chat", "sim-embed"}, Seed: uint64(i + 1)})
		if err != nil {
			return err
		}
		p.later(s.stop)
		fmt.Fprintf(&pool, "  - {id: sim-%d, url: %q, engine: sim, accelerator: CPU}\n", i+1, s.url)
	}
	e.pools = append(e.pools, devPool{"sim", tenants.IsolationVerified, pool.String()})
	e.add("sim", "sim-chat", "chat, completions")
	e.add("sim", "sim-embed", "embeddings")
	e.addNative("sim", "sim-responses", "sim-chat")
	e.prices = append(e.prices, // invented, so that receipts have a cost to show
		`- {model: sim-chat, input: "0.10", cached_input: "0.02", output: "0.40"}`,
		`- {model: sim-embed, input: "0.02", output: "0"}`,
		`- {model: sim-responses, input: "0.10", cached_input: "0.02", output: "0.40"}`)
	p.say("%d simulated model servers", simulated)
	return nil
}

// ownEndpoints asks each server for its models. All of them form one pool, so
// they must serve the same ones.
func (p *playground) ownEndpoints(ctx context.Context, e *devEngines) error {
	var pool strings.Builder
	isolation := tenants.IsolationVerified // of which it is to convince a probe
	var first []string
	for i, url := range p.opts.endpoints {
		url = strings.TrimSuffix(strings.TrimSuffix(strings.TrimRight(url, "/"), "/v1"), "/")
		if !strings.Contains(url, "://") {
			url = "http://" + url
		}
		models, engine, err := askModels(ctx, url)
		if err != nil {
			return fmt.Errorf("model server %s: %w", url, err)
		}
		if i == 0 {
			first = models
		}
		if engine == "llamacpp" { // it knows no salt, but here is only one tenant
			isolation = tenants.IsolationSingleTenant
		}
		fmt.Fprintf(&pool, "  - {id: own-%d, url: %q, engine: %s}\n", i+1, url, engine)
		p.say("model server %s (%s): %s", url, engine, strings.Join(models, ", "))
	}
	for _, m := range first {
		e.add("own", m, "chat, completions, embeddings", "enable_thinking", "thinking")
		e.prices = append(e.prices, fmt.Sprintf(`- {model: %q, input: "0.10", cached_input: "0.02", output: "0.40"}`, m)) // invented, too
	}
	e.pools = append(e.pools, devPool{"own", isolation, pool.String()})
	return nil
}

// askModels returns the names that a server lists and which engine it is: the
// engines sign the list with their name.
func askModels(ctx context.Context, url string) (names []string, engine string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/models", http.NoBody)
	if err != nil {
		return nil, "", err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	var list struct {
		Data []struct {
			ID      string `json:"id"`
			OwnedBy string `json:"owned_by"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&list); err != nil || res.StatusCode != http.StatusOK {
		return nil, "", fmt.Errorf("GET /v1/models answers %s without a list of models; is it an OpenAI-compatible server?", res.Status)
	}
	engine = "vllm"
	for _, m := range list.Data {
		names = append(names, m.ID)
		if owner := strings.ToLower(m.OwnedBy); owner == "sglang" || owner == "llamacpp" {
			engine = owner
		}
	}
	if len(names) == 0 {
		return nil, "", fmt.Errorf("GET /v1/models lists no model")
	}
	return names, engine, nil
}

// defaultBands are the playground's bands, and those of the manifests in
// deploy/llm-d.
const defaultBands = `bands:
  - {name: interactive, priority: 100}
  - {name: standard, priority: 0}
  - {name: batch, priority: -10}
`

// applyCatalogue puts the engines into the database as an operator would.
func (p *playground) applyCatalogue(ctx context.Context, e *devEngines) error {
	var pools strings.Builder
	for _, pool := range e.pools {
		pools.WriteString(pool.yaml(p.secret.Tenant))
	}
	text := fmt.Sprintf(`apiVersion: weir/v1
%splans:
  dev:
    bands: {default: standard, priority: interactive, flex: batch, batch: batch, background: batch}
    weight: 1
    fairness: tenant
    retention_days: 30
    key_limits: {requests_per_minute: 6000, concurrency: 500}
models:
  %s
pools:
  %s
prices:
  %s
`, defaultBands, strings.Join(e.routes, "\n  "), indent(pools.String()), strings.Join(e.prices, "\n  "))
	doc, warnings, err := catalogue.Parse([]byte(text))
	if err != nil {
		return fmt.Errorf("the playground's own catalogue: %w", err)
	}
	for _, w := range warnings {
		p.say("%s", w)
	}
	// What else a database of the user's own sells is not ours to remove.
	return applyDocument(ctx, p.cfg, doc, io.Discard, catalogue.Options{Prune: p.private, Billed: p.cfg.BillingMode != "off" && p.private})
}

func indent(s string) string { return strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n  ") }
