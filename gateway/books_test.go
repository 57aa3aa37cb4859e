package gateway_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"weir/billing"
	"weir/gateway"
	"weir/migrations/pgtest"
)

// books are real wallets and a real ledger, in a Postgres that several tests
// may share: each has a tenant of its own there, whatever it calls it here.
type books struct {
	db     *pgtest.DB
	worker *pgxpool.Pool
	writer *billing.Settler

	mu    sync.Mutex
	admin *pgx.Conn
}

func newBooks(t *testing.T) *books {
	t.Helper()
	db := pgtest.New(t)
	conf, err := pgxpool.ParseConfig(db.WorkerURL)
	if err != nil {
		t.Fatal(err)
	}
	conf.MaxConns = 8
	worker, err := pgxpool.NewWithConfig(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(worker.Close)
	return &books{
		db: db, worker: worker, admin: db.Admin(t),
		writer: billing.NewSettler(slog.New(slog.DiscardHandler), worker, nil, billing.SettleConfig{}, time.Now),
	}
}

// look asks for one number, whoever it belongs to.
func (b *books) look(t *testing.T, sql string, args ...any) (n int64) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.admin.QueryRow(context.WithoutCancel(t.Context()), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// account is a tenant with credit, and what one replica holds of it.
type account struct {
	*billing.Funds

	books  *books
	tenant string
	credit int64
	stop   func()
}

// open gives a tenant credit.
func (b *books) open(t *testing.T, tenant string, creditNano int64) *account {
	t.Helper()
	if creditNano > 0 {
		b.look(t, `SELECT lot FROM weir_credit($1, 'paid', $2, 'top-up')`, tenant, creditNano)
	}
	return b.join(t, tenant, creditNano, "rep_"+tenant)
}

// join makes another replica that spends a tenant's credit.
func (b *books) join(t *testing.T, tenant string, creditNano int64, replica string) *account {
	t.Helper()
	a := &account{books: b, tenant: tenant, credit: creditNano}
	a.Funds = billing.NewFunds(slog.New(slog.DiscardHandler), b.worker, billing.FundsConfig{Replica: replica, Idle: 200 * time.Millisecond}, time.Now)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() { defer close(ended); _ = a.Run(ctx) }()
	a.stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(a.stop)
	return a
}

// Hold is for the account's tenant, and nodes of its own.
func (a *account) Hold(ctx context.Context, r billing.HoldRequest) (*billing.Hold, error) {
	own := billing.HoldRequest{Tenant: a.tenant, Nodes: []string{a.tenant}, Nano: r.Nano}
	for _, node := range r.Nodes[1:] {
		own.Nodes = append(own.Nodes, a.own(node))
	}
	h, err := a.Funds.Hold(ctx, own)
	if broke := brokeOf(err); broke != nil && broke.Node != a.tenant {
		for _, node := range r.Nodes[1:] {
			if broke.Node == a.own(node) {
				return nil, &billing.Broke{Node: node, AvailableNano: broke.AvailableNano, HeldNano: broke.HeldNano}
			}
		}
	}
	return h, err
}

func (a *account) own(node string) string { return node + "_" + a.tenant }

// Settle books a receipt for the account's tenant.
func (a *account) Settle(ctx context.Context, r billing.Receipt, effect func(*pgx.Batch)) error {
	r.Tenant, r.Project, r.Key = a.tenant, a.own(r.Project), a.own(r.Key)
	return a.books.writer.Settle(ctx, r, effect)
}

// enforce makes a house whose callers pay from the account.
func (a *account) enforce(h *house) {
	h.config.BillingMode = billing.ModeEnforce
	h.funds, h.ledger.next = a, a
}

// balanced fails unless all that was spent is what the receipts say, nothing is
// held any more, and the ledger agrees.
func (a *account) balanced(t *testing.T, receipts []billing.Receipt) (spent int64) {
	t.Helper()
	if n := a.Open(); n != 0 {
		t.Errorf("%d holds are open", n)
	}
	a.stop()
	for _, r := range receipts {
		spent += r.CostNano
		if r.Mode != billing.ModeEnforce {
			t.Errorf("a receipt of mode %q", r.Mode)
		}
	}
	balance := a.books.look(t, `SELECT coalesce(sum(balance_nano), 0)::bigint FROM wallets WHERE tenant_id = $1 AND node = $1`, a.tenant)
	if balance != a.credit-spent || balance < 0 {
		t.Errorf("%d are left of %d, and the receipts say %d", balance, a.credit, spent)
	}
	for what, n := range map[string]int64{
		"chunks are left": a.books.look(t, `SELECT count(*) FROM chunks WHERE tenant_id = $1`, a.tenant),
		"is what the ledger has less than the wallet": balance -
			a.books.look(t, `SELECT coalesce(sum(amount_nano), 0)::bigint FROM ledger_entries WHERE tenant_id = $1 AND account LIKE 'tenant:%'`, a.tenant),
		"is what the ledger sums to": a.books.look(t, `SELECT coalesce(sum(amount_nano), 0)::bigint FROM ledger_entries WHERE tenant_id = $1`, a.tenant),
		"receipts are missing": int64(len(receipts)) -
			a.books.look(t, `SELECT count(*) FROM receipts WHERE tenant_id = $1`, a.tenant),
	} {
		if n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
	return spent
}

// However an exchange ends, what it cost is booked and nothing else is held or
// spent.
func TestEveryEndingIsInTheBooks(t *testing.T) {
	t.Parallel()
	b := newBooks(t)
	for i, tt := range append(endings(), timedEndings()...) {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := b.open(t, fmt.Sprint("ten_", i), 1_000_000_000)
			h, to, ctx := tt.set(t, a.enforce)

			err := h.Run(ctx, h.call(tt.call), to)

			if got := causeOf(err); got != tt.cause {
				t.Errorf("ended as %q (%v), want %q", got, err, tt.cause)
			}
			h.idle(t)
			receipts := h.ledger.all()
			if tt.receipt != nil && (len(receipts) != 1 || receipts[0].CostNano != tt.receipt.CostNano) {
				t.Errorf("receipts %+v, want one of %d", receipts, tt.receipt.CostNano)
			}
			a.balanced(t, h.ledger.booked) // one scene has an exchange before
		})
	}
}

// timedEndings are those by a time limit, on a real clock: Postgres has no other.
func timedEndings() []scene {
	limits := func(change func(*house)) func(*house) {
		return func(h *house) {
			m, _ := h.snapshot.Lookup("pub")
			m.Timeouts.FirstByte, m.Timeouts.Idle, m.Timeouts.Total = time.Minute, time.Minute, time.Minute
			change(h)
		}
	}
	stream := func(c *gateway.Call) { c.Stream = true }
	const short = 100 * time.Millisecond
	partial := &billing.Receipt{CostNano: 11_000 + 2000}
	return []scene{
		{
			name: "no connection in time", steps: []step{die}, cause: gateway.ConnectFailed, receipt: &billing.Receipt{},
			house: limits(func(h *house) {
				m, _ := h.snapshot.Lookup("pub")
				m.Timeouts.Connect = short
				h.config.Dial = silent
			}),
		},
		{
			name: "no first byte in time", steps: []step{hang}, call: stream, cause: gateway.FirstByteLimit, receipt: &billing.Receipt{},
			house: limits(func(h *house) { m, _ := h.snapshot.Lookup("pub"); m.Timeouts.FirstByte = short }),
		},
		{
			name: "too long a gap", steps: []step{then(events(chunk("a", 1)), hang)}, call: stream, cause: gateway.IdleLimit, receipt: partial,
			house: limits(func(h *house) { m, _ := h.snapshot.Lookup("pub"); m.Timeouts.Idle = short }),
		},
		{
			name: "too long in all", steps: []step{then(events(chunk("a", 1)), hang)}, call: stream, cause: gateway.TotalLimit, receipt: partial,
			house: limits(func(h *house) { m, _ := h.snapshot.Lookup("pub"); m.Timeouts.Total = 3 * short }),
		},
	}
}
