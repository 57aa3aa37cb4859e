package billing

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"weir/migrations/pgtest"
	"weir/tenants"
)

func TestPublishedPricesAreReadBackByTheMoment(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	put := func(specs ...PriceSpec) error {
		return pgx.BeginFunc(t.Context(), db.App, func(tx pgx.Tx) error {
			_, err := PutPrices(t.Context(), tx, "", specs)
			return err
		})
	}
	first := PriceSpec{Model: "sim-chat", Input: "0.10", CachedInput: "0.02", Output: "0.40"}
	for range 2 { // applied again, it changes nothing
		if err := put(first); err != nil {
			t.Fatal(err)
		}
	}
	next := PriceSpec{Model: "sim-chat", Input: "0.20", Output: "0.40", EffectiveFrom: new(time.Now().Add(time.Hour))}
	for range 2 {
		if err := put(first, next); err != nil {
			t.Fatal(err)
		}
	}
	changed := *next.EffectiveFrom
	if err := put(PriceSpec{Model: "sim-chat", Input: "0.30", Output: "0.40", EffectiveFrom: &changed}); !errors.Is(err, ErrPrice) {
		t.Errorf("a published price was changed: %v", err)
	}
	book, err := LoadBook(t.Context(), db.App)
	if err != nil {
		t.Fatal(err)
	}
	now, ok := book.Rate("sim-chat", "", time.Now())
	if !ok || now.Version == 0 {
		t.Fatalf("price now: %+v, %v", now, ok)
	}
	later, _ := book.Rate("sim-chat", "", time.Now().Add(2*time.Hour))
	want := []Price{
		{Model: "sim-chat", Tiers: DefaultTiers(), Input: 100_000, CachedInput: 20_000, Output: 400_000, Reasoning: 400_000},
		{Model: "sim-chat", Tiers: DefaultTiers(), Input: 200_000, CachedInput: 200_000, Output: 400_000, Reasoning: 400_000},
	}
	if !now.sameTerms(&want[0]) || !later.sameTerms(&want[1]) || now.Version == later.Version {
		t.Errorf("now %+v, later %+v", now, later)
	}
	var rows int
	if err := db.App.QueryRow(t.Context(), `SELECT count(*) FROM prices`).Scan(&rows); err != nil || rows != 2 {
		t.Errorf("%d versions, %v, want 2", rows, err)
	}
}

func TestReceiptsArePagedNewestFirstWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := testSettler(t, db.Worker, nil, SettleConfig{})
	const n = 23
	for i := 0; i < n; { // transactions of several receipts: settled_at alone is no order
		var batch []*settlement
		for range 5 {
			if i < n {
				batch = append(batch, &settlement{receipt: testReceipt(fmt.Sprintf("req_%02d", i))})
				i++
			}
		}
		s.store(t.Context(), batch)
	}
	foreign := testReceipt("req_foreign")
	foreign.Tenant = "ten_b"
	if err := s.Settle(t.Context(), foreign, nil); err != nil {
		t.Fatal(err)
	}
	inTenant(t, db, "ten_a", func(tx pgx.Tx) {
		var all []Settled
		f := Filter{Limit: 4}
		for {
			page, err := Receipts(t.Context(), tx, "ten_a", f)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, page.Receipts...)
			if page.Next == (Cursor{}) {
				break
			}
			if len(page.Receipts) != 4 {
				t.Fatalf("a page of %d that isn't the last", len(page.Receipts))
			}
			f.After = page.Next
		}
		ids := make(map[string]bool)
		for _, r := range all {
			ids[r.RequestID] = true
		}
		if len(all) != n || len(ids) != n {
			t.Errorf("%d receipts, %d ids, want %d", len(all), len(ids), n)
		}
		if !slices.IsSortedFunc(all, func(a, b Settled) int { return b.SettledAt.Compare(a.SettledAt) }) {
			t.Error("not newest first")
		}
		from, to := all[9].SettledAt, all[2].SettledAt
		page, err := Receipts(t.Context(), tx, "ten_a", Filter{From: from, To: to})
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, r := range all {
			if !r.SettledAt.Before(from) && r.SettledAt.Before(to) {
				want = append(want, r.RequestID)
			}
		}
		if diff := cmp.Diff(want, requestIDs(page)); diff != "" || len(want) == 0 {
			t.Errorf("by time (-want +got):\n%s", diff)
		}
		for id, want := range map[string]int{"req_07": 1, "req_unknown": 0, "req_foreign": 0} {
			page, err := Receipts(t.Context(), tx, "ten_a", Filter{RequestID: id})
			if err != nil || len(page.Receipts) != want {
				t.Errorf("%s: %d receipts, %v, want %d", id, len(page.Receipts), err, want)
			}
		}
		// Naming another tenant doesn't help: row-level security has the last word.
		if page, err := Receipts(t.Context(), tx, "ten_b", Filter{}); err != nil || len(page.Receipts) != 0 {
			t.Errorf("another tenant's receipts: %d, %v", len(page.Receipts), err)
		}
	})
}

func requestIDs(p Page) (ids []string) {
	for _, r := range p.Receipts {
		ids = append(ids, r.RequestID)
	}
	return ids
}

func TestReceiptsLieInTheirMonthAndStraysAreMoved(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := testSettler(t, db.Worker, nil, SettleConfig{})
	if err := s.Settle(t.Context(), testReceipt("req_1"), nil); err != nil {
		t.Fatal(err)
	}
	month := time.Now().UTC().Format("2006_01")
	if n := count(t, db, "tableoid = to_regclass($1)", "receipts_"+month); n != 1 {
		t.Errorf("%d receipts in this month's partition, want 1", n)
	}
	var parts int
	err := db.Owner.QueryRow(t.Context(), `SELECT count(*) FROM pg_inherits WHERE inhparent = 'receipts'::regclass`).Scan(&parts)
	if err != nil || parts != 5 {
		t.Errorf("%d partitions, %v, want four months and the default", parts, err)
	}

	// A month without a partition: as after a long time without a start.
	exec(t, db, fmt.Sprintf(`DROP TABLE receipts_%s`, month))
	if err := s.Settle(t.Context(), testReceipt("req_2"), nil); err != nil {
		t.Fatal(err)
	}
	if n := count(t, db, "tableoid = 'receipts_default'::regclass"); n != 1 {
		t.Errorf("%d receipts in the default partition, want 1", n)
	}
	stray, err := MakePartitions(t.Context(), db.Worker)
	if err != nil || stray != 0 {
		t.Errorf("%d strays, %v", stray, err)
	}
	if n := count(t, db, "tableoid = to_regclass($1) AND request_id = 'req_2'", "receipts_"+month); n != 1 {
		t.Error("the receipt was not moved to its month")
	}
	if err := s.Settle(t.Context(), testReceipt("req_2"), nil); err != nil {
		t.Fatal(err)
	}
	if n := count(t, db, "request_id = 'req_2'"); n != 1 {
		t.Errorf("%d receipts after moving and settling again, want 1", n)
	}

	// A clock that was years ahead leaves what no month takes: it is counted.
	exec(t, db, `INSERT INTO receipts SELECT * FROM jsonb_populate_record(
		(SELECT r FROM receipts r WHERE request_id = 'req_2'), '{"settled_at": "2099-01-01T00:00:00Z"}')`)
	if stray, err := MakePartitions(t.Context(), db.Worker); err != nil || stray != 1 {
		t.Errorf("%d strays, %v, want 1", stray, err)
	}
}

func TestPartitionsMayBeMadeByManyWhileReceiptsAreStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, fmt.Sprintf(`DROP TABLE receipts_%s`, time.Now().UTC().Format("2006_01")))
	s := testSettler(t, db.Worker, nil, SettleConfig{})
	done := make(chan error)
	for range 3 {
		go func() {
			_, err := MakePartitions(t.Context(), db.Worker)
			done <- err
		}()
	}
	for i := range 20 {
		if err := s.Settle(t.Context(), testReceipt(fmt.Sprintf("req_%d", i)), nil); err != nil {
			t.Error(err)
		}
	}
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := count(t, db, "true"); n != 20 {
		t.Errorf("%d receipts, want 20", n)
	}
}

func TestReceiptsAreOnDiskEvenWhereTheServerCommitsAsynchronously(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	err := pgx.BeginFunc(t.Context(), db.Worker, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL synchronous_commit = off`); err != nil {
			return err
		}
		if err := learnRows(t.Context(), tx.Conn()); err != nil {
			return err
		}
		r := testReceipt("req_1")
		if _, err := tx.Exec(t.Context(), settleSQL, receiptRows{{&r}}); err != nil {
			return err
		}
		var mode string
		if err := tx.QueryRow(t.Context(), `SHOW synchronous_commit`).Scan(&mode); err != nil {
			return err
		}
		if mode != "on" {
			t.Errorf("the transaction would commit with synchronous_commit = %s", mode)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A tenant's price is read as it was written, by that tenant and by the worker,
// who goes on from where it was.
func TestTenantsPricesAreTheirOwn(t *testing.T) {
	t.Parallel()
	m, _ := newPriced(t)
	if _, err := m.db.Admin(t).Exec(t.Context(), `INSERT INTO tenants (id, name, plan, fairness_id) VALUES ('ten_b', 'b', 'basic', 'g')`); err != nil {
		t.Fatal(err)
	}
	spec := PriceSpec{
		Model: "sim-chat", Input: "0.10", CachedInput: "0.02", Output: "0.40",
		Tiers:       map[tenants.Tier]string{tenants.TierFlex: notSold, tenants.TierPriority: "1.2345"},
		LongContext: []StepSpec{{MinInput: 128_000, Input: "0.20", Output: "0.60", Reasoning: "0.70"}},
	}
	m.publish("ten_a", spec)
	want, err := spec.Price()
	if err != nil {
		t.Fatal(err)
	}
	want.Tenant = "ten_a"

	all, err := LoadTenantPrices(t.Context(), m.db.Worker, 0)
	if err != nil || len(all) != 1 || !all[0].sameTerms(&want) {
		t.Fatalf("the worker read %+v, %v, want %+v", all, err, want)
	}
	read := func(tenant tenants.ID) (p Price) {
		t.Helper()
		err := tenants.InTenant(t.Context(), m.db.App, tenant, func(tx pgx.Tx) error {
			book, err := LoadBook(t.Context(), tx)
			p, _ = book.Rate("sim-chat", "ten_a", time.Now())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if own := read("ten_a"); own.Version != all[0].Version || !own.sameTerms(&want) {
		t.Errorf("the tenant read %+v, want %+v", own, want)
	}
	if other := read("ten_b"); other.Tenant != "" || other.Version == 0 {
		t.Errorf("another tenant read %+v", other)
	}
	m.publish("ten_a", PriceSpec{Model: "sim-chat", ListPrice: true})
	fresh, err := LoadTenantPrices(t.Context(), m.db.Worker, all[0].Version)
	if err != nil || len(fresh) != 1 || !fresh[0].Lapsed || fresh[0].Version <= all[0].Version {
		t.Errorf("from there on the worker read %+v, %v", fresh, err)
	}
	put := func(tx pgx.Tx) error {
		_, err := PutPrices(t.Context(), tx, "ten_b", []PriceSpec{{Model: "sim-chat", Free: true}})
		return err
	}
	if err := tenants.InTenant(t.Context(), m.db.App, "ten_a", put); err == nil {
		t.Error("one tenant's transaction made another's price")
	}
}

// What the previous binary publishes has one price at all tiers, as it says.
func TestThePreviousBinaryGoesOnPublishing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	_, err := db.App.Exec(t.Context(), `
		INSERT INTO prices (model, effective_from, input_pico, cached_input_pico, output_pico, reasoning_pico)
		VALUES ('m', now(), 5, 4, 7, 7)`)
	if err != nil {
		t.Fatal(err)
	}
	book, err := LoadBook(t.Context(), db.App)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := book.Rate("m", "", time.Now())
	want := Price{Model: "m", Input: 5, CachedInput: 4, Output: 7, Reasoning: 7, Tiers: Tiers{10_000, 10_000, 10_000, 10_000}}
	if !got.sameTerms(&want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
