package tenants

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Billing is how the use of a key is paid for.
type Billing struct {
	// Mode is off, shadow or enforce; empty is the installation's default.
	Mode string `json:"mode"`
	// Nodes are the wallets that its requests are paid from: the tenant, then the
	// project and the key where they have caps of their own.
	Nodes []string `json:"nodes"`
}

// SetBilling sets how a tenant pays, for new requests from now on: by which mode
// (off, shadow, enforce, or empty for the installation's default), and of which
// kind it is (prepaid or postpaid). Nil leaves what is there.
func (s *Store) SetBilling(ctx context.Context, actor string, id ID, mode, kind *string) error {
	err := s.InTenant(ctx, id, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE tenants
			   SET billing_mode = CASE WHEN $2::text IS NULL THEN billing_mode ELSE nullif($2, '') END,
			       billing_kind = coalesce($3, billing_kind)
			 WHERE id = $1`, id, mode, kind)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return ErrNotFound
		}
		return writeAudit(ctx, tx, id, actor, "tenant.set_billing", string(id), map[string]any{"mode": mode, "kind": kind})
	})
	if err != nil {
		return fmt.Errorf("set billing of tenant %s: %w", id, err)
	}
	return nil
}

// BillingOf reads what SetBilling sets.
func (s *Store) BillingOf(ctx context.Context, id ID) (mode, kind string, err error) {
	err = s.InTenant(ctx, id, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `SELECT coalesce(billing_mode, ''), billing_kind FROM tenants WHERE id = $1`, id).Scan(&mode, &kind)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return "", "", fmt.Errorf("billing of tenant %s: %w", id, err)
	}
	return mode, kind, nil
}
