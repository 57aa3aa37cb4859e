package tenants

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// setTenant is local to its transaction: a pooled connection keeps nothing of it.
const setTenant = `SELECT set_config('weir.tenant_id', $1, true)`

// InTenant runs work in a transaction that sees and changes the rows of one
// tenant only, and commits it unless work returns an error. It is the only way
// into tenants' tables for the application's role.
func InTenant(ctx context.Context, app *pgxpool.Pool, tenant ID, work func(pgx.Tx) error) error {
	if tenant == "" {
		return errors.New("in tenant: no tenant given")
	}
	return pgx.BeginFunc(ctx, app, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, setTenant, string(tenant)); err != nil {
			return fmt.Errorf("in tenant %s: %w", tenant, err)
		}
		return work(tx)
	})
}

// Store manages tenants, projects and keys for the console and the operator's
// commands. Each change and its audit entry are one transaction. Actor, in all
// methods, says who asked for the change.
type Store struct {
	app     *pgxpool.Pool
	peppers Peppers
	now     func() time.Time
}

// NewStore returns a store on the application's pool. Keys that it creates are
// hashed under the current pepper.
func NewStore(app *pgxpool.Pool, peppers Peppers, now func() time.Time) *Store {
	return &Store{app: app, peppers: peppers, now: now}
}

// InTenant is the package's InTenant on the store's pool.
func (s *Store) InTenant(ctx context.Context, tenant ID, work func(pgx.Tx) error) error {
	return InTenant(ctx, s.app, tenant, work)
}

// Audit records a change that another package makes for a tenant, in the
// transaction that makes it. Actor says who asked for it.
func Audit(ctx context.Context, tx pgx.Tx, tenant ID, actor, action, target string, detail map[string]any) error {
	return writeAudit(ctx, tx, tenant, actor, action, target, detail)
}

// writeAudit records a change in the transaction that makes it.
func writeAudit(ctx context.Context, tx pgx.Tx, tenant ID, actor, action, target string, detail map[string]any) error {
	if !plainText(actor, 200) {
		return &FieldError{Field: "actor", Reason: "want 1 to 200 printable characters"}
	}
	if detail == nil {
		detail = map[string]any{}
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO audit (tenant_id, id, actor, action, target, detail)
		VALUES ($1, $2, $3, $4, $5, $6)`,
		tenant, newID("aud_"), actor, action, target, detail)
	if err != nil {
		return fmt.Errorf("write audit: %w", err)
	}
	return nil
}

// plainText reports whether s has 1 to most printable characters and does not
// begin or end with a space.
func plainText(s string, most int) bool {
	return s != "" && utf8.ValidString(s) && utf8.RuneCountInString(s) <= most && strings.TrimSpace(s) == s &&
		!strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
