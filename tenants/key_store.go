package tenants

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"
)

// CreateKey makes a key. The secret is returned here and never again. What
// can't be stored is a *FieldError, an unknown tenant ErrNotFound.
func (s *Store) CreateKey(ctx context.Context, actor string, tenant ID, spec KeySpec) (Secret, Key, error) {
	cidrs, err := spec.check(s.now())
	if err != nil {
		return Secret{}, Key{}, err
	}
	secret := newSecret(spec.Kind)
	key := Key{
		Tenant: tenant, ID: KeyID(newID("key_")), Project: spec.Project, Kind: spec.Kind, Name: spec.Name,
		Scopes: sortedSet(spec.Scopes, strings.Compare), Models: sortedSet(spec.Models, strings.Compare), CIDRs: cidrs,
		Limits: spec.Limits, CreatedBy: actor, ExpiresAt: spec.ExpiresAt,
	}
	key.DisplayStart, key.DisplayEnd = secret.display()
	err = s.InTenant(ctx, tenant, func(tx pgx.Tx) error {
		if err := lockTenant(ctx, tx, tenant); err != nil {
			return err
		}
		err := below(ctx, tx, maxLiveKeys, `SELECT count(*) FROM keys WHERE tenant_id = $1 AND revoked_at IS NULL`, tenant)
		if err != nil {
			return err
		}
		if err := s.insertKey(ctx, tx, secret, &key); err != nil {
			return err
		}
		return writeAudit(ctx, tx, tenant, actor, "key.create", string(key.ID), map[string]any{
			"kind": key.Kind, "project": key.Project, "name": key.Name, "scopes": key.Scopes, "models": key.Models, "cidrs": key.CIDRs,
		})
	})
	if err != nil {
		return Secret{}, Key{}, fmt.Errorf("create key of tenant %s: %w", tenant, err)
	}
	return secret, key, nil
}

func (s *Store) insertKey(ctx context.Context, tx pgx.Tx, secret Secret, k *Key) error {
	hash, version := s.peppers.current(secret.Reveal())
	err := tx.QueryRow(ctx, `
		INSERT INTO keys (tenant_id, id, project_id, kind, hash, pepper_version, display_start, display_end, name,
		                  scopes, models, cidrs, limits, created_by, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
		RETURNING created_at`,
		k.Tenant, k.ID, zeronull.Text(k.Project), k.Kind, hash, version, k.DisplayStart, k.DisplayEnd, k.Name,
		k.Scopes, k.Models, k.CIDRs, k.Limits, k.CreatedBy, zeronull.Timestamptz(k.ExpiresAt)).Scan(&k.CreatedAt)
	if violates(err, "keys_tenant_id_project_id_fkey") {
		return &FieldError{"project", "the tenant has no such project"}
	}
	if err != nil {
		return fmt.Errorf("insert key: %w", err)
	}
	return nil
}

// ListKeys returns the tenant's keys, newest first, revoked and expired ones
// too: at most limit of those that come after the given one ("" begins).
func (s *Store) ListKeys(ctx context.Context, tenant ID, after KeyID, limit int) ([]Key, error) {
	var list []Key
	err := s.InTenant(ctx, tenant, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT tenant_id, id, project_id, kind, name, display_start, display_end, scopes, models, cidrs, limits,
			       created_by, created_at, expires_at, revoked_at, last_used_at
			  FROM keys
			 WHERE tenant_id = $1
			   AND ($2 = '' OR (created_at, id) < (SELECT created_at, id FROM keys WHERE tenant_id = $1 AND id = $2))
			 ORDER BY created_at DESC, id DESC
			 LIMIT $3`, tenant, after, limit)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, scanKey)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list keys of tenant %s: %w", tenant, err)
	}
	return list, nil
}

func scanKey(row pgx.CollectableRow) (k Key, err error) {
	err = row.Scan(&k.Tenant, &k.ID, (*zeronull.Text)(&k.Project), &k.Kind, &k.Name, &k.DisplayStart, &k.DisplayEnd,
		&k.Scopes, &k.Models, &k.CIDRs, &k.Limits, &k.CreatedBy, &k.CreatedAt,
		(*zeronull.Timestamptz)(&k.ExpiresAt), (*zeronull.Timestamptz)(&k.RevokedAt), (*zeronull.Timestamptz)(&k.LastUsedAt))
	return k, err
}

// RevokeKey ends a key for ever, and with it the requests that it runs.
// Revoking twice is no error; another tenant's key is ErrNotFound.
func (s *Store) RevokeKey(ctx context.Context, actor string, tenant ID, key KeyID) error {
	err := s.InTenant(ctx, tenant, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE keys
			   SET revoked_at = now()
			 WHERE tenant_id = $1
			   AND id = $2
			   AND revoked_at IS NULL`, tenant, key)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return mustExist(ctx, tx, `SELECT EXISTS (SELECT FROM keys WHERE tenant_id = $1 AND id = $2)`, tenant, key)
		}
		return writeAudit(ctx, tx, tenant, actor, "key.revoke", string(key), nil)
	})
	if err != nil {
		return fmt.Errorf("revoke key %s: %w", key, err)
	}
	return nil
}

// TenantOfKey finds whose key an operator means, or ErrNotFound. It takes the
// worker's pool, as ListTenants does.
func TenantOfKey(ctx context.Context, worker Querier, key KeyID) (ID, error) {
	rows, err := worker.Query(ctx, `SELECT weir_tenant_of_key($1)`, key)
	if err != nil {
		return "", fmt.Errorf("find tenant of key %s: %w", key, err)
	}
	tenant, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[*ID])
	if err == nil && tenant == nil {
		err = ErrNotFound
	}
	if err != nil {
		return "", fmt.Errorf("find tenant of key %s: %w", key, err)
	}
	return *tenant, nil
}
