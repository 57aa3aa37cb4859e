package catalogue

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// Endpoint is one model server.
type Endpoint struct {
	ID          string            `yaml:"id,omitempty"`     // unique in its pool; empty: host:port of the URL
	URL         string            `yaml:"url,omitempty"`    // base, without /v1
	Engine      string            `yaml:"engine,omitempty"` // vllm (default), sglang, llamacpp, sim
	Accelerator string            `yaml:"accelerator,omitempty"`
	Role        string            `yaml:"role,omitempty"` // prefill, decode, ...; empty: all of the work
	Revision    string            `yaml:"revision,omitempty"`
	Ranks       int               `yaml:"ranks,omitempty"`  // data-parallel ranks, each with a cache and limits of its own; 1
	Labels      map[string]string `yaml:"labels,omitempty"` // further ones, for the scheduler's label filters

	// What it can take, or each of its ranks. Zero leaves it to the pool.
	MaxConcurrency int     `yaml:"max_concurrency,omitempty"` // requests at once
	MaxTokens      int     `yaml:"max_tokens,omitempty"`      // uncached prompt tokens at once
	Speed          float64 `yaml:"speed,omitempty"`           // prompt tokens that it prefills in a second
	CacheBlocks    int     `yaml:"cache_blocks,omitempty"`    // of its prefix cache; zero: as it says itself

	// Where the engine publishes what its prefix cache has, and sends again what
	// was missed: tcp://host:port or tls://host:port. They hold prompts: without
	// TLS they are followed on this machine alone, or where the operator says
	// that the network is encrypted.
	KVEvents           string `yaml:"kv_events,omitempty"`
	KVReplay           string `yaml:"kv_replay,omitempty"`
	KVNetworkEncrypted bool   `yaml:"kv_network_encrypted,omitempty"`

	APIKeyEnv  string `yaml:"api_key_env,omitempty"` // name of the environment variable with the engine's key
	CAFile     string `yaml:"ca_file,omitempty"`
	ServerName string `yaml:"server_name,omitempty"` // on its certificate, where that isn't the URL's host

	// Drain lets the endpoint finish what runs and take nothing new. Nil leaves
	// it as it is in the database, so that applying a file doesn't undo
	// `weir endpoint drain`.
	Drain *bool `yaml:"drain,omitempty"`
}

// The labels under which llm-d's policies look for what Weir's fields say.
const (
	LabelEngine      = "llm-d.ai/engine-type"
	LabelRole        = "llm-d.ai/role"
	LabelAccelerator = "llm-d.ai/accelerator-variant"
	LabelRevision    = "disaggregatedset.x-k8s.io/revision"
)

// AllLabels is the endpoint's labels together with those that its other fields
// imply. A label that is given in words counts more.
func (e Endpoint) AllLabels() map[string]string {
	all := map[string]string{}
	for label, value := range map[string]string{
		LabelEngine: e.Engine, LabelRole: e.Role, LabelAccelerator: e.Accelerator, LabelRevision: e.Revision,
	} {
		if value != "" {
			all[label] = value
		}
	}
	maps.Copy(all, e.Labels)
	return all
}

// Draining reports whether the endpoint takes nothing new.
func (e Endpoint) Draining() bool { return e.Drain != nil && *e.Drain }

// Endpoint is the endpoint with this id and the pool's defaults. One that the
// catalogue doesn't list was discovered, or named by a remote scheduler: its
// key and CA are the pool's own, never what was discovered says.
func (p *Pool) Endpoint(id string) Endpoint {
	for i := range p.Endpoints { // there may be thousands, and this is asked for each request
		if p.Endpoints[i].ID == id {
			return p.withDefaults(p.Endpoints[i])
		}
	}
	e := Endpoint{}
	if d := p.Discovery; d != nil {
		e = d.Endpoint
		if d.DNS != nil && !d.DNS.SRV {
			e.ServerName = cmp.Or(e.ServerName, d.DNS.Name) // their URLs have addresses
		}
		if slices.Contains(d.Drain, id) {
			e.Drain = new(true)
		}
	}
	e.ID = id
	return p.withDefaults(e)
}

func (p *Pool) withDefaults(e Endpoint) Endpoint {
	e.APIKeyEnv = cmp.Or(e.APIKeyEnv, p.APIKeyEnv)
	e.CAFile = cmp.Or(e.CAFile, p.CAFile)
	return e
}

// RunsOn reports whether some endpoint of the pool is of this engine.
func (p *Pool) RunsOn(engine string) bool {
	if p.Discovery != nil && p.Discovery.Endpoint.Engine == engine {
		return true
	}
	for i := range p.Endpoints { // by index, as this too is asked for each request
		if p.Endpoints[i].Engine == engine {
			return true
		}
	}
	return false
}

// keepDrained carries drains over to pools and endpoints that say nothing of
// it. What says no is left without a word, as what was never drained.
func keepDrained(known, pools []Pool) {
	drained := map[string]bool{}
	elsewhere := map[string][]string{}
	for _, p := range known {
		for _, e := range p.Endpoints {
			drained[p.Name+"\n"+e.ID] = e.Draining()
		}
		if p.Discovery != nil {
			elsewhere[p.Name] = p.Discovery.Drain
		}
	}
	for i := range pools {
		p := &pools[i]
		p.Endpoints = slices.Clone(p.Endpoints)
		for j := range p.Endpoints {
			e := &p.Endpoints[j]
			switch {
			case e.Draining() || e.Drain == nil && drained[p.Name+"\n"+e.ID]:
				e.Drain = new(true)
			default:
				e.Drain = nil
			}
		}
		if d := p.Discovery; d != nil && d.Drain == nil {
			kept := *d
			kept.Drain = elsewhere[p.Name]
			p.Discovery = &kept
		}
	}
}

// validatePlace checks where the endpoint is.
func (e Endpoint) validatePlace(c *complaints, pool string) {
	u, err := url.Parse(e.URL)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		c.add("pool %s: endpoint %s: url is %q: write http://host:port", pool, e.ID, e.URL)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		c.add("pool %s: endpoint %s: url has more than a place; a key goes into the variable that api_key_env names", pool, e.ID)
	case strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1") || strings.HasSuffix(e.URL, "/"):
		c.add("pool %s: endpoint %s: url is %q: leave /v1 and the last slash out", pool, e.ID, e.URL)
	}
}

// validateTraits checks what the endpoint is and can take.
func (e Endpoint) validateTraits(c *complaints, who string) {
	if !slices.Contains([]string{"vllm", "sglang", "llamacpp", "sim"}, e.Engine) {
		c.add("%s: engine is %q: write vllm, sglang, llamacpp or sim", who, e.Engine)
	}
	c.keyVariable(who, e.APIKeyEnv)
	e.validateKV(c, who)
	if e.MaxConcurrency < 0 {
		c.add("%s: max_concurrency can't be negative", who)
	}
	if e.Ranks < 0 || e.Ranks > maxRanks {
		c.add("%s: ranks is %d: at most %d", who, e.Ranks, maxRanks)
	}
	if min(e.MaxTokens, e.CacheBlocks) < 0 || e.Speed < 0 {
		c.add("%s: max_tokens, speed and cache_blocks can't be negative", who)
	}
	for label, value := range e.Labels {
		if label == "" || len(label)+len(value) > maxLabel {
			c.add("%s: label %.40q: names and values have at most %d characters together", who, label, maxLabel)
		}
	}
	if len(e.Labels) > maxLabels {
		c.add("%s: %d labels: at most %d", who, len(e.Labels), maxLabels)
	}
}

const (
	maxLabel  = 400
	maxLabels = 64
	maxRanks  = 256
)

// keyVariable checks that an engine may be sent what the variable holds.
func (c *complaints) keyVariable(who, name string) {
	bad := strings.HasPrefix(name, "WEIR_")
	for _, r := range name {
		bad = bad || r != '_' && (r < 'A' || r > 'Z') && (r < '0' || r > '9')
	}
	if bad {
		c.add("%s: api_key_env is %q: write the name of an environment variable such as ENGINE_KEY; those that begin with WEIR_ hold our own secrets and go to no engine", who, name)
	}
}
