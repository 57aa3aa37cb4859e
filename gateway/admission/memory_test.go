package admission_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir/gateway/admission"
	"weir/gateway/admission/admissiontest"
)

// clock is a time that only a test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

// one is what a request costs where tokens don't matter.
var one = admission.Counts{Requests: 1}

// ask is a request of the tenant ten_a.
func ask(id string, nodes []admission.Node) *admission.Request {
	return &admission.Request{ID: id, Tenant: "ten_a", Nodes: nodes, Estimate: one}
}

func newClock() *clock { return &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestMemoryKeepsTheContract(t *testing.T) {
	t.Parallel()
	admissiontest.Test(t, func(t *testing.T) admissiontest.Fixture {
		t.Helper()
		c, dir := newClock(), t.TempDir()
		journal := openJournal(t, dir)
		return admissiontest.Fixture{
			Store:   admission.NewMemory(admission.MemoryConfig{Now: c.Now, Hold: time.Minute, Journal: journal}),
			Advance: c.Advance,
			SlotTTL: time.Minute,
			Die:     func(t *testing.T) admission.Intents { t.Helper(); return heir(t, dir, journal) },
		}
	})
}

func openJournal(t *testing.T, dir string) *admission.Journal {
	t.Helper()
	j, err := admission.OpenJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

// heir is the store of the process that comes after the one with the journal.
func heir(t *testing.T, dir string, journal *admission.Journal) *admission.Memory {
	t.Helper()
	if err := journal.Close(); err != nil { // the kernel would; nothing is written
		t.Fatal(err)
	}
	return admission.NewMemory(admission.MemoryConfig{Journal: openJournal(t, dir)})
}

func TestMemoryForgetsIdleNodesAndRefusesWhenAllAreLive(t *testing.T) {
	t.Parallel()
	c := newClock()
	m := admission.NewMemory(admission.MemoryConfig{Now: c.Now, MaxNodes: 64})
	node := func(i int) []admission.Node {
		return []admission.Node{{ID: fmt.Sprintf("ten_%d", i), Concurrency: 1}}
	}
	var live []int
	full := 0
	for i := range 1000 {
		switch _, err := m.Admit(t.Context(), ask("req", node(i))); {
		case err == nil:
			live = append(live, i)
		case errors.Is(err, admission.ErrFull):
			full++
		default:
			t.Fatal(err)
		}
	}
	if len(live) > 64 || full == 0 {
		t.Fatalf("%d nodes tracked, %d refused: want at most 64 tracked", len(live), full)
	}
	for _, i := range live {
		if err := m.Release(t.Context(), ask("req", node(i)), one); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 1000 { // each leaves before the next comes: room for ever
		if _, err := m.Admit(t.Context(), ask("req", node(i))); err != nil {
			t.Fatalf("node %d: %v", i, err)
		}
		if err := m.Release(t.Context(), ask("req", node(i)), one); err != nil {
			t.Fatal(err)
		}
	}
}

// A model that is written differently: the times of all admissions of a node.
// Whatever comes when, no window holds more than the burst and what came back.
func TestMemoryNeverExceedsRateOrSlots(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		c := newClock()
		m := admission.NewMemory(admission.MemoryConfig{Now: c.Now})
		node := admission.Node{
			ID:          "ten_a",
			PerMinute:   admission.Counts{Requests: rapid.IntRange(1, 2000).Draw(rt, "rpm")},
			Concurrency: rapid.IntRange(1, 5).Draw(rt, "slots"),
		}
		interval := time.Minute / time.Duration(node.PerMinute.Requests)
		var admitted []time.Time
		live := map[string]bool{}
		for i := range rapid.IntRange(1, 200).Draw(rt, "steps") {
			if rapid.Bool().Draw(rt, "release") {
				for id := range live {
					_ = m.Release(t.Context(), ask(id, []admission.Node{node}), one)
					delete(live, id)
					break
				}
			}
			c.Advance(time.Duration(rapid.Int64Range(0, int64(2*interval)).Draw(rt, "gap")))
			id := fmt.Sprintf("req_%d", i)
			v, err := m.Admit(t.Context(), ask(id, []admission.Node{node}))
			if err != nil {
				rt.Fatal(err)
			}
			if !v.Admitted {
				if v.Slots && len(live) < node.Concurrency {
					rt.Fatalf("refused for slots with %d of %d live", len(live), node.Concurrency)
				}
				continue
			}
			live[id] = true
			admitted = append(admitted, c.Now())
			if len(live) > node.Concurrency {
				rt.Fatalf("%d live, limit %d", len(live), node.Concurrency)
			}
			for j, from := range admitted {
				n := len(admitted) - j
				if most := node.PerMinute.Requests + int((c.Now().Sub(from)+time.Millisecond)/(interval-time.Microsecond)); n > most {
					rt.Fatalf("%d requests in %v, at most %d fit", n, c.Now().Sub(from), most)
				}
			}
		}
	})
}

func TestMemoryCallsThatNameManyNodesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	m := admission.NewMemory(admission.MemoryConfig{})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 500 {
				nodes := make([]admission.Node, admission.MaxNodes)
				for n := range nodes {
					nodes[n] = admission.Node{ID: fmt.Sprintf("ten_%d", (n*(w+1)+i)%97), Concurrency: 1000}
				}
				id := fmt.Sprintf("req_%d_%d", w, i)
				if _, err := m.Admit(t.Context(), ask(id, nodes)); err != nil {
					t.Errorf("admit: %v", err)
				}
				_ = m.Release(t.Context(), ask(id, nodes), one)
			}
		})
	}
	wg.Wait()
}

func BenchmarkMemoryAdmitAndRelease(b *testing.B) {
	m := admission.NewMemory(admission.MemoryConfig{})
	nodes := []admission.Node{
		{ID: "key_abcdefghijklmnopqrstuvwxyz", PerMinute: admission.Counts{Requests: 50_000_000}, Concurrency: 1000},
		{ID: "ten_abcdefghijklmnopqrstuvwxyz", PerMinute: admission.Counts{Requests: 50_000_000}, Concurrency: 1000},
	}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = m.Admit(b.Context(), ask("req_abcdefghijklmnopqrstuvwxyz", nodes))
		_ = m.Release(b.Context(), ask("req_abcdefghijklmnopqrstuvwxyz", nodes), one)
	}
}
