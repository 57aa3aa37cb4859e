package billing

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Wallet is what a tenant, a project or a key may spend.
type Wallet struct {
	Tenant, Node    string
	Scope           string // tenant, project or key
	BalanceNano     int64
	CreditLimitNano int64 // what may be owed
	HeldNano        int64 // of it, what replicas hold to admit requests
}

// ListWallets reads the wallets of all tenants as the worker, by tenant and node
// and after the given one.
func ListWallets(ctx context.Context, worker Querier, after Wallet, limit int) ([]Wallet, error) {
	return wallets(ctx, worker, `
		SELECT tenant, node, scope, balance_nano, credit_limit_nano, held_nano
		FROM weir_list_wallets($1, $2, $3)`, after.Tenant, after.Node, limit)
}

// Wallets reads a tenant's wallets in its own transaction: the tenant's first.
func Wallets(ctx context.Context, q Querier, tenant string) ([]Wallet, error) {
	return wallets(ctx, q, `
		SELECT
			w.tenant_id, w.node, w.scope, w.balance_nano, w.credit_limit_nano,
			(SELECT coalesce(sum(left_nano), 0)::bigint FROM chunks c WHERE c.tenant_id = w.tenant_id AND c.node = w.node)
		FROM wallets w
		WHERE w.tenant_id = $1
		ORDER BY w.scope <> 'tenant', w.scope DESC, w.node`, tenant)
}

func wallets(ctx context.Context, q Querier, sql string, args ...any) ([]Wallet, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, fmt.Errorf("read wallets: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Wallet])
	if err != nil {
		return nil, fmt.Errorf("read wallets: %w", err)
	}
	return found, nil
}

// SetCreditLimit lets a tenant owe as much, as the worker.
func SetCreditLimit(ctx context.Context, worker Querier, tenant string, nano int64) error {
	_, err := bookOne(ctx, worker, `SELECT 0::bigint FROM weir_set_credit_limit($1, $2)`, tenant, nano)
	return err
}

// Allotment caps what a project or a key may spend of its tenant's money.
type Allotment struct {
	Tenant, Node string
	Scope        string // project or key
	SetNano      *int64 // what is left from now on; nil: what it is
	AddNano      int64  // and this much more
}

// Allot sets a cap or tops it up, as the worker, and returns what is left.
func Allot(ctx context.Context, worker Querier, a Allotment) (leftNano int64, err error) {
	return bookOne(ctx, worker, `SELECT weir_allot($1, $2, $3, $4, $5)`, a.Tenant, a.Node, a.Scope, a.SetNano, a.AddNano)
}

// LiftCap removes the cap of a project or a key, as the worker. It reports
// whether there was one.
func LiftCap(ctx context.Context, worker Querier, tenant, node string) (lifted bool, err error) {
	n, err := bookOne(ctx, worker, `SELECT weir_lift_cap($1, $2)::integer::bigint`, tenant, node)
	return n == 1, err
}
