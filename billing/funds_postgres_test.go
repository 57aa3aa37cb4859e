package billing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// replica is a settle writer and funds of its own on one database.
type replica struct {
	*Funds

	settler *Settler
	listens chan struct{} // closed when it hears of recalls for the first time
	heard   sync.Once     // it listens anew where it lost its connection
	settled func()        // ends what runs of the settler alone
	stop    func()
}

// traced is where a query keeps its text.
type traced struct{}

// TraceQueryStart implements pgx.QueryTracer.
func (r *replica) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, traced{}, q.SQL)
}

// TraceQueryEnd implements pgx.QueryTracer.
func (r *replica) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	if sql, _ := ctx.Value(traced{}).(string); q.Err == nil && sql == "LISTEN "+recallChannel {
		r.heard.Do(func() { close(r.listens) })
	}
}

func (m *money) replica(name, workerURL string, spool *Spool) *replica {
	m.t.Helper()
	return m.idling(name, workerURL, spool, 100*time.Millisecond)
}

// idling is a replica that keeps what it doesn't need for so long, unless it is
// recalled.
func (m *money) idling(name, workerURL string, spool *Spool, idle time.Duration) *replica {
	m.t.Helper()
	u, err := url.Parse(workerURL)
	if err != nil {
		m.t.Fatal(err)
	}
	q := u.Query()
	q.Set("pool_max_conns", "6")
	u.RawQuery = q.Encode()
	conf, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		m.t.Fatal(err)
	}
	r := &replica{listens: make(chan struct{})}
	conf.ConnConfig.Tracer = r
	pool, err := pgxpool.NewWithConfig(m.t.Context(), conf)
	if err != nil {
		m.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	s := NewSettler(log, pool, spool, SettleConfig{Timeout: time.Second, Retry: 20 * time.Millisecond}, time.Now)
	f := NewFunds(log, pool, FundsConfig{
		Replica: name, Idle: idle,
		Behind: func() bool { return s.Away() || s.Spooled() > 0 },
	}, time.Now)
	ctx, cancel := context.WithCancel(context.WithoutCancel(m.t.Context()))
	settling, settled := context.WithCancel(ctx)
	var running, settles sync.WaitGroup
	running.Go(func() { _ = f.Run(ctx) })
	settles.Go(func() { _ = s.Run(settling) })
	r.Funds, r.settler = f, s
	r.settled = func() { settled(); settles.Wait() }
	r.stop = sync.OnceFunc(func() { cancel(); r.settled(); running.Wait(); pool.Close() })
	m.t.Cleanup(r.stop)
	return r
}

// pay holds, works, and settles. It reports whether it was admitted.
func (r *replica) pay(ctx context.Context, id string, nodes []string, holds, costs int64) (bool, error) {
	h, err := r.Hold(ctx, HoldRequest{Tenant: "ten_a", Nodes: nodes, Nano: holds})
	if err != nil {
		return false, err
	}
	receipt := paying(id, costs, h.Chunks()...)
	err = r.settler.Settle(ctx, receipt, nil)
	h.Settle(costs)
	return err == nil, err
}

// inBooks fails unless the wallets are worth what they should be, nothing is
// reserved, and the ledger agrees.
func (m *money) inBooks(want map[string]int64) {
	m.t.Helper()
	for node, balance := range want {
		if got := m.balance(node); got != balance {
			m.t.Errorf("%s has %d, want %d", node, got, balance)
		}
	}
	if n := m.look(`SELECT count(*) FROM chunks`); n != 0 {
		m.t.Errorf("%d chunks are left", n)
	}
	if n := m.look(`SELECT coalesce(sum(amount_nano), 0)::bigint FROM ledger_entries WHERE account LIKE 'tenant:%'`); n != want["ten_a"] {
		m.t.Errorf("the ledger has %d for the tenant, want %d", n, want["ten_a"])
	}
	if n := m.look(`SELECT coalesce(sum(amount_nano), 0)::bigint FROM ledger_entries`); n != 0 {
		m.t.Errorf("the ledger sums to %d", n)
	}
}

func TestInPostgresABalanceWorth50Of200CallersIsSpentAndNotMore(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) {
			t.Parallel()
			const price, worth, callers = 1_000_000, 50, 200
			m := newMoney(t)
			m.credit("paid", price*worth+price/2, "top-up")
			m.number(`SELECT weir_allot('ten_a', 'prj_a', 'project', $1, NULL)`, price*worth*4)
			var all []*replica
			for i := range replicas {
				all = append(all, m.replica(fmt.Sprint("rep_", i), m.db.WorkerURL, nil))
			}
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for i := range callers {
				wg.Go(func() {
					ok, err := all[i%replicas].pay(t.Context(), fmt.Sprint("req_", i), []string{"ten_a", "prj_a"}, price, price)
					if broke, refused := errors.AsType[*Broke](err); err != nil && (!refused || broke.Node != "ten_a") {
						t.Errorf("caller %d: %v", i, err)
					}
					if ok {
						admitted.Add(1)
					}
				})
			}
			wg.Wait()
			if got := admitted.Load(); got != worth {
				t.Errorf("%d were admitted to a balance worth %d", got, worth)
			}
			for _, r := range all {
				r.stop()
				if r.Open() != 0 {
					t.Errorf("%d holds are left", r.Open())
				}
			}
			m.inBooks(map[string]int64{"ten_a": price / 2, "prj_a": price * worth * 3})
		})
	}
}

// Requests that come one after another to three replicas spend a balance to
// less than a request: what the others hold idle is recalled.
func TestInPostgresNothingIsStranded(t *testing.T) {
	t.Parallel()
	const price, balance = 1_000_000, 300_999_999
	m := newMoney(t)
	m.credit("promo", balance, "welcome")
	var all []*replica
	for i := range 3 {
		all = append(all, m.replica(fmt.Sprint("rep_", i), m.db.WorkerURL, nil))
	}
	spent := int64(0)
	for i := range balance/price + 10 {
		ok, err := all[i%3].pay(t.Context(), fmt.Sprint("req_", i), []string{"ten_a"}, price, price)
		if err != nil && !isBroke(err) {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		spent += price
	}
	if left := balance - spent; left*100 > balance {
		t.Errorf("refused with %d of %d left", left, int64(balance))
	}
	for _, r := range all {
		r.stop()
	}
	m.inBooks(map[string]int64{"ten_a": balance - spent})
}

// Holds are far larger than what requests cost: what one replica has left over of
// one is what the next needs, and comes back as soon as it is asked for.
func TestInPostgresWhatAnotherReplicaHoldsIdleIsRecalled(t *testing.T) {
	t.Parallel()
	const balance, holds, costs = 100_000_000, 60_000_000, 1_000_000
	m := newMoney(t)
	m.credit("paid", balance, "top-up")
	var all []*replica
	for i := range 2 {
		all = append(all, m.idling(fmt.Sprint("rep_", i), m.db.WorkerURL, nil, time.Hour))
	}
	for _, r := range all {
		<-r.listens
	}
	// The first is left with something idle, as nothing seemed scarce to it.
	for i := range 10 {
		if ok, err := all[i%2].pay(t.Context(), fmt.Sprint("req_", i), []string{"ten_a"}, holds, costs); !ok {
			t.Fatalf("request %d of 10 was refused, with %d of %d there: %v", i, m.balance("ten_a"), int64(balance), err)
		}
	}
	for _, r := range all {
		r.stop()
	}
	m.inBooks(map[string]int64{"ten_a": balance - 10*costs})
}

// Receipts that are spooled while Postgres is away are still to be paid: their
// part of the chunk doesn't go back before they are stored.
func TestInPostgresAnOutageLosesNoMoney(t *testing.T) {
	t.Parallel()
	m := newMoney(t)
	m.credit("paid", 1_000_000_000, "top-up")
	wire, _ := newLine(t, m.db.WorkerURL)
	u, err := url.Parse(m.db.WorkerURL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = wire.listener.Addr().String()
	spool, err := OpenSpool(t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = spool.Close() })
	r := m.replica("rep_0", u.String(), spool)
	nodes := []string{"ten_a"}
	if _, err := r.pay(t.Context(), "req_before", nodes, 2_000_000, 1_000_000); err != nil {
		t.Fatal(err)
	}
	wire.down()
	if _, err := r.pay(t.Context(), "req_within", nodes, 500_000, 500_000); err != nil {
		t.Errorf("within the chunk that is here: %v", err)
	}
	if _, err := r.pay(t.Context(), "req_beyond", nodes, 900_000_000, 1); !errors.Is(err, ErrUnavailable) {
		t.Errorf("beyond it: %v", err)
	}
	r.settled()
	wire.up()
	for tries := 0; r.settler.Away() || r.settler.Spooled() > 0; tries++ { // a connection from before may be broken
		if tries > 20 {
			t.Fatal("the spool was not replayed")
		}
		r.settler.recover(t.Context())
	}
	r.stop()
	m.inBooks(map[string]int64{"ten_a": 1_000_000_000 - 1_500_000})
}
