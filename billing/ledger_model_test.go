package billing

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// modelLot is credit as the model has it.
type modelLot struct {
	kind      string
	priority  int
	remaining int64
	expired   bool // its time has come
	born      int
}

// ledgerModel is what wallets, chunks and credit of one tenant with one capped
// key have to be.
type ledgerModel struct {
	m      *money
	tenant string
	lots   []*modelLot
	owed   int64
	cap    int64
	chunks map[string]*modelChunk // by replica
	made   int                    // whatever has a name
}

type modelChunk struct {
	tenant, key int64 // left
	ids         []int64
}

func (l *ledgerModel) name(what string) string {
	l.made++
	return what + strconv.Itoa(l.made)
}

func (l *ledgerModel) balance() int64 {
	sum := -l.owed
	for _, lot := range l.lots {
		sum += lot.remaining
	}
	return sum
}

func (l *ledgerModel) held() (tenant, key int64) {
	for _, c := range l.chunks {
		tenant, key = tenant+c.tenant, key+c.key
	}
	return tenant, key
}

func (l *ledgerModel) burn(cost int64) {
	queue := slices.Clone(l.lots)
	slices.SortStableFunc(queue, func(a, b *modelLot) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), boolOrder(a.expired, b.expired), cmp.Compare(a.born, b.born))
	})
	for _, lot := range queue {
		part := min(cost, lot.remaining)
		lot.remaining -= part
		cost -= part
	}
	l.owed += cost
}

// boolOrder puts true first: what has an expiry goes before what has none.
func boolOrder(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	default:
		return 1
	}
}

func (l *ledgerModel) credit(t *rapid.T) {
	kind := rapid.SampledFrom([]string{"free", "promo", "paid"}).Draw(t, "kind")
	amount := rapid.Int64Range(1, 1000).Draw(t, "amount")
	lot := &modelLot{kind: kind, priority: map[string]int{"free": 10, "promo": 20, "paid": 30}[kind], remaining: amount, born: l.made}
	var effective, expires *time.Time
	if rapid.Bool().Draw(t, "expired") {
		lot.expired = true
		// The same for all, so that lots of one kind burn by age.
		effective, expires = new(time.Unix(1_000_000_000, 0)), new(time.Unix(1_100_000_000, 0))
	}
	l.m.number(`SELECT lot FROM weir_credit($1, $2, $3, $4, '', $5, $6)`, l.tenant, kind, amount, l.name("credit"), effective, expires)
	if kind == "paid" {
		pays := min(l.owed, amount)
		l.owed -= pays
		lot.remaining -= pays
	}
	l.lots = append(l.lots, lot)
}

func (l *ledgerModel) draw(t *rapid.T) {
	replica := rapid.SampledFrom([]string{"r1", "r2", "r3"}).Draw(t, "replica")
	least := rapid.Int64Range(1, 300).Draw(t, "least")
	want := least + rapid.Int64Range(0, 300).Draw(t, "more")
	got := l.m.draw(least, want, l.tenant+replica, l.tenant, "key_a")
	tenant, key := l.held()
	free, freeKey := l.balance()-tenant, l.cap-key
	if free < least || freeKey < least {
		refuser, left := l.tenant, free
		if free >= least {
			refuser, left = "key_a", freeKey
		}
		if len(got) != 1 || got[0].Chunk != nil || got[0].Node != refuser || got[0].Amount != max(left, 0) {
			t.Fatalf("drew %+v, want a refusal by %s with %d left", got, refuser, left)
		}
		return
	}
	amount := least + min(want-least, (min(free, freeKey)-least)/256)
	if len(got) != 2 || got[0].Amount != amount || got[1].Amount != amount {
		t.Fatalf("drew %+v, want %d of both", got, amount)
	}
	c := l.chunks[replica]
	if c == nil {
		c = &modelChunk{}
		l.chunks[replica] = c
	}
	c.tenant, c.key, c.ids = c.tenant+amount, c.key+amount, []int64{*got[0].Chunk, *got[1].Chunk}
}

// settle charges what a hold covered, or now and then what nothing did.
func (l *ledgerModel) settle(t *rapid.T) {
	cost := rapid.Int64Range(0, 200).Draw(t, "cost")
	r := paying(l.name("req_"+l.tenant), cost)
	r.Tenant, r.Key = l.tenant, "key_a"
	for _, replica := range []string{"r1", "r2", "r3"} {
		if c := l.chunks[replica]; c != nil && rapid.Bool().Draw(t, "from "+replica) {
			r.Chunks = c.ids
			c.tenant, c.key = max(c.tenant-cost, 0), max(c.key-cost, 0)
			break
		}
	}
	l.m.settle(r)
	l.m.settle(r) // again: it counts once
	l.burn(cost)
	l.cap -= cost
}

func (l *ledgerModel) giveBack(t *rapid.T) {
	for replica, c := range l.chunks {
		keep := rapid.Int64Range(0, 300).Draw(t, "keep")
		l.m.number(`SELECT 1 FROM weir_return_chunks($1, $2, $3)`, l.tenant+replica, c.ids, []int64{keep, keep})
		c.tenant, c.key = min(c.tenant, keep), min(c.key, keep)
		if keep == 0 {
			delete(l.chunks, replica)
		}
		return // one is enough
	}
}

func (l *ledgerModel) close(*rapid.T) {
	for replica := range l.chunks {
		l.m.number(`SELECT count(*) FROM weir_close_dead_chunks('-1 hour', 10, $1)`, l.tenant+replica)
		delete(l.chunks, replica)
		return
	}
}

func (l *ledgerModel) renew(t *rapid.T) {
	for replica, c := range l.chunks {
		if n := l.m.number(`SELECT cardinality(weir_renew_chunks($1, $2, '30s'))`, l.tenant+replica, c.ids); n != 2 {
			t.Fatalf("%d of 2 chunks renewed", n)
		}
		return
	}
}

func (l *ledgerModel) turn(*rapid.T) {
	l.m.number(`SELECT opened FROM weir_turn_lots(1000)`)
	for _, lot := range l.lots {
		if lot.expired {
			expires := lot.remaining
			if held, _ := l.held(); held > 0 {
				expires = max(0, min(expires, l.balance()-held))
			}
			lot.remaining -= expires
		}
	}
}

func (l *ledgerModel) adjust(t *rapid.T) {
	amount := rapid.Int64Range(-100, 100).Filter(func(n int64) bool { return n != 0 }).Draw(t, "amount")
	l.m.number(`SELECT weir_adjust($1, $2, 'adjust', $3)`, l.tenant, amount, l.name("adjust"))
	if amount < 0 {
		l.burn(-amount)
		return
	}
	pays := min(l.owed, amount)
	l.owed -= pays
	l.lots = append(l.lots, &modelLot{kind: "paid", priority: 30, remaining: amount - pays, born: l.made})
}

func (l *ledgerModel) allot(t *rapid.T) {
	add := rapid.Int64Range(0, 500).Draw(t, "add")
	l.cap += add
	if got := l.m.number(`SELECT weir_allot($1, 'key_a', 'key', NULL, $2)`, l.tenant, add); got != l.cap {
		t.Fatalf("the cap is %d, want %d", got, l.cap)
	}
}

// compare holds the database against the model.
func (l *ledgerModel) compare(t *rapid.T) {
	var got [4]int64
	err := l.m.db.Owner.QueryRow(l.m.t.Context(), `
		SELECT
			coalesce((SELECT balance_nano FROM wallets WHERE tenant_id = $1 AND node = $1), 0),
			(SELECT balance_nano FROM wallets WHERE tenant_id = $1 AND node = 'key_a'),
			(SELECT coalesce(sum(left_nano), 0) FROM chunks WHERE tenant_id = $1),
			(SELECT coalesce(sum(remaining_nano), 0) FROM credit_lots WHERE tenant_id = $1)`,
		l.tenant).Scan(&got[0], &got[1], &got[2], &got[3])
	if err != nil {
		t.Fatal(err)
	}
	tenant, key := l.held()
	if want := [4]int64{l.balance(), l.cap, tenant + key, l.balance() + l.owed}; got != want {
		t.Fatalf("balance, cap, held and credit are %d, want %d", got, want)
	}
}

func TestTheLedgerFollowsItsModelWhateverHappens(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	var runs atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		l := &ledgerModel{m: m, tenant: fmt.Sprintf("ten_%d", runs.Add(1)), chunks: make(map[string]*modelChunk)}
		m.number(`SELECT weir_allot($1, 'key_a', 'key', 0, NULL)`, l.tenant)
		steps := []func(*rapid.T){l.credit, l.draw, l.draw, l.settle, l.settle, l.giveBack, l.renew, l.close, l.turn, l.adjust, l.allot}
		l.credit(t)
		l.allot(t)
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			rapid.SampledFrom(steps).Draw(t, "step")(t)
			l.compare(t)
		}
	})
	// Corrections and costs that nothing held take from what others hold.
	if rules := slices.DeleteFunc(m.faults(), func(rule string) bool { return rule == "held" }); len(rules) > 0 {
		t.Errorf("broken: %v", rules)
	}
}
