package tenants

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// found is a key as Postgres has it, ready to be judged.
type found struct {
	principal *Principal
	cidrs     []netip.Prefix
	revoked   bool
	suspended bool
}

// judge says whether the key may be used from the address at this moment.
func (f *found) judge(client netip.Addr, now time.Time) error {
	switch {
	case f.revoked:
		return ErrRevoked
	case !f.principal.ExpiresAt.IsZero() && !now.Before(f.principal.ExpiresAt):
		return ErrExpired
	case f.suspended:
		return ErrSuspended
	case len(f.cidrs) > 0 && !contains(f.cidrs, client):
		return ErrAddress
	default:
		return nil
	}
}

// contains is false for the zero address: an unknown client is on no list.
func contains(cidrs []netip.Prefix, client netip.Addr) bool {
	client = client.Unmap().WithZone("")
	return slices.ContainsFunc(cidrs, func(p netip.Prefix) bool { return p.Contains(client) })
}

// find looks a secret up. It returns nil if no key has it.
func (k *Keys) find(ctx context.Context, secret string) (*found, error) {
	select {
	case k.lookups <- struct{}{}:
		defer func() { <-k.lookups }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a look-up: %w", ctx.Err())
	}
	f, hash, version, err := scanFound(k.worker.QueryRow(ctx, `
		SELECT `+foundColumns+`
		  FROM weir_find_key($1)`, k.peppers.all(secret)))
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find key: %w", err)
	}
	if !k.peppers.matches(secret, hash, version) {
		return nil, nil
	}
	return f, nil
}

const foundColumns = `tenant_id, project_id, key_id, kind, hash, pepper_version, scopes, models, cidrs, limits, expires_at,
		       revoked, suspended, tenant_fairness_id, project_fairness_id, plan, weir_account_limits(tenant_id, project_id),
		       weir_key_billing(tenant_id, project_id, key_id)`

// accountLimits are those of a key's owner that are not its plan's.
type accountLimits struct {
	Project Limits            `json:"project"`
	Models  map[string]Limits `json:"models"`
}

// scanFound reads a row of the foundColumns.
func scanFound(row pgx.Row) (f *found, hash []byte, version int, err error) {
	var (
		p               Principal
		plan            Plan
		tenantFairness  string
		projectFairness zeronull.Text
		account         accountLimits
	)
	f = &found{}
	err = row.Scan(
		&p.Tenant, (*zeronull.Text)(&p.Project), &p.Key, &p.Kind, &hash, &version, &p.Scopes, &p.Models, &f.cidrs,
		&p.Limits, (*zeronull.Timestamptz)(&p.ExpiresAt), &f.revoked, &f.suspended, &tenantFairness, &projectFairness, &plan, &account, &p.Billing)
	if err != nil {
		return nil, nil, 0, err
	}
	p.Plan = &plan
	p.Limits = p.Limits.Or(plan.KeyLimits)
	p.ProjectLimits = account.Project.Or(plan.ProjectLimits)
	if len(account.Models) > 0 {
		p.ModelLimits = account.Models
	}
	if len(plan.ModelLimits) == 0 {
		plan.ModelLimits = nil
	}
	p.FairnessID = tenantFairness
	if plan.Fairness == FairnessProject && projectFairness != "" {
		p.FairnessID = string(projectFairness)
	}
	f.principal = &p
	return f, hash, version, nil
}

// Principal returns whom a key stands for now, for work that goes on after the
// request that began it. Errors: ErrBadKey, ErrSuspended, ErrUnavailable, or
// that of ctx. From which address the key may be used was asked when the work
// was ordered.
func (k *Keys) Principal(ctx context.Context, tenant ID, key KeyID) (*Principal, error) {
	asking, cancel := context.WithTimeout(ctx, k.cfg.LookupTimeout)
	defer cancel()
	f, _, _, err := scanFound(k.worker.QueryRow(asking, `
		SELECT `+foundColumns+`
		  FROM weir_load_key($1, $2)`, tenant, key))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, ErrUnknownKey
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	f.cidrs = nil
	if err := f.judge(netip.Addr{}, k.now()); err != nil {
		return nil, err
	}
	return f.principal, nil
}

// load looks a secret up for all who wait for it and caches the answer. It
// begins again when a change came in between: then the answer may be older than
// the change, while those who wait may have come after it.
func (k *Keys) load(ctx context.Context, d digest, secret string) (*entry, error) {
	ctx, cancel := context.WithTimeout(ctx, k.cfg.LookupTimeout)
	defer cancel()
	const tries = 3
	for try := 1; ; try++ {
		e := &entry{loaded: k.now(), epoch: k.cache.begin()}
		f, err := k.find(ctx, secret)
		if err != nil {
			return nil, err
		}
		if f == nil {
			k.cache.putUnknown(d, e.loaded.Add(k.cfg.NegativeTTL))
			return nil, nil
		}
		e.found = f
		e.freshUntil = e.loaded.Add(k.cfg.TTL)
		if f.revoked || f.suspended {
			e.freshUntil = e.loaded.Add(k.cfg.NegativeTTL)
		}
		// Under changes without end the last answer is used but not kept.
		if k.cache.put(d, e) || try == tries {
			return e, nil
		}
	}
}
