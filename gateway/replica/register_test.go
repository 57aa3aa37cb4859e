package replica_test

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/gateway/replica"
	"weir/migrations/pgtest"
)

func register(db *pgtest.DB, cfg replica.Config) *replica.Register {
	return replica.NewRegister(slog.New(slog.DiscardHandler), db.Worker, cfg)
}

// start joins and runs until the returned function is called, or the test ends.
func start(t *testing.T, r *replica.Register) (stop func()) {
	t.Helper()
	if err := r.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(stop)
	return stop
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// exec changes the database behind the replicas' backs.
func exec(t *testing.T, db *pgtest.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Owner.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func TestReplicasCountEachOther(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	quick := replica.Config{Beat: 20 * time.Millisecond, Dead: 2 * time.Second}
	var told atomic.Int32
	cfg := quick
	cfg.Changed = func(live int) { told.Store(int32(live)) }
	first := register(db, cfg)
	start(t, first)
	if first.Live() != 1 {
		t.Errorf("%d live, want itself alone", first.Live())
	}
	second, third := register(db, quick), register(db, quick)
	stopSecond := start(t, second)
	start(t, third)
	for _, r := range []*replica.Register{first, second, third} {
		eventually(t, "all three are known", func() bool { return r.Live() == 3 })
	}
	if told.Load() != 3 {
		t.Errorf("told of %d, want 3", told.Load())
	}
	stopSecond()
	eventually(t, "the one that stopped is not counted", func() bool { return first.Live() == 2 && told.Load() == 2 })
	eventually(t, "it is among the gone", func() bool {
		gone, err := first.Gone(t.Context(), first.Dead())
		return err == nil && slices.Equal(gone, []string{second.ID()})
	})
	if err := first.Forget(t.Context(), []string{second.ID(), third.ID()}); err != nil {
		t.Fatal(err)
	}
	if gone, err := first.Gone(t.Context(), first.Dead()); err != nil || len(gone) != 0 {
		t.Errorf("gone: %v, %v, want nobody", gone, err)
	}
	var left int
	if err := db.Owner.QueryRow(t.Context(), `SELECT count(*) FROM replicas WHERE id = ANY ($1)`, []string{first.ID(), third.ID()}).Scan(&left); err != nil || left != 2 {
		t.Errorf("one that lives was forgotten: %d of 2 are left, %v", left, err)
	}
	eventually(t, "the third knows it, too", func() bool { return third.Live() == 2 })
}

func TestReplicaThatDiesIsMissedAndNotBefore(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	cfg := replica.Config{Beat: 20 * time.Millisecond, Dead: time.Second}
	dead, alive := register(db, cfg), register(db, cfg)
	if err := dead.Join(t.Context()); err != nil { // and never again
		t.Fatal(err)
	}
	start(t, alive)
	if alive.Live() != 2 {
		t.Errorf("%d live, want the silent one counted at first", alive.Live())
	}
	exec(t, db, `UPDATE replicas SET seen_at = now() - interval '2 seconds' WHERE id = $1`, dead.ID())
	eventually(t, "it is missed", func() bool { return alive.Live() == 1 })
}

// The database's server was away, or out of reach, and all entries are old: none
// of the others counts as dead until they had time to come back.
func TestReplicaHoldsOthersForLiveAfterAnOutage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var clock atomic.Int64
	cfg := replica.Config{Beat: time.Hour, Dead: 20 * time.Second, Now: func() time.Time { return time.Unix(clock.Load(), 0) }}
	us, other := register(db, cfg), register(db, cfg)
	beat := func(after int64) int {
		t.Helper()
		clock.Add(after)
		if err := us.Join(t.Context()); err != nil {
			t.Fatal(err)
		}
		return us.Live()
	}
	clock.Store(1000)
	if err := other.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		beat(5)
	}
	if !us.Steady() {
		t.Error("not steady after 45 s without a gap")
	}
	exec(t, db, `UPDATE replicas SET seen_at = now() - interval '90 seconds'`) // of outage
	clock.Add(85)
	if gone, err := us.Gone(t.Context(), us.Dead()); err != nil || len(gone) != 0 || us.Steady() {
		t.Errorf("gone: %v, %v, steady: %t, want nobody before it knows of the outage itself", gone, err, us.Steady())
	}
	if n := beat(5); n != 2 {
		t.Errorf("right after the outage %d live, want both", n)
	}
	if gone, err := us.Gone(t.Context(), us.Dead()); err != nil || len(gone) != 0 {
		t.Errorf("gone: %v, %v, want nobody yet", gone, err)
	}
	for range 3 {
		if n := beat(5); n != 2 {
			t.Errorf("soon after the outage %d live, want both", n)
		}
	}
	if n := beat(6); n != 1 {
		t.Errorf("%d live, want the other missed after its time", n)
	}
}

func TestReplicaKeepsWhatItKnewWhilePostgresIsAway(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	us, other := register(db, replica.Config{}), register(db, replica.Config{})
	for _, r := range []*replica.Register{other, us} {
		if err := r.Join(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := us.Join(ctx); err == nil {
		t.Fatal("a beat that can't be written is no error")
	}
	if us.Live() != 2 {
		t.Errorf("%d live, want what was known", us.Live())
	}
}

// A process that was killed and starts again on its folder doesn't count twice
// while the dead one's time runs; one that lives after all counts again.
func TestARestartTakesTheFormerReplicasPlace(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	folder := t.TempDir()
	join := func(folder string) *replica.Register {
		t.Helper()
		r := register(db, replica.Config{Folder: folder})
		if err := r.Join(t.Context()); err != nil { // and it is killed: it never says that it stops
			t.Fatal(err)
		}
		return r
	}
	killed := join(folder)
	again := join(folder)
	if again.Live() != 1 || again.ID() == killed.ID() {
		t.Errorf("%d replicas live after a restart, the first as %s and the second as %s", again.Live(), killed.ID(), again.ID())
	}
	if other := join(t.TempDir()); other.Live() != 2 {
		t.Errorf("with another folder %d live, want both", other.Live())
	}
	if err := killed.Join(t.Context()); err != nil { // it was not dead; its folder has the other's id now
		t.Fatal(err)
	}
	exec(t, db, `UPDATE replicas SET stopped_at = NULL WHERE id = $1`, again.ID())
	if late := join(t.TempDir()); late.Live() != 4 {
		t.Errorf("%d live, want all four", late.Live())
	}
}

// Who said that it stops has nothing left to be said, and its folder names nobody.
func TestAReplicaThatStoppedLeavesNoId(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	folder := t.TempDir()
	stop := start(t, register(db, replica.Config{Folder: folder}))
	if left, err := os.ReadDir(folder); err != nil || len(left) != 1 {
		t.Errorf("%v, %v: want the id", left, err)
	}
	stop()
	if left, err := os.ReadDir(folder); err != nil || len(left) != 0 {
		t.Errorf("%v, %v: want nothing", left, err)
	}
	for _, text := range []string{"", "rep", "not an id"} {
		if err := os.WriteFile(folder+"/replica", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := register(db, replica.Config{Folder: folder}).Join(t.Context()); err != nil {
			t.Errorf("%q in the folder: %v", text, err)
		}
	}
}
