package tenants

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// defaultRetention is how many days a plan keeps responses that doesn't say.
const defaultRetention = 30

// UnmarshalYAML fills in what a catalogue leaves out and whose zero has a
// meaning of its own.
func (p *Plan) UnmarshalYAML(unmarshal func(any) error) error {
	type plain Plan
	v := plain{RetentionDays: defaultRetention}
	if err := unmarshal(&v); err != nil {
		return err
	}
	if v.WhenNoScheduler == Refuse {
		v.WhenNoScheduler = ""
	}
	*p = Plan(v)
	return nil
}

// Whose fairness ID a request carries.
const (
	FairnessTenant  = "tenant"
	FairnessProject = "project"
)

// Bounds of what a plan promises.
const (
	maxReserved   = 1_000_000_000 // tokens
	maxTTFTMillis = 3_600_000     // an hour
	maxRegions    = 100
	maxBurst      = 100

	maxModelLimits = 100 // models, of a plan or a tenant
)

// What becomes of requests to a pool whose shared scheduler doesn't answer: they
// are refused, or the replica that has them places them by itself, where the
// pool lists its endpoints.
const (
	Refuse  = "refuse" // the default; "" once a plan was read
	StandIn = "embedded"
)

// How a pool keeps tenants apart: proven to, or by serving only one. A pool
// that says neither has not been examined.
const (
	IsolationVerified     = "verified"
	IsolationSingleTenant = "single-tenant"
)

// KnownIsolation reports whether a pool or a plan may say it.
func KnownIsolation(s string) bool {
	return s == "" || s == IsolationVerified || s == IsolationSingleTenant
}

// Isolates reports whether what a pool has is at least what a plan wants.
func Isolates(has, wants string) bool {
	return wants == "" || has == IsolationSingleTenant || has == wants
}

// regions is the list as the database wants it, never null.
func regions(r []string) []string { return append([]string{}, r...) }

// Validate joins all that is wrong with the plan's own values. Whether its
// bands exist is the catalogue's question.
func (p Plan) Validate() error {
	var errs []error
	complain := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !plainText(p.Name, 100) {
		complain("name: want 1 to 100 printable characters")
	}
	if p.Bands[TierDefault] == "" {
		complain("bands: the %q tier needs a band", TierDefault)
	}
	for _, tier := range slices.Sorted(maps.Keys(p.Bands)) {
		if !tier.known() {
			complain("bands: there is no tier %q", tier)
		}
		if p.Bands[tier] == "" && tier != TierDefault {
			complain("bands: the %q tier names no band", tier)
		}
	}
	if p.Weight < 1 {
		complain("weight: %d, want at least 1", p.Weight)
	}
	if p.Fairness != FairnessTenant && p.Fairness != FairnessProject {
		complain("fairness: %q, want %q or %q", p.Fairness, FairnessTenant, FairnessProject)
	}
	if err := p.Limits.validate(); err != nil {
		complain("limits: %w", err)
	}
	if err := p.KeyLimits.validate(); err != nil {
		complain("key_limits: %w", err)
	}
	if err := p.ProjectLimits.validate(); err != nil {
		complain("project_limits: %w", err)
	}
	if len(p.ModelLimits) > maxModelLimits {
		complain("model_limits: of at most %d models", maxModelLimits)
	}
	for _, model := range slices.Sorted(maps.Keys(p.ModelLimits)) {
		if err := p.ModelLimits[model].validate(); err != nil {
			complain("model_limits: %s: %w", model, err)
		}
	}
	if p.Burst != 0 && !(p.Burst >= 1 && p.Burst <= maxBurst) {
		complain("burst: %v, want 1 to %d, or 0 for none", p.Burst, maxBurst)
	}
	if p.RetentionDays < 0 {
		complain("retention_days: %d, want 0 or more", p.RetentionDays)
	}
	if len(p.Regions) > maxRegions || slices.Contains(p.Regions, "") {
		complain("regions: name at most %d, or leave them out", maxRegions)
	}
	if !KnownIsolation(p.Isolation) {
		complain("isolation: %q, want %s or %s, or nothing", p.Isolation, IsolationVerified, IsolationSingleTenant)
	}
	if p.ReservedTokens < 0 || p.ReservedTokens > maxReserved {
		complain("reserved_tokens: %d, want 0 to %d", p.ReservedTokens, maxReserved)
	}
	if p.WhenNoScheduler != "" && p.WhenNoScheduler != StandIn {
		complain("when_no_scheduler: %q, want %s or %s", p.WhenNoScheduler, Refuse, StandIn)
	}
	if p.TTFTMillis < 0 || p.TTFTMillis > maxTTFTMillis {
		complain("ttft_ms: %d, want 0 to %d", p.TTFTMillis, maxTTFTMillis)
	}
	return errors.Join(errs...)
}

func (t Tier) known() bool {
	switch t {
	case TierDefault, TierFlex, TierPriority, TierBatch, TierBackground:
		return true
	default:
		return false
	}
}

func (l Limits) validate() error {
	if min(l.RequestsPerMinute, l.TokensPerMinute, l.UncachedTokensPerMinute, l.OutputTokensPerMinute, l.Concurrency) < 0 {
		return errors.New("a limit can't be negative (0 is none)")
	}
	return nil
}

// Or fills each limit that is not set with the default's.
func (l Limits) Or(defaults Limits) Limits {
	return Limits{
		RequestsPerMinute:       cmp.Or(l.RequestsPerMinute, defaults.RequestsPerMinute),
		TokensPerMinute:         cmp.Or(l.TokensPerMinute, defaults.TokensPerMinute),
		UncachedTokensPerMinute: cmp.Or(l.UncachedTokensPerMinute, defaults.UncachedTokensPerMinute),
		OutputTokensPerMinute:   cmp.Or(l.OutputTokensPerMinute, defaults.OutputTokensPerMinute),
		Concurrency:             cmp.Or(l.Concurrency, defaults.Concurrency),
	}
}

// Querier reads: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// LoadPlans returns all plans by name.
func LoadPlans(ctx context.Context, q Querier) (map[string]Plan, error) {
	rows, err := q.Query(ctx, `
		SELECT name, bands, weight, fairness, limits, key_limits, project_limits, model_limits, burst,
		       retention_days, reserved_tokens, ttft_ms, regions, isolation, when_no_scheduler
		  FROM plans`)
	if err != nil {
		return nil, fmt.Errorf("load plans: %w", err)
	}
	plans := make(map[string]Plan)
	var p Plan
	_, err = pgx.ForEachRow(rows,
		[]any{
			&p.Name, &p.Bands, &p.Weight, &p.Fairness, &p.Limits, &p.KeyLimits, &p.ProjectLimits, &p.ModelLimits, &p.Burst,
			&p.RetentionDays, &p.ReservedTokens, &p.TTFTMillis, &p.Regions, &p.Isolation, &p.WhenNoScheduler,
		},
		func() error {
			if len(p.ModelLimits) == 0 {
				p.ModelLimits = nil
			}
			if len(p.Regions) == 0 {
				p.Regions = nil
			}
			plans[p.Name] = p
			p = Plan{}
			return nil
		})
	if err != nil {
		return nil, fmt.Errorf("load plans: %w", err)
	}
	return plans, nil
}

// PutPlans stores the plans under their names in the caller's transaction. It
// changes those that differ and leaves others alone; replicas learn of a change
// when the transaction commits.
func PutPlans(ctx context.Context, tx pgx.Tx, plans map[string]Plan) error {
	// In the order of names, so that two writers can't lock each other out.
	for _, name := range slices.Sorted(maps.Keys(plans)) {
		p := plans[name]
		p.Name = name
		if err := p.Validate(); err != nil {
			return fmt.Errorf("plan %q: %w", name, err)
		}
		if p.ModelLimits == nil {
			p.ModelLimits = map[string]Limits{}
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO plans (name, bands, weight, fairness, limits, key_limits, retention_days,
			                   reserved_tokens, ttft_ms, regions, isolation, project_limits, model_limits, burst,
			                   when_no_scheduler)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
			ON CONFLICT (name) DO UPDATE
			   SET bands = excluded.bands, weight = excluded.weight, fairness = excluded.fairness,
			       limits = excluded.limits, key_limits = excluded.key_limits, retention_days = excluded.retention_days,
			       reserved_tokens = excluded.reserved_tokens, ttft_ms = excluded.ttft_ms,
			       regions = excluded.regions, isolation = excluded.isolation,
			       project_limits = excluded.project_limits, model_limits = excluded.model_limits, burst = excluded.burst,
			       when_no_scheduler = excluded.when_no_scheduler
			 WHERE plans.* IS DISTINCT FROM excluded.*`,
			p.Name, p.Bands, p.Weight, p.Fairness, p.Limits, p.KeyLimits, p.RetentionDays,
			p.ReservedTokens, p.TTFTMillis, regions(p.Regions), p.Isolation, p.ProjectLimits, p.ModelLimits, p.Burst, p.WhenNoScheduler)
		if err != nil {
			return fmt.Errorf("store plan %q: %w", name, err)
		}
	}
	return nil
}

// RemovePlans removes the named plans in the caller's transaction; a name that
// is not there is no error. A plan that a tenant still has is a *FieldError,
// and the transaction is lost.
func RemovePlans(ctx context.Context, tx pgx.Tx, names []string) error {
	_, err := tx.Exec(ctx, `DELETE FROM plans WHERE name = ANY ($1)`, names)
	if violates(err, "tenants_plan_fkey") {
		return &FieldError{Field: "plans", Reason: "one of them is still the plan of a tenant"}
	}
	if err != nil {
		return fmt.Errorf("remove plans: %w", err)
	}
	return nil
}

// violates reports whether err is the named constraint's.
func violates(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.ConstraintName == constraint
}
