package tenants

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// SetProjectLimits gives a project limits of its own, for new requests from now
// on; one that is zero is the plan's. Negative limits are a *FieldError, and an
// unknown project is ErrNotFound.
func (s *Store) SetProjectLimits(ctx context.Context, actor string, tenant ID, project ProjectID, l Limits) error {
	if err := l.validate(); err != nil {
		return &FieldError{Field: "limits", Reason: err.Error()}
	}
	err := s.InTenant(ctx, tenant, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE projects SET limits = $3 WHERE tenant_id = $1 AND id = $2`, tenant, project, l)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return ErrNotFound
		}
		return writeAudit(ctx, tx, tenant, actor, "project.set_limits", string(project), map[string]any{"limits": l})
	})
	if err != nil {
		return fmt.Errorf("set limits of project %s: %w", project, err)
	}
	return nil
}

// SetModelLimits limits a tenant's use of a model in its own way, for new
// requests from now on: a limit that is zero is the plan's. Bad limits, and those
// of too many models, are a *FieldError, and an unknown tenant is ErrNotFound.
func (s *Store) SetModelLimits(ctx context.Context, actor string, tenant ID, model string, l Limits) error {
	if err := l.validate(); err != nil {
		return &FieldError{Field: "limits", Reason: err.Error()}
	}
	if !plainText(model, 200) {
		return &FieldError{Field: "model", Reason: "want the public name of a model"}
	}
	err := s.InTenant(ctx, tenant, func(tx pgx.Tx) error {
		var models int
		err := tx.QueryRow(ctx, `
			UPDATE tenants
			   SET model_limits = CASE WHEN $3::jsonb = '{}' THEN model_limits - $2::text
			                           ELSE model_limits || jsonb_build_object($2::text, $3::jsonb) END
			 WHERE id = $1
			RETURNING (SELECT count(*) FROM jsonb_object_keys(model_limits))`, tenant, model, l).Scan(&models)
		if errors.Is(err, pgx.ErrNoRows) {
			return ErrNotFound
		}
		if err != nil {
			return err
		}
		if models > maxModelLimits {
			return &FieldError{Field: "model", Reason: fmt.Sprintf("a tenant has limits of its own for at most %d", maxModelLimits)}
		}
		return writeAudit(ctx, tx, tenant, actor, "tenant.set_model_limits", string(tenant), map[string]any{"model": model, "limits": l})
	})
	if err != nil {
		return fmt.Errorf("set limits of tenant %s for %s: %w", tenant, model, err)
	}
	return nil
}
