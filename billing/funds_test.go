package billing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// runFunds starts a Funds; the returned function ends it.
func runFunds(t till, cfg FundsConfig) (*Funds, func()) {
	f := newFunds(slog.New(slog.DiscardHandler), t, cfg, time.Now)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = f.Run(ctx) }()
	return f, func() { cancel(); <-ended }
}

// spendAll has callers ask at the replicas in turn, each for one request of the
// price, until everybody is done, and counts the admitted ones.
func spendAll(t *testing.T, b *bank, funds []*Funds, nodes []string, callers int, price int64, took time.Duration) int {
	t.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	admitted := 0
	for i := range callers {
		wg.Go(func() {
			h, err := funds[i%len(funds)].Hold(t.Context(), HoldRequest{Tenant: "ten_a", Nodes: nodes, Nano: price})
			if err != nil {
				if !isBroke(err) {
					t.Errorf("caller %d: %v", i, err)
				}
				return
			}
			time.Sleep(took)
			b.settle(nodes, h.Chunks(), price)
			h.Settle(price)
			mu.Lock()
			admitted++
			mu.Unlock()
		})
	}
	wg.Wait()
	return admitted
}

func TestCallersSpendABalanceToItsEndAndNeverMore(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{1, 3} {
		for _, took := range []time.Duration{0, 50 * time.Millisecond, time.Second} {
			t.Run(fmt.Sprintf("%d replicas, requests of %v", replicas, took), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					const price, worth = 1000, 50
					nodes := []string{"ten_a", "key_a"}
					b := newBank(map[string]int64{"ten_a": price * worth, "key_a": price * worth * 10})
					var funds []*Funds
					for i := range replicas {
						f, stop := runFunds(b.till(fmt.Sprint(i)), FundsConfig{})
						defer stop()
						funds = append(funds, f)
					}
					if got := spendAll(t, b, funds, nodes, 200, price, took); got != worth {
						t.Errorf("%d were admitted to a balance worth %d", got, worth)
					}
					time.Sleep(20 * time.Second)
					for node, want := range map[string]int64{"ten_a": 0, "key_a": price * worth * 9} {
						if w := b.wallet(node); w.balance != want || w.reserved != 0 || w.least < 0 {
							t.Errorf("%s: %+v, want a balance of %d", node, w, want)
						}
					}
					for _, f := range funds {
						if f.Open() != 0 || len(f.all()) != 0 {
							t.Errorf("%d holds and %d accounts are left", f.Open(), len(f.all()))
						}
					}
				})
			})
		}
	}
}

// A sequence of requests over three replicas spends all but what a request is
// short of: nothing is stranded in chunks of others.
func TestNothingIsStrandedInOtherReplicas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const price = 1000
		const balance = 1_000_000 + 999
		nodes := []string{"ten_a"}
		b := newBank(map[string]int64{"ten_a": balance})
		var funds []*Funds
		for i := range 3 {
			f, stop := runFunds(b.till(fmt.Sprint(i)), FundsConfig{})
			defer stop()
			funds = append(funds, f)
		}
		for i := range 10 * balance / price {
			h, err := funds[i%3].Hold(t.Context(), HoldRequest{Tenant: "ten_a", Nodes: nodes, Nano: price})
			if err != nil {
				if left := b.wallet("ten_a").balance; !isBroke(err) || left*100 > balance {
					t.Errorf("%v with %d of %d left", err, left, balance)
				}
				break
			}
			b.settle(nodes, h.Chunks(), price)
			h.Settle(price)
			time.Sleep(time.Millisecond)
		}
		if left := b.wallet("ten_a").balance; left >= price {
			t.Errorf("%d are left, which is worth a request", left)
		}
	})
}

func TestHoldsAreAllOrNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank(map[string]int64{"ten_a": 1000, "prj_a": 500, "key_a": 100})
		f, stop := runFunds(b.till("r"), FundsConfig{})
		all := []string{"ten_a", "prj_a", "key_a"}
		_, err := f.Hold(t.Context(), HoldRequest{Tenant: "ten_a", Nodes: all, Nano: 101})
		if broke, ok := errors.AsType[*Broke](err); !ok || broke.Node != "key_a" || broke.AvailableNano != 100 {
			t.Errorf("got %v, want key_a to have 100", err)
		}
		h, err := f.Hold(t.Context(), HoldRequest{Tenant: "ten_a", Nodes: all, Nano: 100})
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Extend(t.Context(), 1); !isBroke(err) || h.Nano() != 100 {
			t.Errorf("an extension beyond the key's wallet: %v, %d held", err, h.Nano())
		}
		h.Shrink(40)
		other, err := f.Hold(t.Context(), HoldRequest{Tenant: "ten_a", Nodes: all, Nano: 60})
		if err != nil {
			t.Errorf("what another gave back can't be had: %v", err)
		}
		other.Release()
		other.Release()
		h.Settle(0)
		h.Settle(40)
		stop()
		for node, want := range map[string]int64{"ten_a": 1000, "prj_a": 500, "key_a": 100} {
			if w := b.wallet(node); w.balance != want || w.reserved != 0 {
				t.Errorf("%s: %+v", node, w)
			}
		}
		if len(b.chunks) != 0 || f.Open() != 0 {
			t.Errorf("%d chunks, %d holds are left", len(b.chunks), f.Open())
		}
	})
}

// Who asks again and again with a key whose cap is spent is nobody else's matter:
// other keys of the tenant are served out of large chunks, and are not refused.
func TestASpentKeyLeavesOtherKeysOfARichTenantFast(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const price, rich = 1000, 1_000_000_000_000
		b := newBank(map[string]int64{"ten_a": rich, "key_spent": price / 2, "key_rich": rich})
		f, stop := runFunds(b.till("r"), FundsConfig{})
		defer stop()
		ask := func(key string) error {
			nodes := []string{"ten_a", key}
			h, err := f.Hold(t.Context(), HoldRequest{Tenant: "ten_a", Nodes: nodes, Nano: price})
			if err == nil {
				b.settle(nodes, h.Chunks(), price)
				h.Settle(price)
			}
			return err
		}
		var polling sync.WaitGroup
		over := make(chan struct{})
		polling.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(50 * time.Millisecond):
				}
				if broke, ok := errors.AsType[*Broke](ask("key_spent")); !ok || broke.Node != "key_spent" {
					t.Errorf("the spent key got %v", broke)
				}
			}
		})
		const holds = 10_000
		for range holds {
			if err := ask("key_rich"); err != nil {
				t.Errorf("the rich key: %v", err)
				break
			}
			time.Sleep(time.Millisecond)
		}
		close(over)
		polling.Wait()
		if b.draws > holds/100 {
			t.Errorf("%d draws for %d holds", b.draws, holds)
		}
	})
}

func TestATopUpIsNoticedWithinTwoSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank(map[string]int64{"ten_a": 10})
		f, stop := runFunds(b.till("r"), FundsConfig{})
		defer stop()
		ask := HoldRequest{Tenant: "ten_a", Nodes: []string{"ten_a"}, Nano: 100}
		for range 50 {
			if _, err := f.Hold(t.Context(), ask); !isBroke(err) {
				t.Fatal(err)
			}
		}
		if b.draws > 10 {
			t.Errorf("%d draws for callers without money", b.draws)
		}
		b.mu.Lock()
		b.wallets["ten_a"].balance = 100
		b.mu.Unlock()
		time.Sleep(longestRefusal + time.Millisecond)
		h, err := f.Hold(t.Context(), ask)
		if err != nil {
			t.Fatal(err)
		}
		h.Release()
	})
}

// What is here goes on while Postgres is away, until the chunks run out or
// their time does; then nobody waits for an answer that doesn't come.
func TestWhilePostgresIsAwayChunksServeUntilTheyExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank(map[string]int64{"ten_a": 1_000_000})
		till := b.till("r")
		f, stop := runFunds(till, FundsConfig{Idle: time.Hour})
		defer stop()
		ask := func(nano int64) error {
			h, err := f.Hold(t.Context(), HoldRequest{Tenant: "ten_a", Nodes: []string{"ten_a"}, Nano: nano})
			if err == nil {
				h.Release()
			}
			return err
		}
		if err := ask(1000); err != nil {
			t.Fatal(err)
		}
		till.setAway(true)
		if err := ask(1000); err != nil {
			t.Errorf("a hold within the chunk: %v", err)
		}
		if err := ask(500_000); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a hold beyond the chunk: %v", err)
		}
		time.Sleep(31 * time.Second)
		if err := ask(1000); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a chunk that was not renewed in time was used: %v", err)
		}
		till.setAway(false)
		time.Sleep(6 * time.Second)
		if err := ask(1000); err != nil {
			t.Errorf("Postgres is back: %v", err)
		}
	})
}

func TestAChunkThatPostgresClosedIsNotUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank(map[string]int64{"ten_a": 1000})
		till := b.till("r")
		f, stop := runFunds(till, FundsConfig{Idle: time.Hour})
		defer stop()
		h, err := f.Hold(t.Context(), HoldRequest{Tenant: "ten_a", Nodes: []string{"ten_a"}, Nano: 900})
		if err != nil {
			t.Fatal(err)
		}
		till.setAway(true)
		time.Sleep(time.Minute)
		b.closeExpired()
		till.setAway(false)
		time.Sleep(6 * time.Second)
		if got := h.Chunks(); len(got) != 0 {
			t.Errorf("chunks %v are closed", got)
		}
		// The exchange that began with it is still to be paid.
		if _, err := f.Hold(t.Context(), HoldRequest{Tenant: "ten_a", Nodes: []string{"ten_a"}, Nano: 200}); !isBroke(err) {
			t.Errorf("what runs already was forgotten: %v", err)
		}
		b.settle([]string{"ten_a"}, h.Chunks(), 900)
		h.Settle(900)
	})
}

func TestIdlePartsGoBackButNotWhileReceiptsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var behind atomic.Bool
		behind.Store(true)
		b := newBank(map[string]int64{"ten_a": 1_000_000})
		f, stop := runFunds(b.till("r"), FundsConfig{Behind: behind.Load})
		defer stop()
		h, err := f.Hold(t.Context(), HoldRequest{Tenant: "ten_a", Nodes: []string{"ten_a"}, Nano: 500})
		if err != nil {
			t.Fatal(err)
		}
		h.Settle(500) // spooled: Postgres doesn't know
		time.Sleep(time.Minute)
		if got := b.wallet("ten_a").reserved; got < 500 {
			t.Errorf("%d are reserved while a receipt of 500 waits", got)
		}
		b.settle([]string{"ten_a"}, []int64{1}, 500)
		behind.Store(false)
		time.Sleep(time.Minute)
		if w := b.wallet("ten_a"); w.reserved != 0 || w.balance != 999_500 {
			t.Errorf("left over: %+v", w)
		}
	})
}

// However holds, settlements, outages, returns, expiries and top-ups follow one
// another: what is spent was there, nothing is reserved that nobody holds, and
// in the end every nano-USD is accounted for.
func TestMoneyIsConserved(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(*testing.T) { conserve(rt) })
	})
}

type openHold struct {
	*Hold

	nodes []string
}

func conserve(t *rapid.T) {
	opening := map[string]int64{
		"ten_a": rapid.Int64Range(0, 100_000).Draw(t, "tenant"), "key_a": rapid.Int64Range(0, 100_000).Draw(t, "key"),
	}
	b := newBank(opening)
	var funds []*Funds
	var stops []func()
	var tills []*bankTill
	for i := range 2 {
		tills = append(tills, b.till(fmt.Sprint(i)))
		f, stop := runFunds(tills[i], FundsConfig{})
		funds, stops = append(funds, f), append(stops, stop)
	}
	var holds []openHold
	pick := func() openHold {
		if len(holds) == 0 {
			t.Skip("none")
		}
		i := rapid.IntRange(0, len(holds)-1).Draw(t, "hold")
		h := holds[i]
		holds = append(holds[:i], holds[i+1:]...)
		return h
	}
	end := func(h openHold, cost int64) {
		b.settle(h.nodes, h.Chunks(), cost)
		for _, node := range h.nodes {
			opening[node] -= cost
		}
		h.Settle(cost)
	}
	t.Repeat(map[string]func(*rapid.T){
		"hold": func(t *rapid.T) {
			nodes := rapid.SampledFrom([][]string{{"ten_a"}, {"ten_a", "key_a"}}).Draw(t, "nodes")
			f := rapid.SampledFrom(funds).Draw(t, "replica")
			h, err := f.Hold(context.Background(), HoldRequest{Tenant: "ten_a", Nodes: nodes, Nano: rapid.Int64Range(0, 20_000).Draw(t, "nano")})
			if err == nil {
				holds = append(holds, openHold{h, nodes})
			} else if !isBroke(err) && !errors.Is(err, ErrUnavailable) {
				t.Fatal(err)
			}
		},
		"extend": func(t *rapid.T) {
			h := pick()
			_ = h.Extend(context.Background(), rapid.Int64Range(0, 10_000).Draw(t, "nano"))
			holds = append(holds, h)
		},
		"shrink": func(t *rapid.T) {
			h := pick()
			h.Shrink(rapid.Int64Range(0, h.Nano()).Draw(t, "to"))
			holds = append(holds, h)
		},
		"settle": func(t *rapid.T) {
			h := pick()
			end(h, rapid.Int64Range(0, h.Nano()).Draw(t, "cost"))
		},
		"top up": func(t *rapid.T) {
			node, nano := rapid.SampledFrom([]string{"ten_a", "key_a"}).Draw(t, "node"), rapid.Int64Range(0, 10_000).Draw(t, "nano")
			b.mu.Lock()
			b.wallets[node].balance += nano
			b.mu.Unlock()
			opening[node] += nano
		},
		"short outage": func(t *rapid.T) {
			till := rapid.SampledFrom(tills).Draw(t, "replica")
			till.setAway(true)
			time.Sleep(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
			till.setAway(false)
		},
		"answers that get lost": func(t *rapid.T) {
			till := rapid.SampledFrom(tills).Draw(t, "replica")
			till.setDeaf(true)
			f := funds[0]
			if till == tills[1] {
				f = funds[1]
			}
			h, err := f.Hold(context.Background(), HoldRequest{Tenant: "ten_a", Nodes: []string{"ten_a"}, Nano: rapid.Int64Range(0, 20_000).Draw(t, "nano")})
			time.Sleep(time.Duration(rapid.IntRange(0, 12).Draw(t, "seconds")) * time.Second)
			till.setDeaf(false)
			if err == nil {
				h.Release()
			}
		},
		"time": func(t *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(0, 12_000).Draw(t, "ms")) * time.Millisecond)
		},
		"": func(t *rapid.T) {
			b.mu.Lock()
			defer b.mu.Unlock()
			sums := map[string]int64{}
			for _, c := range b.chunks {
				sums[c.node] += c.left
			}
			for node, w := range b.wallets {
				if w.least < 0 || w.reserved < 0 || w.reserved > w.balance || w.reserved != sums[node] {
					t.Fatalf("%s: %+v with %d in chunks", node, w, sums[node])
				}
			}
		},
	})
	for _, h := range holds {
		end(h, 0)
	}
	for i, f := range funds {
		stops[i]()
		if f.Open() != 0 {
			t.Fatalf("%d holds are left", f.Open())
		}
	}
	// A chunk of whose making nobody heard is closed when its time is over.
	time.Sleep(time.Minute)
	b.closeExpired()
	for node, w := range b.wallets {
		if w.balance != opening[node] || w.reserved != 0 {
			t.Fatalf("%s in the end: %+v, want %d", node, w, opening[node])
		}
	}
}

func BenchmarkHold(b *testing.B) {
	bank := newBank(map[string]int64{"ten_a": 1 << 60, "prj_a": 1 << 60, "key_a": 1 << 60})
	f := newFunds(slog.New(slog.DiscardHandler), bank.till("r"), FundsConfig{ChunkMax: 1 << 58}, time.Now)
	r := HoldRequest{Tenant: "ten_a", Nodes: []string{"ten_a", "prj_a", "key_a"}, Nano: 1}
	b.ReportAllocs()
	for b.Loop() {
		h, err := f.Hold(b.Context(), r)
		if err != nil {
			b.Fatal(err)
		}
		h.Settle(1)
	}
}

// While one key's hold waits for what other processes return of its wallet,
// another key of the tenant that needs a draw has it at once.
func TestARefusedKeyDelaysNoOtherKeyOfItsTenant(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const price, rich = 1000, 1_000_000_000
		b := newBank(map[string]int64{"ten_a": rich, "key_poor": price / 2, "key_rich": rich})
		f, stop := runFunds(b.till("r"), FundsConfig{})
		defer stop()
		began := time.Now()
		hold := func(key string) (*Hold, error) {
			return f.Hold(t.Context(), HoldRequest{Tenant: "ten_a", Nodes: []string{"ten_a", key}, Nano: price})
		}
		refused := make(chan error, 2)
		for range cap(refused) { // the second waits with the first, and asks nobody
			go func() {
				_, err := hold("key_poor")
				refused <- err
			}()
		}
		synctest.Wait()
		h, err := hold("key_rich")
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("the other key waited for %v", took)
		}
		h.Release()
		for range cap(refused) {
			if broke, ok := errors.AsType[*Broke](<-refused); !ok || broke.Node != "key_poor" {
				t.Errorf("the poor key got %v", broke)
			}
		}
		if took := time.Since(began); took < 200*time.Millisecond || took > 300*time.Millisecond {
			t.Errorf("it was refused after %v", took)
		}
		time.Sleep(20 * time.Second)
		if w := b.wallet("ten_a"); w.reserved != 0 || f.Open() != 0 {
			t.Errorf("%+v is left, %d holds", w, f.Open())
		}
	})
}

// A refusal tells what is held, and may come back, from what is spent.
func TestARefusalTellsWhatIsHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBank(map[string]int64{"ten_a": 10_000})
		f, stop := runFunds(b.till("one"), FundsConfig{})
		defer stop()
		other, stopOther := runFunds(b.till("two"), FundsConfig{})
		defer stopOther()
		ask := func(f *Funds, nano int64) (*Hold, *Broke) {
			h, err := f.Hold(t.Context(), HoldRequest{Tenant: "ten_a", Nodes: []string{"ten_a"}, Nano: nano})
			broke, _ := errors.AsType[*Broke](err)
			return h, broke
		}
		held, _ := ask(other, 7_000)
		if _, broke := ask(f, 5_000); broke == nil || broke.AvailableNano != 3_000 || broke.HeldNano != 7_000 {
			t.Errorf("while another holds it: %+v", broke)
		}
		if _, broke := ask(f, 5_000); broke == nil || broke.HeldNano != 7_000 {
			t.Errorf("told again: %+v", broke)
		}
		b.settle([]string{"ten_a"}, held.Chunks(), 7_000)
		held.Settle(7_000)
		time.Sleep(20 * time.Second)
		if _, broke := ask(f, 5_000); broke == nil || broke.AvailableNano != 3_000 || broke.HeldNano != 0 {
			t.Errorf("when it is spent: %+v", broke)
		}
	})
}
