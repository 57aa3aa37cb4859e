// Package catalogue is what the operator sells and runs: models with their
// routes, pools with their endpoints, bands, plans and prices. One YAML
// document describes it, Postgres holds it, and every replica keeps an
// immutable Snapshot of it.
package catalogue

import (
	"slices"
	"time"

	"weir/tenants"
)

// Model is a public name and where its requests go.
type Model struct {
	Name         string     `yaml:"name"`
	Aliases      []string   `yaml:"aliases,omitempty"`
	EngineModel  string     `yaml:"engine_model,omitempty"` // name at the engine; empty: Name
	OwnedBy      string     `yaml:"owned_by,omitempty"`
	Created      int64      `yaml:"created,omitempty"` // Unix seconds, shown by /v1/models; empty: when it was first applied
	Operations   []string   `yaml:"operations"`        // chat, completions, embeddings
	Context      int        `yaml:"context_length,omitempty"`
	MaxOutput    int        `yaml:"max_output_tokens,omitempty"`
	Routes       []Route    `yaml:"routes"`
	Timeouts     Timeouts   `yaml:"timeouts,omitempty"`
	TemplateKeys []string   `yaml:"chat_template_kwargs,omitempty"` // keys of chat_template_kwargs that callers may set
	Template     Template   `yaml:"template,omitempty"`
	Efforts      []string   `yaml:"reasoning_efforts,omitempty"` // that it knows; empty: none, low, medium, high
	Modalities   []string   `yaml:"modalities,omitempty"`        // that it takes: text, image, audio, video; empty: not known, its engine decides
	Files        string     `yaml:"files,omitempty"`             // text, native; empty: text
	Upstream     string     `yaml:"upstream,omitempty"`          // how responses are asked for: chat, responses; empty: chat
	ShutdownDate *time.Time `yaml:"shutdown_date,omitempty"`
}

// Sold reports whether the model serves at a moment: until its shutdown date.
func (m *Model) Sold(at time.Time) bool {
	return m.ShutdownDate == nil || at.Before(*m.ShutdownDate)
}

// Route is one way to serve a model. Their order is that in which they take
// what others spill.
type Route struct {
	Pool      string  `yaml:"pool"`
	Weight    int     `yaml:"weight,omitempty"`     // share of the chains; 0 counts as 1
	Canary    float64 `yaml:"canary,omitempty"`     // in place of a weight: part of all chains, between 0 and 1; takes no spill
	Overflow  bool    `yaml:"overflow,omitempty"`   // in place of a weight: takes what others spill, and nothing else
	SpillWhen *Spill  `yaml:"spill_when,omitempty"` // when the next route takes over; nil: never
}

// Spill is how busy a pool must be, in one way or the other, before calls go
// to the next route. Zero is no limit.
type Spill struct {
	Saturation float64       `yaml:"saturation,omitempty"` // of the pool, as its detector measures it; 1 is full
	Wait       time.Duration `yaml:"wait,omitempty"`       // in the pool's queue, as it is expected
}

// Timeouts bound one exchange. Zero takes the default.
type Timeouts struct {
	Connect   time.Duration `yaml:"connect,omitempty"`    // 5s
	FirstByte time.Duration `yaml:"first_byte,omitempty"` // 120s
	Idle      time.Duration `yaml:"idle,omitempty"`       // 60s between two chunks
	Total     time.Duration `yaml:"total,omitempty"`      // 30m
}

// Pool is a set of model servers that share a queue.
type Pool struct {
	Name      string     `yaml:"name"`
	Region    string     `yaml:"region,omitempty"`
	Isolation string     `yaml:"isolation,omitempty"` // verified, single-tenant; empty: unverified
	Tenants   []string   `yaml:"tenants,omitempty"`   // ids of those it serves; empty: all
	Scheduler Scheduling `yaml:"scheduler,omitempty"`
	Endpoints []Endpoint `yaml:"endpoints"`

	Discovery      *Discovery    `yaml:"discovery,omitempty"`       // where further endpoints are found
	Scaling        *Scaling      `yaml:"scaling,omitempty"`         // how many endpoints it should have
	ScrapeInterval time.Duration `yaml:"scrape_interval,omitempty"` // between two readings of an endpoint's metrics; 200ms
	APIKeyEnv      string        `yaml:"api_key_env,omitempty"`     // of endpoints that name none
	CAFile         string        `yaml:"ca_file,omitempty"`         // of endpoints that name none
}

// Serves reports whether the caller's plan lets its requests go to the pool, and
// the pool takes the caller's tenant. One that is single-tenant takes only whom
// it names, and so nobody where it names none.
func (p *Pool) Serves(who *tenants.Principal) bool {
	regions := who.Plan.Regions
	everyone := len(p.Tenants) == 0 && p.Isolation != tenants.IsolationSingleTenant
	return (everyone || slices.Contains(p.Tenants, string(who.Tenant))) &&
		(len(regions) == 0 || slices.Contains(regions, p.Region)) &&
		tenants.Isolates(p.Isolation, who.Plan.Isolation)
}

// Band is a priority level.
type Band struct {
	Name     string `yaml:"name"`
	Priority int    `yaml:"priority"`
}
