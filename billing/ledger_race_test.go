package billing

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

func TestTwoHundredAtOnceSpendABalanceWorthFiftyToTheLastCent(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	reg := prometheus.NewRegistry()
	m.s = testSettler(t, m.db.Worker, nil, SettleConfig{Metrics: reg})
	const price, worth, racers = 7, 50, 200
	m.credit("paid", price*worth+price-1, "top-up")
	m.number(`SELECT weir_allot('ten_a', 'key_a', 'key', 1000, NULL)`)
	var paid atomic.Int64
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			got, err := draw(t.Context(), m.db.Worker, []string{"ten_a", "key_a"}, price, price, "r"+strconv.Itoa(i%3))
			if err != nil {
				t.Error(err)
				return
			}
			if got[0].Chunk == nil {
				return
			}
			paid.Add(1)
			r := paying(fmt.Sprintf("req_%d", i), price, *got[0].Chunk, *got[1].Chunk)
			if err := m.s.Settle(t.Context(), r, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if paid.Load() != worth || m.balance("ten_a") != price-1 || m.balance("key_a") != 1000-price*worth {
		t.Errorf("%d paid, %d and %d left; want %d, %d and %d", paid.Load(), m.balance("ten_a"), m.balance("key_a"), worth, price-1, 1000-price*worth)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "weir_billing_overspent_nano_total" && f.GetMetric()[0].GetCounter().GetValue() != 0 {
			t.Errorf("overspent %v", f)
		}
	}
	if n := m.look(`SELECT sum(left_nano) FROM chunks`); n != 0 {
		t.Errorf("%d still set aside", n)
	}
	if rules := m.faults(); rules != nil {
		t.Errorf("broken: %v", rules)
	}
}

// Four writers of a hundred tenants in any order, and whoever draws, renews,
// returns and gives credit beside them, never lock each other out.
func TestNobodyDeadlocks(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	const tenants, workers, rounds, size = 100, 4, 25, 40
	replica := func(i int) string { return "r" + strconv.Itoa(i) }
	tenant := func(i int) string { return fmt.Sprintf("ten_%02d", i) }
	for i := range tenants {
		m.number(`SELECT lot FROM weir_credit($1, 'paid', 1000000, 'opening')`, tenant(i))
		m.number(`SELECT weir_allot($1, 'key_a', 'key', 1000000, NULL)`, tenant(i))
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			s := testSettler(t, m.db.Worker, nil, SettleConfig{})
			var chunks [][]int64
			for i := range tenants {
				got, err := draw(t.Context(), m.db.Worker, []string{tenant(i), "key_a"}, 1000, 1000, replica(w))
				if err != nil || got[0].Chunk == nil {
					t.Error(got, err)
					return
				}
				chunks = append(chunks, []int64{*got[0].Chunk, *got[1].Chunk})
			}
			for round := range rounds {
				batch := make([]*settlement, size)
				for i := range batch {
					of := rand.IntN(tenants)
					r := paying(fmt.Sprintf("req_%d_%d_%d", w, round, i), 1, chunks[of]...)
					r.Tenant = tenant(of)
					batch[i] = &settlement{receipt: r}
				}
				if err := s.tryCommit(t.Context(), batch); err != nil {
					t.Errorf("worker %d: %v", w, err)
				}
				var ids, keep []int64
				for _, of := range rand.Perm(tenants)[:size] {
					ids, keep = append(ids, chunks[of]...), append(keep, 500, 500)
				}
				for _, sql := range []struct {
					text string
					args []any
				}{
					{`SELECT weir_renew_chunks($1, $2, '30s')`, []any{replica(w), ids}},
					{`SELECT weir_return_chunks($1, $2, $3)`, []any{replica(w), ids, keep}},
					{`SELECT weir_draw($1, ARRAY[$1, 'key_a'], 1, 10, $2, '30s')`, []any{tenant(rand.IntN(tenants)), replica(w)}},
					{`SELECT weir_credit($1, 'promo', 5, $2)`, []any{tenant(rand.IntN(tenants)), fmt.Sprintf("%d-%d", w, round)}},
				} {
					if _, err := m.db.Worker.Exec(t.Context(), sql.text, sql.args...); err != nil {
						t.Errorf("worker %d: %s: %v", w, sql.text, err)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := m.look(`SELECT sum(cost_nano) FROM receipts`); n != workers*rounds*size {
		t.Errorf("%d settled, want %d", n, workers*rounds*size)
	}
	if rules := m.faults(); rules != nil {
		t.Errorf("broken: %v", rules)
	}
}
