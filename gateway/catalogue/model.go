// Package catalogue is what the operator sells and runs: models with their
// routes, pools with their endpoints, bands, plans and prices. One YAML
// document describes it, Postgres holds it, and every replica keeps an
// immutable Snapshot of it.
package catalogue

import (
	"time"
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
	ShutdownDate *time.Time `yaml:"shutdown_date,omitempty"`
}

// Sold reports whether the model serves at a moment: until its shutdown date.
func (m *Model) Sold(at time.Time) bool {
	return m.ShutdownDate == nil || at.Before(*m.ShutdownDate)
}

// Route is one way to serve a model.
type Route struct {
	Pool   string `yaml:"pool"`
	Weight int    `yaml:"weight,omitempty"` // share of new chains; 0 counts as 1
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
	Scheduler Scheduling `yaml:"scheduler,omitempty"`
	Endpoints []Endpoint `yaml:"endpoints"`

	Discovery      *Discovery    `yaml:"discovery,omitempty"`       // where further endpoints are found
	Scaling        *Scaling      `yaml:"scaling,omitempty"`         // how many endpoints it should have
	ScrapeInterval time.Duration `yaml:"scrape_interval,omitempty"` // between two readings of an endpoint's metrics; 200ms
	APIKeyEnv      string        `yaml:"api_key_env,omitempty"`     // of endpoints that name none
	CAFile         string        `yaml:"ca_file,omitempty"`         // of endpoints that name none
}

// Band is a priority level.
type Band struct {
	Name     string `yaml:"name"`
	Priority int    `yaml:"priority"`
}
