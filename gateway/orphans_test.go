package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/billing"
	"weir/gateway"
	"weir/gateway/admission"
	"weir/gateway/catalogue"
)

// chunks are what one dead replica left. It notes how many receipts there were
// when they were closed.
type chunks struct {
	ledger *ledger
	closed []string
	before int
}

func (c *chunks) Replicas(context.Context) ([]string, error) { return []string{"rep_dead"}, nil }

func (c *chunks) Close(_ context.Context, replica string) (int64, error) {
	c.closed, c.before = append(c.closed, replica), len(c.ledger.all())
	return 700, nil
}

// oldBook has a price that is no longer the model's, and the one that is.
type oldBook struct{}

func (oldBook) Snapshot() *catalogue.Snapshot {
	rates := billing.Rates{Input: 1_000_000, CachedInput: 500_000, Output: 2_000_000, Reasoning: 2_000_000}
	dearer := billing.Rates{Input: 9_000_000, CachedInput: 9_000_000, Output: 9_000_000, Reasoning: 9_000_000}
	return &catalogue.Snapshot{Prices: billing.NewBook([]billing.Price{
		{Model: "pub", Version: 7, Tiers: billing.DefaultTiers(), Rates: rates},
		{Model: "pub", Version: 8, Tiers: billing.DefaultTiers(), Rates: dearer, EffectiveFrom: time.Now().Add(-time.Minute)},
	})}
}

// left is the journal of a process that died with three requests under way.
func left(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	j, err := admission.OpenJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := admission.NewMemory(admission.MemoryConfig{Journal: j})
	for i := range 3 {
		in := &admission.Intent{
			Request: fmt.Sprintf("req_%d", i), Tenant: "ten_a", Project: "prj_a", Key: "key_a", Model: "pub", Operation: "chat", Tier: "default",
			Mode: "enforce", PriceVersion: 7, Prompt: 100, StartedAt: time.Now().Add(-time.Minute), Replica: "rep_dead", Chunks: []int64{3},
		}
		if v, err := m.Admit(t.Context(), &admission.Request{ID: in.Request, Tenant: in.Tenant, Intent: in}); err != nil || !v.Admitted {
			t.Fatal(v, err)
		}
	}
	if err := m.Checkpoint(t.Context(), []admission.Progress{
		{Tenant: "ten_a", Request: "req_1", Dispatched: true},
		{Tenant: "ten_a", Request: "req_2", Dispatched: true, Input: 90, Cached: 30, Output: 40},
	}); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func sweeper(t *testing.T, dir string) (o *gateway.Orphans, l *ledger, c *chunks, reg *prometheus.Registry) {
	t.Helper()
	j, err := admission.OpenJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	l, reg = &ledger{}, prometheus.NewRegistry()
	c = &chunks{ledger: l}
	return gateway.NewOrphans(slog.New(slog.DiscardHandler), reg, admission.NewMemory(admission.MemoryConfig{Journal: j}), c, l, oldBook{}), l, c, reg
}

func TestOrphansAreBilledAsFarAsTheyAreKnownToHaveCome(t *testing.T) {
	t.Parallel()
	o, l, c, reg := sweeper(t, left(t))
	if n, err := o.Sweep(t.Context(), nil); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	want := map[string]struct {
		usage    billing.Usage
		cost     int64
		attempts int
	}{
		"req_0": {},
		"req_1": {billing.Usage{InputUncached: 100}, 100_000, 1},
		"req_2": {billing.Usage{InputUncached: 60, InputCached: 30, Output: 40}, 155_000, 1},
	}
	for _, r := range l.all() {
		w := want[r.RequestID]
		if r.Usage != w.usage || r.CostNano != w.cost || r.Attempts != w.attempts {
			t.Errorf("%s: %+v, %d nano-USD in %d attempts, want %+v", r.RequestID, r.Usage, r.CostNano, r.Attempts, w)
		}
		if r.Outcome != "orphaned" || r.SettledBy != billing.BySweeper || r.Mode != billing.ModeEnforce || len(r.Chunks) != 1 || r.Project != "prj_a" || r.Key != "key_a" {
			t.Errorf("%s: %+v", r.RequestID, r)
		}
		delete(want, r.RequestID)
	}
	if len(want) > 0 {
		t.Errorf("without a receipt: %v", want)
	}
	if len(c.closed) != 1 || c.before != 3 {
		t.Errorf("chunks of %v were closed after %d of 3 receipts", c.closed, c.before)
	}
	for name, value := range map[string]float64{"weir_billing_orphans_total": 3, "weir_billing_unaccounted_nano_total": 700} {
		if sum := sumOf(t, reg, name); sum != value {
			t.Errorf("%s %v, want %v", name, sum, value)
		}
	}
	if n, err := o.Sweep(t.Context(), nil); n != 0 || err != nil {
		t.Errorf("the next sweep settled %d more: %v", n, err)
	}
}

// A process that starts settles what is its own, and touches nobody's money: it
// doesn't know yet who lives.
func TestWhatIsOwnIsSettledWithoutTouchingOthers(t *testing.T) {
	t.Parallel()
	o, _, c, _ := sweeper(t, left(t))
	if n, err := o.SettleOwn(t.Context()); n != 3 || err != nil || len(c.closed) > 0 {
		t.Errorf("%d settled, %v, closed %v", n, err, c.closed)
	}
}

func sumOf(t *testing.T, reg *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// What can't be stored now is kept for the next sweep, and so is the money that
// is set aside for it.
func TestAnOrphanThatCannotBeStoredWaits(t *testing.T) {
	t.Parallel()
	o, l, c, _ := sweeper(t, left(t))
	l.err = fmt.Errorf("%w: away", billing.ErrUnavailable)
	if _, err := o.Sweep(t.Context(), nil); !errors.Is(err, billing.ErrUnavailable) || len(c.closed) > 0 {
		t.Fatalf("%v, closed %v", err, c.closed)
	}
	l.err = nil
	if n, err := o.Sweep(t.Context(), nil); n != 3 || err != nil || len(c.closed) != 1 {
		t.Errorf("then: %d settled, %v, closed %v", n, err, c.closed)
	}
}

// One that Postgres will never take doesn't hold up the others.
func TestAnOrphanThatNobodyTakesIsGivenUp(t *testing.T) {
	t.Parallel()
	o, l, c, reg := sweeper(t, left(t))
	l.err = billing.ErrRejected
	if n, err := o.Sweep(t.Context(), nil); err != nil || len(c.closed) != 1 {
		t.Errorf("%d, %v, closed %v", n, err, c.closed)
	}
	if sumOf(t, reg, "weir_billing_orphans_total") != 0 {
		t.Error("counted as settled")
	}
}
