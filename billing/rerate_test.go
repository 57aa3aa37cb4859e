package billing

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/tenants"
)

// priceList publishes a price in a test's database, the list's or ten_a's own.
func (m *money) publish(tenant tenants.ID, spec PriceSpec) {
	m.t.Helper()
	put := func(tx pgx.Tx) error {
		_, err := PutPrices(m.t.Context(), tx, tenant, []PriceSpec{spec})
		return err
	}
	var err error
	if tenant == "" {
		err = pgx.BeginFunc(m.t.Context(), m.db.App, put)
	} else {
		err = tenants.InTenant(m.t.Context(), m.db.App, tenant, put)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// rerate rates all of ten_a's receipts again, two at a time.
func (m *money) rerate() (differ []Rerating) {
	m.t.Helper()
	err := tenants.InTenant(m.t.Context(), m.db.App, "ten_a", func(tx pgx.Tx) error {
		book, err := LoadBook(m.t.Context(), tx)
		if err != nil {
			return err
		}
		for f := (Filter{Limit: 2}); ; {
			some, next, err := Reratings(m.t.Context(), tx, book, "ten_a", f)
			if err != nil {
				return err
			}
			differ = append(differ, some...)
			if f.After = next; next == (Cursor{}) {
				return nil
			}
		}
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return differ
}

func (m *money) apply(batch []Rerating, ref string) (stored, amount int64) {
	m.t.Helper()
	stored, amount, err := ApplyReratings(m.t.Context(), m.db.Worker, "ten_a", batch, ref, "agreed discount")
	if err != nil {
		m.t.Fatal(err)
	}
	return stored, amount
}

func (m *money) explain(request string) *Explanation {
	m.t.Helper()
	var e *Explanation
	err := tenants.InTenant(m.t.Context(), m.db.App, "ten_a", func(tx pgx.Tx) (err error) {
		e, err = Explain(m.t.Context(), tx, "ten_a", request)
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return e
}

// newPriced is a database with a tenant, a model that has had a price for a day,
// and 100 USD of credit.
func newPriced(t *testing.T) (m *money, book *Book) {
	t.Helper()
	m = newMoney(t)
	admin := m.db.Admin(t)
	for _, sql := range []string{
		`INSERT INTO plans (name, bands, weight, fairness) VALUES ('basic', '{}', 1, 'tenant')`,
		`INSERT INTO tenants (id, name, plan, fairness_id) VALUES ('ten_a', 'a', 'basic', 'f')`,
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	m.publish("", PriceSpec{
		Model: "sim-chat", Input: "1", CachedInput: "0.5", Output: "4",
		EffectiveFrom: new(time.Now().Add(-24 * time.Hour)),
	})
	m.credit("paid", 100_000_000_000, "top-up")
	book, err := LoadBook(t.Context(), m.db.App)
	if err != nil {
		t.Fatal(err)
	}
	return m, book
}

// rated is a receipt of ten_a that began a while ago, at the book's price.
func rated(t *testing.T, book *Book, id string, mode Mode, ago time.Duration) Receipt {
	t.Helper()
	r := testReceipt(id)
	r.Mode, r.StartedAt = mode, time.Now().Add(-ago)
	r.Usage = Usage{InputUncached: 1000, InputCached: 500, Output: 100}
	p, ok := book.Rate(r.Model, "ten_a", r.StartedAt)
	cost, err := p.Cost(r.Usage, tenants.Tier(r.Tier))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	r.PriceVersion, r.CostNano, r.SavedNano = p.Version, cost.Nano, cost.SavedNano
	return r
}

const listCost = 1000*1000 + 500*500 + 100*4000 // of what rated uses, in nano-USD

func TestABackdatedPriceIsCreditedOnceAndExplained(t *testing.T) {
	t.Parallel()
	m, book := newPriced(t)
	unrated := rated(t, book, "req_unrated", ModeEnforce, time.Hour) // of a gateway that couldn't rate it
	unrated.CostNano, unrated.SavedNano = 0, 0
	m.settle(
		rated(t, book, "req_1", ModeEnforce, 2*time.Hour), rated(t, book, "req_2", ModeEnforce, time.Hour), unrated,
		rated(t, book, "req_shadow", ModeShadow, time.Hour), rated(t, book, "req_early", ModeEnforce, 4*time.Hour),
	)
	if differ := m.rerate(); len(differ) != 1 || differ[0].Receipt.RequestID != "req_unrated" || differ[0].DifferenceNano() != -listCost {
		t.Fatalf("before the new price: %+v, want the unrated one alone", differ)
	}

	half := RateSpec{Input: "0.5", CachedInput: "0.25", Output: "2"}
	m.publish("ten_a", PriceSpec{Model: "sim-chat", RateSpec: half, EffectiveFrom: new(time.Now().Add(-3 * time.Hour)), Backdated: true})
	differ := m.rerate()
	if len(differ) != 4 {
		t.Fatalf("%d differ, want 4: %+v", len(differ), differ)
	}
	before := m.balance("ten_a")
	if stored, amount := m.apply(differ, "ref-1"); stored != 3 || amount != listCost/2 {
		t.Errorf("%d stored, %d booked, want 3 and twice the half less what wasn't billed: %d", stored, amount, listCost/2)
	}
	if got := m.balance("ten_a") - before; got != listCost/2 {
		t.Errorf("the balance rose by %d, want %d", got, listCost/2)
	}
	if stored, amount := m.apply(differ, "ref-1"); stored != 0 || amount != 0 {
		t.Errorf("sent again, %d were stored and %d booked", stored, amount)
	}
	if stored, amount := m.apply(differ, "ref-2"); stored != 0 || amount != 0 {
		t.Errorf("with another ref, %d were stored and %d booked", stored, amount)
	}
	if differ := m.rerate(); len(differ) != 1 || differ[0].Receipt.RequestID != "req_shadow" {
		t.Errorf("afterwards %+v differ, want only what was never billed", differ)
	}

	faults, err := NewBooks(slog.New(slog.DiscardHandler), m.db.Worker, nil).Check(t.Context(), time.Now().Add(-time.Hour), time.Now().Add(time.Hour))
	if err != nil || len(faults) > 0 {
		t.Errorf("the books have faults: %+v, %v", faults, err)
	}

	e := m.explain("req_1")
	if len(e.Ratings) != 2 || e.Ratings[0].Bill == nil || e.Ratings[1].Bill == nil {
		t.Fatalf("explained as %+v", e.Ratings)
	}
	if own, again := e.Ratings[0], e.Ratings[1]; own.CostNano != listCost || own.Bill.Tenant != "" || own.LedgerTxn == 0 ||
		again.CostNano != listCost/2 || again.Bill.Tenant != "ten_a" || again.LedgerTxn == 0 || again.LedgerTxn == own.LedgerTxn {
		t.Errorf("explained as %+v, then %+v", own, again)
	}
	var b Booking
	err = tenants.InTenant(t.Context(), m.db.App, "ten_a", func(tx pgx.Tx) (err error) {
		b, err = LoadBooking(t.Context(), tx, "ten_a", e.Ratings[1].LedgerTxn)
		return err
	})
	if err != nil || len(b.Corrections) != 3 || b.Corrections[0] != (Correction{"req_1", e.Ratings[1].PriceVersion, listCost / 2}) {
		t.Errorf("the correction leads to %+v, %v", b.Corrections, err)
	}
	if e := m.explain("req_unrated"); e.Ratings[0].Bill != nil || e.Ratings[0].Fault == "" || e.Ratings[1].Bill == nil {
		t.Errorf("what wasn't rated is explained as %+v", e.Ratings)
	}
	err = tenants.InTenant(t.Context(), m.db.App, "ten_b", func(tx pgx.Tx) error {
		_, err := Explain(t.Context(), tx, "ten_b", "req_1")
		return err
	})
	if !errors.Is(err, ErrNoReceipt) {
		t.Errorf("another tenant's: %v, want ErrNoReceipt", err)
	}
}

func TestWhatReplicasPromisedBeforeTheyHeardOfAPriceStands(t *testing.T) {
	t.Parallel()
	m, book := newPriced(t)
	m.publish("", PriceSpec{Model: "sim-chat", Input: "2", Output: "8"})
	for i, ago := range []time.Duration{time.Second, -30 * time.Second, -2 * time.Minute} { // the last one far too late
		r := rated(t, book, fmt.Sprintf("req_%d", i), ModeEnforce, time.Hour)
		r.StartedAt = time.Now().Add(-ago)
		m.settle(r)
	}
	differ := m.rerate()
	if len(differ) != 1 || differ[0].Receipt.RequestID != "req_2" || differ[0].DifferenceNano() >= 0 {
		t.Errorf("%+v differ, want the one that began when everybody knew", differ)
	}
}

func TestCorrectionsThatMakeUpForOneAnotherAreStoredWithoutABooking(t *testing.T) {
	t.Parallel()
	m, book := newPriced(t)
	more, less := rated(t, book, "req_more", ModeEnforce, time.Hour), rated(t, book, "req_less", ModeEnforce, time.Hour)
	more.CostNano += 5
	less.CostNano -= 5
	m.settle(more, less)
	if stored, amount := m.apply(m.rerate(), "ref"); stored != 2 || amount != 0 {
		t.Errorf("%d stored, %d booked, want 2 and nothing", stored, amount)
	}
	if differ := m.rerate(); len(differ) > 0 {
		t.Errorf("%+v still differ", differ)
	}
	if g := m.explain("req_more").Ratings; len(g) != 2 || g[1].LedgerTxn != 0 || g[1].CostNano != listCost {
		t.Errorf("rated %+v", g)
	}
}
