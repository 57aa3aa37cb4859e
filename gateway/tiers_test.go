package gateway_test

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/billing"
	"weir/gateway"
	"weir/migrations/pgtest"
	"weir/scheduler/enginesim"
)

// The engine's own memory holds a prompt and a part of another one, host memory
// some of what was evicted, and storage the rest.
func TestAStoredReceiptTellsWhereItsCachedInputLay(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	settler := billing.NewSettler(slog.New(slog.DiscardHandler), db.Worker, nil, billing.SettleConfig{}, time.Now)
	for _, tt := range []struct {
		kind   string // of engine, in the catalogue
		stream bool
		told   bool
	}{
		{"sglang", false, true},
		{"sglang", true, true},
		{"vllm", false, false}, // which isn't asked
		{"vllm", true, false},
	} {
		sim := enginesim.New(enginesim.Config{
			Models: []string{"org/engine"}, ZeroLatency: true, MetricNames: enginesim.SGLang,
			KVBlocks: 32, HostBlocks: 2, StorageBlocks: 100,
		})
		server := httptest.NewServer(sim)
		t.Cleanup(func() {
			server.Close()
			sim.Close()
		})
		h := build(t, []string{server.URL}, func(h *house) {
			pool, _ := h.snapshot.Pool(poolName)
			pool.Endpoints[0].Engine = tt.kind
			h.ledger.next = settler
		})
		id := ""
		for i, word := range []string{"first", "second", "first"} {
			id = fmt.Sprintf("req_%s_%v_%d", tt.kind, tt.stream, i)
			to := &caller{}
			err := h.Run(t.Context(), h.call(func(c *gateway.Call) {
				c.ID, c.Stream = id, tt.stream
				c.Fields = fmt.Appendf(nil, `"messages":[{"role":"user","content":%q}],"max_tokens":2`, strings.Repeat(word+" ", 190))
			}), to)
			if err != nil || strings.Contains(to.text(), "sglext") {
				t.Fatal(err, to.text())
			}
		}
		r := stored(t, db, id)
		tiers, cached := r.CachedTiers, r.Usage.InputCached
		switch {
		case cached == 0:
			t.Errorf("%s: nothing was cached", id)
		case !tt.told && tiers != nil:
			t.Errorf("%s: %+v, though nobody said so", id, tiers)
		case tt.told && (tiers == nil || tiers.Device(cached) <= 0 || tiers.Host != 2*16 || tiers.Storage <= 0):
			t.Errorf("%s: %+v of %d cached tokens, want some of them in each memory, and the host's full", id, tiers, cached)
		}
	}
}

// stored reads a receipt of the house's tenant from the database.
func stored(t *testing.T, db *pgtest.DB, id string) billing.Settled {
	t.Helper()
	var page billing.Page
	err := pgx.BeginFunc(t.Context(), db.App, func(tx pgx.Tx) (err error) {
		if _, err := tx.Exec(t.Context(), `SELECT set_config('weir.tenant_id', 'ten_a', true)`); err != nil {
			return err
		}
		page, err = billing.Receipts(t.Context(), tx, "ten_a", billing.Filter{RequestID: id})
		return err
	})
	if err != nil || len(page.Receipts) != 1 {
		t.Fatal(page.Receipts, err)
	}
	return page.Receipts[0]
}
