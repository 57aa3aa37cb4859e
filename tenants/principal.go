// Package tenants rules who may call: tenants, projects, plans and keys, and
// what each key is allowed to do. Its tables are behind row-level security;
// InTenant is the only way into them for the application's role.
package tenants

import (
	"slices"
	"time"
)

type (
	// ID names a tenant: ten_ and 26 base32 characters, as all ids of our own.
	ID string
	// ProjectID names a project: prj_...
	ProjectID string
	// KeyID names a key: key_... It is no secret.
	KeyID string
)

// Kind is what a key is for. Inference keys can't administer and
// administration keys can't run inference.
type Kind string

// The kinds of keys.
const (
	ProjectKey Kind = "sk"
	ServiceKey Kind = "sa"
	AdminKey   Kind = "adm"
)

// Tier is a service tier that a request asks for and is served at.
type Tier string

// The tiers for which a plan may name a band.
const (
	TierDefault    Tier = "default"
	TierFlex       Tier = "flex"
	TierPriority   Tier = "priority"
	TierBatch      Tier = "batch"
	TierBackground Tier = "background"
)

// Limits bound what may be used at once. Zero means no limit.
type Limits struct {
	RequestsPerMinute int `yaml:"requests_per_minute,omitempty" json:"requests_per_minute,omitempty"`
	// TokensPerMinute counts prompts, but for what was cached, and output. The
	// other two count one of these each.
	TokensPerMinute         int `yaml:"tokens_per_minute,omitempty" json:"tokens_per_minute,omitempty"`
	UncachedTokensPerMinute int `yaml:"uncached_tokens_per_minute,omitempty" json:"uncached_tokens_per_minute,omitempty"`
	OutputTokensPerMinute   int `yaml:"output_tokens_per_minute,omitempty" json:"output_tokens_per_minute,omitempty"`
	Concurrency             int `yaml:"concurrency,omitempty" json:"concurrency,omitempty"`
}

// Plan is what a tenant bought.
type Plan struct {
	Name          string          `yaml:"-" json:"name"`
	Bands         map[Tier]string `yaml:"bands" json:"bands"`                   // tier -> band name; must have default
	Weight        int             `yaml:"weight" json:"weight"`                 // share among tenants of one band
	Fairness      string          `yaml:"fairness" json:"fairness"`             // "tenant" or "project": whose fairness ID a request carries
	Limits        Limits          `yaml:"limits" json:"limits"`                 // of the whole tenant
	KeyLimits     Limits          `yaml:"key_limits" json:"key_limits"`         // of each key that has none of its own
	ProjectLimits Limits          `yaml:"project_limits" json:"project_limits"` // of each project that has none of its own
	RetentionDays int             `yaml:"retention_days" json:"retention_days"` // of stored responses; 0 stores nothing (in a catalogue, 30 where it is left out)
	// ModelLimits are of the whole tenant's use of a model, by its public name.
	ModelLimits map[string]Limits `yaml:"model_limits" json:"model_limits"`
	// Burst is how often limits may be exceeded while the pool has room: 2 doubles
	// them; 0 and 1 never.
	Burst float64 `yaml:"burst" json:"burst"`
	// Regions are where requests may be served; none is everywhere.
	Regions []string `yaml:"regions" json:"regions"`
	// Isolation is what a pool must at least have: nothing, verified or
	// single-tenant.
	Isolation string `yaml:"isolation" json:"isolation"`
	// ReservedTokens is how many tokens of each pool the fairness ID gets at
	// once while it wants them, whoever else waits in its band; 0 is none.
	ReservedTokens int `yaml:"reserved_tokens" json:"reserved_tokens"`
	// TTFTMillis is the time to first token that schedulers aim at, in
	// milliseconds from when a request begins to wait; 0 is none.
	TTFTMillis int `yaml:"ttft_ms" json:"ttft_ms"`
	// WhenNoScheduler is what becomes of requests to a pool whose shared
	// scheduler doesn't answer: "" or "refuse", or "embedded".
	WhenNoScheduler string `yaml:"when_no_scheduler" json:"when_no_scheduler"`
}

// Principal is who is calling, after authentication. It is an immutable
// snapshot: everything in it comes from our own records.
type Principal struct {
	Tenant     ID
	Project    ProjectID
	Key        KeyID
	Kind       Kind
	Plan       *Plan
	FairnessID string // of the tenant, or of the project where the plan says so
	Limits     Limits // of the key
	// ProjectLimits are the project's, and ModelLimits those that the tenant has
	// of its own, in place of the plan's.
	ProjectLimits Limits
	ModelLimits   map[string]Limits
	Scopes        []string // what the key may do, such as "inference:chat"; empty means all that its kind allows
	Models        []string // public model names that the key may use; empty means all
	ExpiresAt     time.Time
	Billing       Billing
}

// MayUse reports whether the key's allow-list has the model.
func (p *Principal) MayUse(model string) bool {
	return len(p.Models) == 0 || slices.Contains(p.Models, model)
}

// ModelLimit is what the tenant's use of a model is limited to, beside all else.
func (p *Principal) ModelLimit(model string) Limits {
	own, plans := p.ModelLimits[model], p.Plan.ModelLimits[model]
	return own.Or(plans)
}

// Band returns the band for the tier that was asked for, and the tier that is
// served: the default one where the plan doesn't sell the other.
func (p *Principal) Band(asked Tier) (band string, served Tier) {
	if b, ok := p.Plan.Bands[asked]; ok {
		return b, asked
	}
	return p.Plan.Bands[TierDefault], TierDefault
}
