package billing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"weir/migrations/pgtest"
)

func testReceipt(id string) Receipt {
	return Receipt{
		RequestID: id, ClientRequestID: "mine-1", Tenant: "ten_a", Project: "prj_a", Key: "key_a",
		Operation: "chat", Model: "sim-chat", Pool: "main", Endpoint: "127.0.0.1:8001", Attempts: 1, Stream: true,
		Band: "standard", Priority: -3, Tier: "default",
		Usage:       Usage{InputUncached: 10, InputCached: 20, Output: 30, Reasoning: 40},
		UsageSource: UpstreamFinal, PriceVersion: 7, CostNano: 12345,
		StartedAt: time.Date(2026, 11, 29, 12, 0, 0, 123456000, time.UTC),
		QueueTime: 3 * time.Millisecond, TTFT: 80 * time.Millisecond, Duration: 900 * time.Millisecond,
		Outcome: "completed", SavedNano: 678, Mode: ModeOff, SettledBy: ByGateway,
	}
}

func testSettler(tb testing.TB, worker *pgxpool.Pool, spool *Spool, cfg SettleConfig) *Settler {
	tb.Helper()
	return NewSettler(slog.New(slog.DiscardHandler), worker, spool, cfg, time.Now)
}

func testSpool(tb testing.TB, dir string, maxBytes int64) *Spool {
	tb.Helper()
	s, err := OpenSpool(dir, maxBytes)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// background runs the settler until the test ends, or until stop.
func background(t *testing.T, s *Settler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// eventually waits for something that another goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	limit := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-limit:
			t.Errorf("waited in vain: %s", what)
			return
		case <-tick.C:
		}
	}
}

// count counts receipts as a superuser: whatever the tenant.
func count(t *testing.T, db *pgtest.DB, where string, args ...any) (n int) {
	t.Helper()
	if err := db.Admin(t).QueryRow(t.Context(), `SELECT count(*) FROM receipts WHERE `+where, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func exec(t *testing.T, db *pgtest.DB, sql string) {
	t.Helper()
	if _, err := db.Admin(t).Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// inTenant reads as the application does.
func inTenant(t *testing.T, db *pgtest.DB, tenant string, read func(pgx.Tx)) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db.App, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SELECT set_config('weir.tenant_id', $1, true)`, tenant); err != nil {
			return err
		}
		read(tx)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEveryFieldOfAReceiptIsStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := testSettler(t, db.Worker, nil, SettleConfig{})
	want := testReceipt("req_1")
	want.CachedTiers = &CacheTiers{Host: 12, Storage: 5}
	if err := s.Settle(t.Context(), want, nil); err != nil {
		t.Fatal(err)
	}
	inTenant(t, db, want.Tenant, func(tx pgx.Tx) {
		page, err := Receipts(t.Context(), tx, want.Tenant, Filter{})
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Receipts) != 1 {
			t.Fatalf("got %d receipts", len(page.Receipts))
		}
		if diff := cmp.Diff(want, page.Receipts[0].Receipt); diff != "" {
			t.Errorf("stored receipt (-want +got):\n%s", diff)
		}
		if age := time.Since(page.Receipts[0].SettledAt); age < -time.Minute || age > time.Minute {
			t.Errorf("settled_at is %v ago", age)
		}
	})
}

func TestTiersThatNobodyToldAreUnknownAndNotZero(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := testSettler(t, db.Worker, nil, SettleConfig{})
	told := testReceipt("req_told")
	told.CachedTiers = &CacheTiers{}
	for _, r := range []Receipt{told, testReceipt("req_untold")} {
		if err := s.Settle(t.Context(), r, nil); err != nil {
			t.Fatal(err)
		}
	}
	if n := count(t, db, "request_id = 'req_told' AND cached_host = 0 AND cached_storage = 0"); n != 1 {
		t.Errorf("%d receipts with tiers of zero, want 1", n)
	}
	if n := count(t, db, "request_id = 'req_untold' AND cached_host IS NULL AND cached_storage IS NULL"); n != 1 {
		t.Errorf("%d receipts without tiers, want 1", n)
	}
}

func TestACallersTextNeverKeepsAReceiptFromBeingStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := testSettler(t, db.Worker, nil, SettleConfig{})
	for i, text := range []string{"nul\x00nul", "\xff\xfe", strings.Repeat("é", 1000), "a\x00\xffb"} {
		r := testReceipt(fmt.Sprintf("req_%d", i))
		r.ClientRequestID = text
		if err := s.Settle(t.Context(), r, nil); err != nil {
			t.Errorf("%q: %v", text[:4], err)
		}
	}
	if n := count(t, db, "client_request_id = ANY($1)", []string{"nulnul", "ab", ""}); n != 3 {
		t.Errorf("%d tidied texts are stored, want 3", n)
	}
}

func TestAnImpossibleReceiptIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(*Receipt)
	}{
		{"no request id", func(r *Receipt) { r.RequestID = "" }},
		{"no tenant", func(r *Receipt) { r.Tenant = "" }},
		{"no outcome", func(r *Receipt) { r.Outcome = "" }},
		{"no start", func(r *Receipt) { r.StartedAt = time.Time{} }},
		{"NUL in a text of ours", func(r *Receipt) { r.Model = "a\x00b" }},
		{"broken UTF-8", func(r *Receipt) { r.Pool = "\xff" }},
		{"endless text", func(r *Receipt) { r.Endpoint = strings.Repeat("x", 513) }},
		{"negative usage", func(r *Receipt) { r.Usage.Output = -1 }},
		{"negative tier", func(r *Receipt) { r.CachedTiers = &CacheTiers{Host: -1} }},
		{"tiers that hold more than was cached", func(r *Receipt) { r.CachedTiers = &CacheTiers{Host: 11, Storage: 10} }},
		{"tiers whose sum overflows", func(r *Receipt) { r.CachedTiers = &CacheTiers{Host: 1 << 62, Storage: 1 << 62} }},
		{"negative cost", func(r *Receipt) { r.CostNano = -1 }},
		{"negative time", func(r *Receipt) { r.TTFT = -1 }},
		{"negative attempts", func(r *Receipt) { r.Attempts = -1 }},
		{"endless attempts", func(r *Receipt) { r.Attempts = 1 << 40 }},
		{"endless priority", func(r *Receipt) { r.Priority = 1 << 40 }},
		{"unknown source", func(r *Receipt) { r.UsageSource = "guess" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := testReceipt("req_1")
			tt.spoil(&r)
			s := testSettler(t, nil, nil, SettleConfig{}) // no database is asked
			if err := s.Settle(t.Context(), r, nil); !errors.Is(err, ErrReceipt) {
				t.Errorf("got %v, want ErrReceipt", err)
			}
		})
	}
}

func TestCallersTogetherShareTransactionsAndSumsAreExact(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	reg := prometheus.NewRegistry()
	s := testSettler(t, db.Worker, nil, SettleConfig{MaxBatch: 50, MaxInFlight: 3, Metrics: reg})
	const callers, each = 200, 5
	var wg sync.WaitGroup
	var mu sync.Mutex
	var cost, output int64
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				r := testReceipt(fmt.Sprintf("req_%d_%d", c, i))
				r.Tenant = fmt.Sprintf("ten_%d", c%7)
				r.CostNano, r.Usage.Output = rand.Int64N(1e12), rand.Int64N(1e6)
				if err := s.Settle(t.Context(), r, nil); err != nil {
					t.Error(err)
				}
				mu.Lock()
				cost, output = cost+r.CostNano, output+r.Usage.Output
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	var n, ids, gotCost, gotOutput int64
	err := db.Admin(t).QueryRow(t.Context(), `
		SELECT count(*), (SELECT count(*) FROM receipt_ids), sum(cost_nano)::bigint, sum(output)::bigint
		FROM receipts`).Scan(&n, &ids, &gotCost, &gotOutput)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int64{callers * each, callers * each, cost, output}, []int64{n, ids, gotCost, gotOutput}); diff != "" {
		t.Errorf("receipts, ids, cost, output (-want +got):\n%s", diff)
	}
	if txns := batches(t, reg); txns > callers*each/4 {
		t.Errorf("%d transactions for %d receipts: they don't share", txns, callers*each)
	}
}

// batches is how many transactions were made.
func batches(tb testing.TB, reg *prometheus.Registry) int {
	tb.Helper()
	families, err := reg.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "weir_settle_batch_receipts" {
			return int(f.GetMetric()[0].GetHistogram().GetSampleCount())
		}
	}
	tb.Fatal("no histogram of batches")
	return 0
}

func TestTheSameRequestIsStoredOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, effectTable)
	s := testSettler(t, db.Worker, nil, SettleConfig{})
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			r := testReceipt("req_same")
			r.CostNano = int64(i)
			var effect func(*pgx.Batch)
			if i%2 == 0 {
				effect = note("req_same")
			}
			if err := s.Settle(t.Context(), r, effect); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := count(t, db, "true"); n != 1 {
		t.Errorf("%d receipts, want 1", n)
	}
	if n := notes(t, db, "req_same"); n > 1 {
		t.Errorf("the effect was applied %d times", n)
	}
}

func TestTheSameRequestIDOfTwoTenantsIsTwoReceipts(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := testSettler(t, db.Worker, nil, SettleConfig{})
	a, b := testReceipt("req_same"), testReceipt("req_same")
	b.Tenant = "ten_b"
	s.store(t.Context(), []*settlement{{receipt: a}, {receipt: b}})
	if n := count(t, db, "request_id = 'req_same'"); n != 2 {
		t.Errorf("%d receipts, want 2: one tenant's id must not suppress another's", n)
	}
}

// effectTable is a table and a function as a room above would bring them.
const effectTable = `
	CREATE TABLE effects (request_id text, CHECK (request_id <> 'req_poison'));
	CREATE FUNCTION test_effect(id text) RETURNS void LANGUAGE sql SECURITY DEFINER
		AS 'INSERT INTO public.effects VALUES (id)';
	GRANT EXECUTE ON FUNCTION test_effect TO weir_worker`

func note(id string) func(*pgx.Batch) {
	return func(b *pgx.Batch) { b.Queue(`SELECT test_effect($1)`, id) }
}

func notes(t *testing.T, db *pgtest.DB, id string) (n int) {
	t.Helper()
	if err := db.Admin(t).QueryRow(t.Context(), `SELECT count(*) FROM effects WHERE request_id = $1`, id).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAnEffectIsAppliedWithItsReceiptOrNotAtAll(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, effectTable)
	s := testSettler(t, db.Worker, nil, SettleConfig{})
	for range 2 { // a second time changes nothing
		if err := s.Settle(t.Context(), testReceipt("req_1"), note("req_1")); err != nil {
			t.Fatal(err)
		}
	}
	if n := notes(t, db, "req_1"); n != 1 {
		t.Errorf("the effect was applied %d times, want once", n)
	}
	if err := s.Settle(t.Context(), testReceipt("req_2"), note("req_poison")); !errors.Is(err, ErrRejected) {
		t.Errorf("a refused effect: got %v, want ErrRejected", err)
	}
	if n := count(t, db, "request_id = 'req_2'"); n != 0 {
		t.Error("the receipt was stored without its effect")
	}
	if err := s.Settle(t.Context(), testReceipt("req_2"), func(b *pgx.Batch) { b.Queue("SELEC 1") }); !errors.Is(err, ErrRejected) {
		t.Errorf("broken SQL in an effect: got %v, want ErrRejected", err)
	}
	if s.Away() {
		t.Error("a caller's fault counts as an outage")
	}
}

func TestOneBadItemNeverFailsItsBatch(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		poison func(*settlement)
	}{
		{"a receipt that the table refuses", func(it *settlement) { it.receipt.Model = "poison" }},
		{"NUL in a text", func(it *settlement) { it.receipt.Model = "a\x00b" }},
		{"an effect that the table refuses", func(it *settlement) {
			it.effect = []*pgx.QueuedQuery{{SQL: `SELECT test_effect('req_poison')`}}
		}},
		{"an effect that is not SQL", func(it *settlement) { it.effect = []*pgx.QueuedQuery{{SQL: `SELEC 1`}} }},
		{"an effect without a grant", func(it *settlement) { it.effect = []*pgx.QueuedQuery{{SQL: `SELECT * FROM receipts`}} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			exec(t, db, effectTable)
			exec(t, db, `ALTER TABLE receipts ADD CHECK (model <> 'poison')`)
			s := testSettler(t, db.Worker, nil, SettleConfig{})
			var batch []*settlement
			for i := range 100 {
				it := &settlement{receipt: testReceipt(fmt.Sprintf("req_%d", i))}
				if i%10 == 5 {
					it.effect = []*pgx.QueuedQuery{{SQL: `SELECT test_effect($1)`, Arguments: []any{"good"}}}
				}
				batch = append(batch, it)
			}
			tt.poison(batch[37])
			s.store(t.Context(), batch)
			for i, it := range batch {
				if bad := i == 37; bad != errors.Is(it.err, ErrRejected) || !bad && it.err != nil {
					t.Errorf("item %d: %v", i, it.err)
				}
			}
			if n := count(t, db, "true"); n != 99 {
				t.Errorf("%d receipts are stored, want 99", n)
			}
			if n := notes(t, db, "good"); n != 10 {
				t.Errorf("%d effects, want 10", n)
			}
		})
	}
}

func TestAPanickingEffectHurtsItsCallerAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := testSettler(t, db.Worker, nil, SettleConfig{})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = s.Settle(t.Context(), testReceipt("req_1"), func(*pgx.Batch) { panic("effect") })
	}()
	if err := s.Settle(t.Context(), testReceipt("req_2"), nil); err != nil {
		t.Error(err)
	}
}

func TestACallerWhoLeavesStillGetsItsReceiptStored(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := testSettler(t, db.Worker, nil, SettleConfig{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Settle(ctx, testReceipt("req_1"), nil); err != nil {
		t.Fatal(err)
	}
	if n := count(t, db, "true"); n != 1 {
		t.Errorf("%d receipts, want 1", n)
	}
}

func TestTheWriterIsAllThatTheWorkerMayDo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, sql := range []string{
		`SELECT * FROM receipts`, `SELECT * FROM receipts_default`, `SELECT * FROM receipt_ids`,
		`DELETE FROM receipts`, `UPDATE receipts SET cost_nano = 0`, `SELECT * FROM prices`,
	} {
		if _, err := db.Worker.Exec(t.Context(), sql); err == nil {
			t.Errorf("the worker may: %s", sql)
		}
	}
	for _, sql := range []string{
		`DELETE FROM receipts`, `UPDATE receipts SET cost_nano = 0`, `SELECT * FROM receipts_default`,
		`DELETE FROM receipt_ids`, `UPDATE prices SET input_pico = 0`, `DELETE FROM prices`,
		`SELECT weir_make_receipt_partitions()`,
		`INSERT INTO receipt_ids VALUES ('ten_a', 'req_1', now())`,
	} {
		if _, err := db.App.Exec(t.Context(), sql); err == nil {
			t.Errorf("the application may: %s", sql)
		}
	}
}

func TestOutcomeLabelsAreBounded(t *testing.T) {
	t.Parallel()
	s := testSettler(t, nil, nil, SettleConfig{})
	for i := range 1000 {
		r := testReceipt("req_1")
		r.Outcome = fmt.Sprintf("outcome_%d", i)
		s.metrics.settled(&r, 0, nil)
	}
	series := make(chan prometheus.Metric, 2000)
	s.metrics.receipts.Collect(series)
	if n := len(series); n != maxOutcomes+1 {
		t.Errorf("%d series, want %d", n, maxOutcomes+1)
	}
}

// An exchange that goes on while it counts as dead keeps what belongs to it: the
// sweeper wrote the receipt, the exchange adds its effect.
func TestAnEffectIsKeptBesideTheSweepersReceipt(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	swept := testReceipt("req_swept")
	swept.SettledBy = BySweeper
	m.settle(swept)
	m.settle(testReceipt("req_settled"))
	effects := map[string]int{}
	for _, id := range []string{"req_swept", "req_settled", "req_new"} {
		err := m.s.Settle(t.Context(), testReceipt(id), func(b *pgx.Batch) {
			b.Queue(`SELECT 1`).QueryRow(func(row pgx.Row) error {
				effects[id]++
				var n int
				return row.Scan(&n)
			})
		})
		if err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if want := map[string]int{"req_swept": 1, "req_new": 1}; !maps.Equal(effects, want) {
		t.Errorf("effects %v, want %v", effects, want)
	}
	if n := m.look(`SELECT count(*) FROM receipts`); n != 3 {
		t.Errorf("%d receipts of three requests", n)
	}
}
