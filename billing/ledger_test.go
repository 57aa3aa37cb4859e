package billing

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"weir/migrations/pgtest"
)

// money is a test's view of one database's ledger.
type money struct {
	t  *testing.T
	db *pgtest.DB
	s  *Settler
}

func newMoney(t *testing.T) *money {
	t.Helper()
	db := pgtest.New(t)
	return &money{t, db, testSettler(t, db.Worker, nil, SettleConfig{})}
}

// number asks the worker's login for one number.
func (m *money) number(sql string, args ...any) int64 {
	m.t.Helper()
	var n int64
	if err := m.db.Worker.QueryRow(m.t.Context(), sql, args...).Scan(&n); err != nil {
		m.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// look asks as a superuser for one number.
func (m *money) look(sql string, args ...any) int64 {
	m.t.Helper()
	var n int64
	if err := m.db.Admin(m.t).QueryRow(m.t.Context(), sql, args...).Scan(&n); err != nil {
		m.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

func (m *money) credit(kind string, amount int64, ref string) {
	m.t.Helper()
	m.number(`SELECT lot FROM weir_credit('ten_a', $1, $2, $3)`, kind, amount, ref)
}

// drawnRow is a row of weir_draw.
type drawnRow struct {
	Node   string
	Chunk  *int64
	Amount int64
}

func draw(ctx context.Context, q Querier, nodes []string, least, want int64, replica string) ([]drawnRow, error) {
	rows, err := q.Query(ctx, `SELECT node, chunk, amount FROM weir_draw($1, $2, $3, $4, $5, '30s')`, nodes[0], nodes, least, want, replica)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[drawnRow])
}

func (m *money) draw(least, want int64, replica string, nodes ...string) []drawnRow {
	m.t.Helper()
	got, err := draw(m.t.Context(), m.db.Worker, nodes, least, want, replica)
	if err != nil {
		m.t.Fatal(err)
	}
	return got
}

func (m *money) settle(rs ...Receipt) {
	m.t.Helper()
	batch := make([]*settlement, len(rs))
	for i, r := range rs {
		batch[i] = &settlement{receipt: r}
	}
	m.s.store(m.t.Context(), batch)
	for _, it := range batch {
		if it.err != nil {
			m.t.Fatal(it.err)
		}
	}
}

func (m *money) balance(node string) int64 {
	m.t.Helper()
	return m.look(`SELECT balance_nano FROM wallets WHERE node = $1`, node)
}

func paying(id string, cost int64, chunks ...int64) Receipt {
	r := testReceipt(id)
	r.Mode, r.CostNano, r.Chunks = ModeEnforce, cost, chunks
	return r
}

func TestADrawIsAllOrNoneAndNamesTheNodeThatRefuses(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	m.credit("paid", 1000, "top-up")
	m.number(`SELECT weir_allot('ten_a', 'key_a', 'key', 300, NULL)`)

	got := m.draw(100, 100, "r1", "ten_a", "prj_a", "key_a")
	if len(got) != 3 || got[0].Amount != 100 || *got[1].Chunk != 0 || got[2].Amount != 100 {
		t.Fatalf("drew %+v", got)
	}
	again := m.draw(100, 100, "r1", "ten_a", "prj_a", "key_a")
	if *again[0].Chunk != *got[0].Chunk || *again[2].Chunk != *got[2].Chunk {
		t.Errorf("a second chunk of a node for one replica: %+v, %+v", got, again)
	}
	refused := m.draw(101, 200, "r2", "ten_a", "prj_a", "key_a")
	if len(refused) != 1 || refused[0].Node != "key_a" || refused[0].Chunk != nil || refused[0].Amount != 100 {
		t.Errorf("beyond the key's cap: %+v", refused)
	}
	if n := m.look(`SELECT sum(left_nano) FROM chunks WHERE node = 'ten_a'`); n != 200 {
		t.Errorf("the tenant's chunks hold %d after a refusal, want 200", n)
	}
	none := m.draw(1, 1, "r1", "ten_unknown")
	if len(none) != 1 || none[0].Chunk != nil || none[0].Amount != 0 {
		t.Errorf("a tenant without a wallet: %+v", none)
	}
}

func TestADrawTakesASmallPartOfWhatIsLeft(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	m.credit("paid", 256_010, "top-up")
	if got := m.draw(10, 1_000_000, "r1", "ten_a"); got[0].Amount != 1010 {
		t.Errorf("drew %d, want 10 + 256000/256", got[0].Amount)
	}
	if got := m.draw(10, 50, "r2", "ten_a"); got[0].Amount != 50 {
		t.Errorf("drew %d, want what was wanted", got[0].Amount)
	}
}

func TestSettlingTakesCostFromBalanceChunkAndCredit(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	m.credit("promo", 150, "gift")
	m.credit("paid", 1000, "top-up")
	m.number(`SELECT weir_allot('ten_a', 'key_a', 'key', 500, NULL)`)
	got := m.draw(400, 400, "r1", "ten_a", "prj_a", "key_a")
	chunks := []int64{*got[0].Chunk, *got[2].Chunk}

	m.settle(paying("req_1", 100, chunks...), paying("req_2", 200, chunks...), paying("req_free", 0, chunks...))
	m.settle(paying("req_2", 200, chunks...), paying("req_3", 5)) // one again, and one whose chunk is gone
	for what, tt := range map[string]struct {
		got, want int64
	}{
		"tenant's balance":   {m.balance("ten_a"), 1150 - 305},
		"key's cap":          {m.balance("key_a"), 500 - 305},
		"left in chunks":     {m.look(`SELECT sum(left_nano) FROM chunks`), 2 * 100},
		"promo left":         {m.look(`SELECT remaining_nano FROM credit_lots WHERE kind = 'promo'`), 0},
		"paid left":          {m.look(`SELECT remaining_nano FROM credit_lots WHERE kind = 'paid'`), 845},
		"earned":             {m.look(`SELECT sum(amount_nano) FROM ledger_entries WHERE account = 'revenue:usage'`), 305},
		"usage transactions": {m.look(`SELECT count(*) FROM ledger_transactions WHERE kind = 'usage'`), 2},
		"booked receipts":    {m.look(`SELECT count(*) FROM receipts r JOIN ledger_transactions t ON t.tenant_id = r.tenant_id AND t.id = r.ledger_txn AND t.booked_at = r.settled_at`), 3},
		"rolled up":          {m.look(`SELECT sum(cost_nano) FROM usage_hours`), 305},
		"requests":           {m.look(`SELECT sum(requests) FROM usage_hours`), 4},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %d, want %d", what, tt.got, tt.want)
		}
	}
}

func TestUsageBeyondAllCreditIsOwedAndCounted(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	m.credit("paid", 100, "top-up")
	m.number(`SELECT 1 FROM weir_set_credit_limit('ten_a', 50)`)
	overspent := func(id string, cost int64) int64 {
		t.Helper()
		var done settled
		conn, err := m.db.Worker.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		if err := learnRows(t.Context(), conn.Conn()); err != nil {
			t.Fatal(err)
		}
		r := paying(id, cost)
		if err := done.scan(conn.QueryRow(t.Context(), settleSQL, receiptRows{{&r}})); err != nil {
			t.Fatal(err)
		}
		return done.overspent
	}
	for i, tt := range []struct{ cost, over, owed int64 }{{120, 0, 20}, {40, 10, 60}, {5, 5, 65}} {
		if got := overspent(fmt.Sprintf("req_%d", i), tt.cost); got != tt.over {
			t.Errorf("settlement %d overspent %d, want %d", i, got, tt.over)
		}
		if got := m.look(`SELECT -sum(amount_nano) FROM ledger_entries WHERE account = 'tenant:receivable'`); got != tt.owed {
			t.Errorf("after settlement %d %d is owed, want %d", i, got, tt.owed)
		}
	}
	m.credit("paid", 100, "second") // pays what is owed first
	if got := m.look(`SELECT sum(remaining_nano) FROM credit_lots`); got != 35 || m.balance("ten_a") != 35 {
		t.Errorf("%d of credit and a balance of %d after the debt was paid, want 35", got, m.balance("ten_a"))
	}
}

func TestReturnedAndClosedChunksFreeTheirMoney(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	m.credit("paid", 1000, "top-up")
	chunk := *m.draw(600, 600, "r1", "ten_a")[0].Chunk
	if got := m.draw(401, 401, "r2", "ten_a"); got[0].Chunk != nil {
		t.Fatalf("drew %+v of 400", got)
	}
	m.number(`SELECT 1 FROM weir_return_chunks('r2', $1, '{0}')`, []int64{chunk}) // not its own
	m.number(`SELECT 1 FROM weir_return_chunks('r1', $1, '{250}')`, []int64{chunk})
	if n := m.look(`SELECT left_nano FROM chunks WHERE id = $1`, chunk); n != 250 {
		t.Errorf("kept %d, want 250", n)
	}
	var alive []int64
	renew := func() {
		t.Helper()
		if err := m.db.Worker.QueryRow(t.Context(), `SELECT weir_renew_chunks('r1', $1, '30s')`, []int64{chunk, 999}).Scan(&alive); err != nil {
			t.Fatal(err)
		}
	}
	if renew(); !cmp.Equal(alive, []int64{chunk}) {
		t.Errorf("alive %v, want %d", alive, chunk)
	}
	if n := m.number(`SELECT count(*) FROM weir_close_dead_chunks('-1h', 10, 'r2')`); n != 0 {
		t.Errorf("%d chunks of another replica closed", n)
	}
	if n := m.number(`SELECT count(*) FROM weir_close_dead_chunks('1s', 10)`); n != 0 {
		t.Errorf("%d live chunks closed", n)
	}
	if n := m.number(`SELECT sum(left_nano) FROM weir_close_dead_chunks('-1h', 10)`); n != 250 {
		t.Errorf("closed %d, want 250", n)
	}
	if renew(); len(alive) != 0 {
		t.Errorf("alive %v after closing", alive)
	}
	if got := m.draw(1000, 1000, "r2", "ten_a"); got[0].Chunk == nil {
		t.Errorf("all is free again, but: %+v", got)
	}
}

func TestTheDatabaseRefusesACrookedOrChangedLedger(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	m.credit("paid", 1000, "top-up")
	admin := m.db.Admin(t)
	for _, sql := range []string{
		`INSERT INTO ledger_entries (tenant_id, txn, account, amount_nano) VALUES ('ten_a', 99, 'tenant:cash', 1)`,
		`INSERT INTO ledger_entries (tenant_id, txn, account, amount_nano)
		 VALUES ('ten_a', 98, 'tenant:cash', 1), ('ten_a', 99, 'revenue:usage', -1)`,
		`UPDATE ledger_entries SET amount_nano = 0`,
		`DELETE FROM ledger_entries`,
		`TRUNCATE ledger_entries`,
		`UPDATE ledger_transactions SET note = 'x'`,
		`DELETE FROM ledger_transactions`,
	} {
		if _, err := admin.Exec(t.Context(), sql); err == nil {
			t.Errorf("accepted: %s", sql)
		}
	}
}

func TestCreditIsIdempotentByRefAndTakesEffectAndExpiresInTime(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	now := time.Now()
	const credit = `SELECT lot FROM weir_credit('ten_a', $1, $2, $3, '', $4, $5)`
	m.number(credit, "free", 100, "old", now.Add(-2*time.Hour), now.Add(-time.Hour))
	m.number(credit, "promo", 100, "later", now.Add(time.Hour), nil)
	first := m.number(credit, "paid", 100, "once", nil, nil)
	if second := m.number(credit, "paid", 100, "once", nil, nil); first != second {
		t.Errorf("lots %d and %d for one ref", first, second)
	}
	var lot int64
	if err := m.db.Worker.QueryRow(t.Context(), credit, "paid", 101, "once", nil, nil).Scan(&lot); err == nil {
		t.Error("another amount under the same ref was accepted")
	}
	if got := m.balance("ten_a"); got != 200 {
		t.Errorf("balance %d, want 200: what is to come doesn't count", got)
	}
	m.draw(150, 150, "r1", "ten_a")
	if n := m.number(`SELECT expired FROM weir_turn_lots(10)`); n != 1 || m.balance("ten_a") != 150 {
		t.Errorf("%d expired, balance %d: want what is held to stay", n, m.balance("ten_a"))
	}
	m.number(`SELECT count(*) FROM weir_close_dead_chunks('-1h', 10)`)
	exec(t, m.db, `UPDATE credit_lots SET effective_at = now() - interval '1 minute' WHERE ref = 'later'`)
	if n := m.number(`SELECT opened + expired FROM weir_turn_lots(10)`); n != 2 || m.balance("ten_a") != 200 {
		t.Errorf("%d turned, balance %d; want 2 and 200", n, m.balance("ten_a"))
	}
	if n := m.number(`SELECT opened + expired FROM weir_turn_lots(10)`); n != 0 {
		t.Errorf("%d turned twice", n)
	}
}

func TestThePreviousVersionGoesOnSettling(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	conn, err := m.db.Worker.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	types, err := conn.Conn().LoadTypes(t.Context(), []string{"weir_receipt", "_weir_receipt"})
	if err != nil {
		t.Fatal(err)
	}
	conn.Conn().TypeMap().RegisterTypes(types)
	r := testReceipt("req_1")
	var stored []string
	if err := conn.QueryRow(t.Context(), `SELECT weir_settle($1)`, receiptRows{{&r}}).Scan(&stored); err != nil || len(stored) != 1 {
		t.Fatal(stored, err)
	}
	m.settle(r) // by this version, again
	if n := count(t, m.db, `request_id = 'req_1' AND mode = 'off' AND settled_by = 'gateway' AND ledger_txn IS NULL`); n != 1 {
		t.Errorf("%d receipts, want 1 that costs nobody anything", n)
	}
}

// The one before this one books money already: what it books must be the same.
func TestTheVersionWithoutTiersGoesOnBooking(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	m.credit("paid", 100_000, "top-up")
	conn, err := m.db.Worker.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	types, err := conn.Conn().LoadTypes(t.Context(), []string{"weir_receipt_money", "_weir_receipt_money"})
	if err != nil {
		t.Fatal(err)
	}
	conn.Conn().TypeMap().RegisterTypes(types)
	r := testReceipt("req_1")
	r.Mode = ModeEnforce
	for _, want := range []int{1, 0} { // it is sent twice
		var done settled
		if err := done.scan(conn.QueryRow(t.Context(), `SELECT stored, overspent_nano FROM weir_settle_money($1)`, receiptRows{{&r}})); err != nil || len(done.stored) != want {
			t.Fatal(done, err)
		}
	}
	if left := m.balance("ten_a"); left != 100_000-r.CostNano {
		t.Errorf("%d are left, want what the receipt cost to be gone once", left)
	}
	if n := count(t, m.db, `ledger_txn IS NOT NULL AND cached_host IS NULL AND cached_storage IS NULL AND outcome = 'completed' AND settled_by = 'gateway'`); n != 1 {
		t.Errorf("%d booked receipts, want 1", n)
	}
}

func TestASpooledReceiptIsBookedWhenItIsReplayed(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	m.credit("paid", 1000, "top-up")
	chunk := *m.draw(300, 300, "r1", "ten_a")[0].Chunk
	dir := t.TempDir()
	spool := testSpool(t, dir, 0)
	// What an earlier version spooled has none of the members that money needs.
	const before = `{"request_id":"req_old","tenant":"ten_a","project":"prj_a","key":"key_a","operation":"chat","model":"m","pool":"p",
		"endpoint":"e","attempts":1,"stream":false,"band":"b","priority":0,"tier":"default",
		"usage":{"input_uncached":1,"input_cached":0,"output":1,"reasoning":0},"usage_source":"upstream_final","price_version":1,"cost_nano":9,
		"started_at":"2026-11-29T12:00:00Z","queue_time":1,"ttft":1,"duration":1,"outcome":"completed"}`
	if err := spool.write(appendFrame(nil, []byte(before))); err != nil {
		t.Fatal(err)
	}
	if err := spool.Append([]Receipt{paying("req_new", 100, chunk)}); err != nil {
		t.Fatal(err)
	}
	s := testSettler(t, m.db.Worker, spool, SettleConfig{Retry: 10 * time.Millisecond})
	background(t, s)
	eventually(t, "the spool is replayed", func() bool { return s.Spooled() == 0 })
	if n := count(t, m.db, `request_id = 'req_old' AND mode = 'off' AND ledger_txn IS NULL`); n != 1 {
		t.Errorf("%d old receipts", n)
	}
	if left := m.look(`SELECT left_nano FROM chunks`); left != 200 || m.balance("ten_a") != 900 {
		t.Errorf("%d left in the chunk, a balance of %d; want 200 and 900", left, m.balance("ten_a"))
	}
	if rules := m.faults(); rules != nil {
		t.Errorf("broken: %v", rules)
	}
}

func TestALiftedCapLeavesWhatIsUnderWayToBeBilled(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	m.credit("paid", 1000, "top-up")
	if left, err := Allot(t.Context(), m.db.Worker, Allotment{Tenant: "ten_a", Node: "key_a", Scope: "key", SetNano: new(int64(50)), AddNano: 50}); err != nil || left != 100 {
		t.Fatalf("a cap of %d, %v", left, err)
	}
	if _, err := Allot(t.Context(), m.db.Worker, Allotment{Tenant: "ten_a", Node: "ten_a", Scope: "project", AddNano: 50}); !errors.Is(err, ErrBooking) {
		t.Errorf("a tenant's own wallet was topped up: %v", err)
	}
	got := m.draw(100, 100, "r1", "ten_a", "key_a")
	for i, want := range []bool{true, false} {
		if lifted, err := LiftCap(t.Context(), m.db.Worker, "ten_a", "key_a"); err != nil || lifted != want {
			t.Errorf("lifting %d: %v, %v", i, lifted, err)
		}
	}
	if lifted, err := LiftCap(t.Context(), m.db.Worker, "ten_a", "ten_a"); err != nil || lifted {
		t.Errorf("a tenant's own wallet was removed: %v, %v", lifted, err)
	}
	m.settle(paying("req_1", 70, *got[0].Chunk, *got[1].Chunk))
	wallets, err := ListWallets(t.Context(), m.db.Worker, Wallet{}, 10)
	want := []Wallet{{Tenant: "ten_a", Node: "ten_a", Scope: "tenant", BalanceNano: 930, HeldNano: 30}}
	if diff := cmp.Diff(want, wallets); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}
