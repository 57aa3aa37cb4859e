package catalogue_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"weir/gateway/catalogue"
	"weir/migrations/pgtest"
)

// follow runs a store for the length of a test.
func follow(t *testing.T, db *pgtest.DB) *catalogue.Store {
	t.Helper()
	store := catalogue.NewStore(slog.New(slog.DiscardHandler), db.App, db.Worker)
	if err := store.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := store.Run(ctx); err != nil {
			t.Errorf("run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return store
}

func waitForModel(t *testing.T, store *catalogue.Store, name string) {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		changed := store.Changed()
		if _, ok := store.Snapshot().Lookup(name); ok {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("model %s did not arrive", name)
		}
	}
}

func TestStoreThatReadsTheSameAgainKeepsItsSnapshot(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mustApply(t, db, full, catalogue.Options{})
	store := catalogue.NewStore(slog.New(slog.DiscardHandler), db.App, db.Worker)
	if _, ok := store.Snapshot().Lookup("chat"); ok {
		t.Error("a store knows models before it has read any")
	}
	if err := store.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, changed := store.Snapshot(), store.Changed()
	if err := store.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if store.Snapshot() != before {
		t.Error("the snapshot was replaced by one that says the same")
	}
	select {
	case <-changed:
		t.Error("a change was announced where there was none")
	default:
	}
}

func TestStoreSeesANewPriceAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mustApply(t, db, full, catalogue.Options{})
	store := catalogue.NewStore(slog.New(slog.DiscardHandler), db.App, db.Worker)
	if err := store.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	mustApply(t, db, "apiVersion: weir/v1\nprices: [{model: embed, input: \"0.03\", output: \"0\"}]\n", catalogue.Options{})
	if err := store.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p, ok := store.Snapshot().Prices.Rate("embed", "", time.Now()); !ok || p.Input != 30_000 {
		t.Errorf("price = %+v, %v, want the new one", p, ok)
	}
}

func TestStoreKeepsTheLastGoodSnapshot(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mustApply(t, db, full, catalogue.Options{})
	store := catalogue.NewStore(slog.New(slog.DiscardHandler), db.App, db.Worker)
	if err := store.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	admin := db.Admin(t)
	if _, err := admin.Exec(t.Context(), `ALTER TABLE models RENAME TO models_away`); err != nil {
		t.Fatal(err)
	}
	if err := store.Load(t.Context()); err == nil {
		t.Error("reading without a table succeeded")
	}
	if _, ok := store.Snapshot().Lookup("chat"); !ok {
		t.Error("the last good snapshot is gone")
	}
}

func TestStoreListensAgainAfterItsConnectionBroke(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	store := follow(t, db)
	mustApply(t, db, full, catalogue.Options{})
	waitForModel(t, store, "chat")

	admin := db.Admin(t)
	var ended int
	err := admin.QueryRow(t.Context(), `
		SELECT count(pg_terminate_backend(pid))
		  FROM pg_stat_activity
		 WHERE datname = current_database() AND query LIKE 'LISTEN%'`).Scan(&ended)
	if err != nil || ended != 1 {
		t.Fatalf("ended %d listeners: %v", ended, err)
	}
	mustApply(t, db, "apiVersion: weir/v1\nmodels: [{name: late, operations: [chat], routes: [{pool: gpu}]}]\n", catalogue.Options{})
	waitForModel(t, store, "late")
}
