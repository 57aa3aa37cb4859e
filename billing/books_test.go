package billing

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
)

func (m *money) books() *Books { return NewBooks(slog.New(slog.DiscardHandler), m.db.Worker, nil) }

// faults are the rules that a check of all time finds broken.
func (m *money) faults() (rules []string) {
	m.t.Helper()
	faults, err := m.books().Check(m.t.Context(), time.Now().Add(-48*time.Hour), time.Now().Add(2*time.Hour))
	if err != nil {
		m.t.Fatal(err)
	}
	for _, f := range faults {
		rules = append(rules, f.Rule)
	}
	slices.Sort(rules)
	return slices.Compact(rules)
}

func TestACheckFindsEachBrokenRule(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		spoil string
		want  []string
	}{
		{"nothing is wrong", `SELECT 1`, nil},
		{"a balance is off", `UPDATE wallets SET balance_nano = balance_nano + 1`, []string{"balance"}},
		{"a wallet is gone", `DELETE FROM wallets`, []string{"balance"}},
		{"credit is off", `UPDATE credit_lots SET remaining_nano = remaining_nano - 1`, []string{"credit"}},
		{"more is held than there is", `UPDATE chunks SET left_nano = 10000`, []string{"held"}},
		{"a receipt is gone", `DELETE FROM receipts WHERE request_id = 'req_1'`, []string{"hours", "receipts", "usage"}},
		{"a receipt costs more than was booked", `UPDATE receipts SET cost_nano = cost_nano + 1 WHERE request_id = 'req_1'`, []string{"hours", "usage"}},
		{"a receipt was not booked", `UPDATE receipts SET ledger_txn = NULL WHERE request_id = 'req_2'`, []string{"usage"}},
		{"a request has two receipts", `INSERT INTO receipts SELECT * FROM jsonb_populate_record(
			(SELECT r FROM receipts r WHERE request_id = 'req_shadow'), jsonb_build_object('settled_at', now()))`, []string{"hours", "receipts"}},
		{"a sum is off", `UPDATE usage_hours SET requests = requests + 1`, []string{"hours"}},
		{"a sum is missing", `DELETE FROM usage_hours`, []string{"hours"}},
		{"a transaction is crooked", `ALTER TABLE ledger_entries DISABLE TRIGGER check_entries;
			INSERT INTO ledger_entries (tenant_id, txn, account, amount_nano) VALUES ('ten_a', 999, 'rounding', 1)`, []string{"entries"}},
		{"somebody is owed on the receivable", `INSERT INTO ledger_entries (tenant_id, txn, account, amount_nano)
			VALUES ('ten_a', 999, 'tenant:receivable', 1), ('ten_a', 999, 'rounding', -1); UPDATE wallets SET balance_nano = balance_nano + 1`, []string{"receivable"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := newMoney(t)
			m.credit("paid", 1000, "top-up")
			chunk := *m.draw(500, 500, "r1", "ten_a")[0].Chunk
			shadow := paying("req_shadow", 7)
			shadow.Mode = ModeShadow
			m.settle(paying("req_1", 100, chunk), paying("req_2", 50, chunk), shadow)
			exec(t, m.db, tt.spoil)
			if diff := cmp.Diff(tt.want, m.faults()); diff != "" {
				t.Errorf("broken rules (-want +got):\n%s", diff)
			}
		})
	}
}

func TestHoursAreRebuiltFromReceipts(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	for i, id := range []string{"req_1", "req_2", "req_3"} {
		r := paying(id, int64(10+i))
		r.Model = []string{"a", "b"}[i%2]
		m.settle(r)
	}
	off := testReceipt("req_off")
	m.settle(off)
	exec(t, m.db, `UPDATE usage_hours SET cost_nano = 0, output = 9; DELETE FROM usage_hours WHERE model = 'b'`)
	from, to := time.Now().Add(-2*time.Hour), time.Now().Add(time.Hour)
	wrong, err := RebuildHours(t.Context(), m.db.Worker, from, to)
	if err != nil || wrong != 2 {
		t.Errorf("%d sums were wrong, %v, want 2", wrong, err)
	}
	if rules := m.faults(); rules != nil {
		t.Errorf("still broken: %v", rules)
	}
	if n := m.look(`SELECT sum(requests) * 1000 + sum(cost_nano) FROM usage_hours`); n != 3033 {
		t.Errorf("rebuilt %d, want 3 requests of 33", n)
	}
	if wrong, err := RebuildHours(t.Context(), m.db.Worker, from, to); err != nil || wrong != 0 {
		t.Errorf("%d sums were wrong afterwards, %v", wrong, err)
	}
}

func TestCorrectionsAreBookedOnceAndRestoreWhatTheyReverse(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	ctx := t.Context()
	adjust := func(kind string, nano int64, ref string) (int64, error) {
		return Adjust(ctx, m.db.Worker, "ten_a", kind, nano, ref, "")
	}
	must := func(txn int64, err error) int64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if rules := m.faults(); rules != nil {
			t.Fatalf("broken: %v", rules)
		}
		return txn
	}
	balances := func(want int64) {
		t.Helper()
		if got := m.balance("ten_a"); got != want {
			t.Fatalf("balance %d, want %d", got, want)
		}
	}
	m.credit("promo", 100, "gift")
	m.credit("paid", 500, "top-up")
	m.settle(paying("req_1", 650)) // 50 are owed
	balances(-50)

	if _, err := adjust(WriteOff, 51, "too much"); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("more was written off than is owed: %v", err)
	}
	first := must(adjust(WriteOff, 20, "kind"))
	if second := must(adjust(WriteOff, 20, "kind")); second != first {
		t.Error("written off twice")
	}
	balances(-30)
	if _, err := adjust(Refund, -1, "nothing"); err == nil {
		t.Error("refunded what isn't there")
	}
	must(adjust(Adjustment, 80, "cheaper")) // 30 pay the debt
	balances(50)
	if _, err := adjust(Adjustment, 81, "cheaper"); err == nil {
		t.Error("another correction under the same ref")
	}
	must(adjust(Refund, -10, "back"))
	must(adjust(Adjustment, -60, "dearer")) // 40 of credit, 20 are owed
	balances(-20)

	usage := m.look(`SELECT id FROM ledger_transactions WHERE kind = 'usage'`)
	reversal := must(Reverse(ctx, m.db.Worker, "ten_a", usage, "wrong price"))
	if again := must(Reverse(ctx, m.db.Worker, "ten_a", usage, "")); again != reversal {
		t.Error("reversed twice")
	}
	balances(630)
	if _, err := Reverse(ctx, m.db.Worker, "ten_a", reversal, ""); err == nil {
		t.Error("a reversal was reversed")
	}
	gift := m.look(`SELECT id FROM ledger_transactions WHERE ref = 'gift'`)
	m.settle(paying("req_2", 60)) // of the gift
	must(Reverse(ctx, m.db.Worker, "ten_a", gift, "it was a mistake"))
	balances(470)

	inTenant(t, m.db, "ten_a", func(tx pgx.Tx) {
		b, err := LoadBooking(ctx, tx, "ten_a", usage)
		if err != nil {
			t.Fatal(err)
		}
		want := []Entry{{"tenant:cash", 2, -500}, {"tenant:promo", 1, -100}, {"tenant:receivable", 0, -50}, {"revenue:usage", 0, 650}}
		if diff := cmp.Diff(want, b.Entries); diff != "" || len(b.Receipts) != 1 || b.Receipts[0].RequestID != "req_1" || b.Nano != -650 {
			t.Errorf("booking of %d with %d receipts (-want +got):\n%s", b.Nano, len(b.Receipts), diff)
		}
		txns, err := Transactions(ctx, tx, "ten_a", 0, 3)
		if err != nil || len(txns) != 3 || txns[0].Reverses != gift || txns[0].Nano != -100 {
			t.Errorf("newest transactions: %+v, %v", txns, err)
		}
		if _, err := LoadBooking(ctx, tx, "ten_a", 12345); err == nil {
			t.Error("found a transaction that isn't there")
		}
	})
}

func TestMoneyIsWrittenAsItIsRead(t *testing.T) {
	t.Parallel()
	for text, nano := range map[string]int64{
		"0.00": 0, "25.00": 25e9, "0.50": 5e8, "-0.50": -5e8, "0.000000001": 1, "12.345": 12_345_000_000,
		"9223372036.854775807": 1<<63 - 1, "-1.000000001": -1_000_000_001,
	} {
		if got, err := ParseNano(text); err != nil || got != nano {
			t.Errorf("%s reads as %d, %v", text, got, err)
		}
		if got := FormatMoney(nano); got != text {
			t.Errorf("%d is written %s, want %s", nano, got, text)
		}
	}
	for _, text := range []string{"", "-", ".5", "5.", "1e3", "+1", "1,5", "0.0000000001", "9223372036.854775808", " 1", "--1", "٣"} {
		if got, err := ParseNano(text); err == nil {
			t.Errorf("%q reads as %d", text, got)
		}
	}
}

func TestBooksTurnCreditAndTellOfFaults(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	m.number(`SELECT lot FROM weir_credit('ten_a', 'free', 100, 'old', '', now() - interval '2 hours', now() - interval '1 hour')`)
	m.settle(paying("req_1", 40))
	reg := prometheus.NewRegistry()
	var log syncBuffer
	books := NewBooks(slog.New(slog.NewJSONHandler(&log, nil)), m.db.Worker, reg)
	if err := books.Turn(t.Context()); err != nil || m.balance("ten_a") != 0 {
		t.Errorf("a balance of %d after all expired, %v", m.balance("ten_a"), err)
	}
	imbalance := func() (nano float64) {
		t.Helper()
		now := time.Now()
		if err := books.Watch(t.Context(), now.Add(-time.Hour), now); err != nil {
			t.Fatal(err)
		}
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "weir_ledger_imbalance_nano" {
				nano = f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return nano
	}
	if got := imbalance(); got != 0 {
		t.Errorf("an imbalance of %v", got)
	}
	exec(t, m.db, `UPDATE wallets SET balance_nano = balance_nano - 3`)
	if got := imbalance(); got != 3 || !strings.Contains(log.String(), `"rule":"balance"`) {
		t.Errorf("an imbalance of %v, and in the log: %s", got, log.String())
	}
}
