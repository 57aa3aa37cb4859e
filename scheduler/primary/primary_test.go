package primary_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"weir/migrations/pgtest"
	"weir/scheduler/primary"
)

const ttl = 500 * time.Millisecond

// link is a connection to the database that can be cut.
type link struct {
	primary.DB

	cut atomic.Bool
}

type lostRow struct{}

var errLost = errors.New("connection lost")

func (lostRow) Scan(...any) error { return errLost }

func (l *link) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if l.cut.Load() {
		return lostRow{}
	}
	return l.DB.QueryRow(ctx, sql, args...)
}

func (l *link) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if l.cut.Load() {
		return pgconn.CommandTag{}, errLost
	}
	return l.DB.Exec(ctx, sql, args...)
}

// candidate is one scheduler that competes.
type candidate struct {
	*primary.Lease

	link link
	stop func()
	said sync.Map // true, false: what Changed was called with
}

func compete(t *testing.T, db *pgtest.DB, skew time.Duration) *candidate {
	t.Helper()
	c := &candidate{link: link{DB: db.Worker}}
	c.Lease = primary.New(slog.New(slog.DiscardHandler), &c.link, primary.Config{
		Name: "fleet", TTL: ttl, Now: func() time.Time { return time.Now().Add(skew) },
		Changed: func(held bool) { c.said.Store(held, held == c.Held()) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = c.Run(ctx) })
	c.stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(c.stop)
	return c
}

func until(t *testing.T, what string, so func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for tick := time.NewTicker(2 * time.Millisecond); !so(); <-tick.C {
		if time.Since(began) > 30*time.Second {
			t.Fatalf("waited in vain until %s", what)
		}
	}
	return time.Since(began)
}

func primaries(all ...*candidate) (n int) {
	for _, c := range all {
		if c.Held() {
			n++
		}
	}
	return n
}

func TestOneIsPrimaryWhateverTheMachinesClocksSay(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	all := []*candidate{compete(t, db, 0), compete(t, db, 6*time.Hour), compete(t, db, -6*time.Hour)}
	until(t, "one is the primary", func() bool { return primaries(all...) > 0 })
	epoch := int64(0)
	for range len(all) - 1 {
		at := slices.IndexFunc(all, func(c *candidate) bool { return c.Held() })
		first := all[at]
		if first.Epoch() <= epoch {
			t.Errorf("the epoch went from %d to %d", epoch, first.Epoch())
		}
		epoch = first.Epoch()
		// Its machine loses the database: nobody says so to the others.
		first.link.cut.Store(true)
		took := until(t, "another takes over", func() bool {
			n := primaries(all...)
			if n > 1 {
				t.Fatal("two are the primary at once")
			}
			return n == 1 && !first.Held()
		})
		if took > 2*ttl+time.Second {
			t.Errorf("failing over took %v with a lease of %v", took, ttl)
		}
		if err := first.State(); err == nil {
			t.Error("the old primary doesn't say that it is none")
		}
	}
}

func TestAPrimaryThatStopsIsFollowedAtOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	first := compete(t, db, 0)
	until(t, "the first is the primary", first.Held)
	second := compete(t, db, 0)
	until(t, "the second knows that it isn't", func() bool {
		err := second.State()
		return err != nil && err.Error() == "standby: another scheduler is the primary"
	})
	first.stop()
	if took := until(t, "the second is the primary", second.Held); took > ttl/2+time.Second {
		t.Errorf("took over after %v, want one look at the lease (%v)", took, ttl/5)
	}
	for _, held := range []bool{true, false} {
		if right, told := first.said.Load(held); !told || right != true {
			t.Errorf("Changed(%v): told %v, and Held agreed: %v", held, told, right)
		}
	}
}

func TestAPrimaryHoldsOnWhileItRenews(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	first, second := compete(t, db, 0), compete(t, db, 0)
	until(t, "one is the primary", func() bool { return primaries(first, second) > 0 })
	held, other := first, second
	if second.Held() {
		held, other = second, first
	}
	epoch := held.Epoch()
	for ends := time.After(3 * ttl); ; {
		select {
		case <-ends:
			if held.Epoch() != epoch || !held.Held() {
				t.Errorf("the epoch went from %d to %d, held: %v", epoch, held.Epoch(), held.Held())
			}
			return
		case <-time.After(5 * time.Millisecond):
			if other.Held() {
				t.Fatal("another took over from a primary that lives")
			}
		}
	}
}

// A row that is locked by one statement must not let a second take what the
// first has just renewed.
func TestOfManyThatTakeAnExpiredLeaseOneGetsIt(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const n = 16
	for round := range 5 {
		var won atomic.Int32
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				var epoch *int64
				holder := string(rune('a'+round)) + string(rune('a'+i))
				if err := db.Worker.QueryRow(t.Context(), `SELECT weir_hold_scheduler('one', $1, interval '1 hour')`, holder).Scan(&epoch); err != nil {
					t.Error(err)
				} else if epoch != nil {
					won.Add(1)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			t.Fatalf("%d of %d took the lease", won.Load(), n)
		}
		if _, err := db.Owner.Exec(t.Context(), `UPDATE scheduler_leases SET expires_at = now()`); err != nil {
			t.Fatal(err)
		}
	}
}

// A suspended machine's monotonic clock stands still while the lease expires.
func TestALeaseDoesNotOutlastASuspendedMachine(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var wall atomic.Int64 // how far the wall clock ran while the other stood
	l := primary.New(slog.New(slog.DiscardHandler), db.Worker, primary.Config{TTL: time.Hour, Now: func() time.Time {
		if d := wall.Load(); d != 0 {
			return time.Now().Round(0).Add(time.Duration(d))
		}
		return time.Now()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = l.Run(ctx) })
	defer running.Wait()
	defer cancel()
	until(t, "it is the primary", l.Held)
	wall.Store(int64(2 * time.Hour))
	if l.Held() {
		t.Error("still the primary two hours later")
	}
}
