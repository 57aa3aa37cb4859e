package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/bench/section"
	"weir/billing"
)

// contest is many callers after a balance that doesn't suffice for all.
type contest struct {
	name     string
	replicas int
	callers  int
	requests int   // that the balance is worth
	holds    int64 // percent of its cost that a request holds at first
	slices   int   // in which it asks for money, as a stream does
}

const (
	requestNano = 1_000_000 // a tenth of a cent
	workTime    = 2 * time.Millisecond
)

// race has callers spend a balance down to nothing, through several replicas at
// once, and looks at what was spent and what was left.
func race(ctx context.Context, h *house) (string, error) {
	var out strings.Builder
	out.WriteString("### Racing for the last of a balance\n\n")
	fmt.Fprintf(&out, "Callers send one request after the other until they are refused. A request costs %s USD and works for %s in the mean, once for each slice of money. Where it holds more than it costs, as requests do whose output is not known, the rest goes back when it ends. Stranded is what nobody could spend at the end, beyond what one more request would have had to hold.\n\n",
		usd(requestNano), workTime)
	section.Head(&out, "balance, in requests", "callers", "replicas", "held at first", "slices", "completed", "refused", "overspent", "left", "stranded")
	for i, c := range []contest{
		{"json", 1, 200, 50, 100, 1},
		{"json3", 3, 200, 50, 100, 1},
		{"streams", 3, 200, 50, 100, 4},
		{"loose", 3, 200, 2000, 300, 1},
	} {
		h.say("racing: " + c.name)
		row, err := h.contest(ctx, fmt.Sprintf("race_%d", i), c)
		if err != nil {
			return "", fmt.Errorf("%s: %w", c.name, err)
		}
		section.Row(&out, row...)
	}
	return out.String(), nil
}

// contestant is one replica's part in a contest.
type contestant struct {
	funds   *billing.Funds
	settler *billing.Settler
}

func (h *house) contest(ctx context.Context, database string, c contest) ([]string, error) {
	b, err := h.database(ctx, database)
	if err != nil {
		return nil, err
	}
	defer b.close(ctx)
	tenant, balance := tenantNamed(1), int64(c.requests)*requestNano
	if _, err := b.worker.Exec(ctx, `SELECT weir_credit($1, 'paid', $2, 'opening')`, tenant, balance); err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	var replicas sync.WaitGroup
	contestants := make([]contestant, c.replicas)
	for i := range contestants {
		f := billing.NewFunds(slog.New(slog.DiscardHandler), b.worker, billing.FundsConfig{Replica: fmt.Sprintf("rep_%d", i)}, time.Now)
		contestants[i] = contestant{f, billing.NewSettler(slog.New(slog.DiscardHandler), b.worker, nil, billing.SettleConfig{}, time.Now)}
		replicas.Go(func() { _ = f.Run(running) })
	}
	defer replicas.Wait()
	defer stop()

	var completed, refused, ids atomic.Int64
	var failed atomic.Pointer[error]
	var callers sync.WaitGroup
	for i := range c.callers {
		callers.Go(func() {
			for failed.Load() == nil {
				switch err := contestants[i%c.replicas].request(ctx, c, tenant, int(ids.Add(1))); {
				case err == nil:
					completed.Add(1)
				case isBroke(err):
					refused.Add(1)
					return
				default:
					failed.Store(&err)
				}
			}
		})
	}
	callers.Wait()
	if err := failed.Load(); err != nil {
		return nil, *err
	}
	var left int64
	if err := b.admin.QueryRow(ctx, `SELECT balance_nano FROM wallets WHERE tenant_id = $1`, tenant).Scan(&left); err != nil {
		return nil, err
	}
	hold := requestNano * c.holds / 100 / int64(c.slices)
	return []string{
		fmt.Sprint(c.requests), fmt.Sprint(c.callers), fmt.Sprint(c.replicas), fmt.Sprintf("%d %%", c.holds), fmt.Sprint(c.slices),
		fmt.Sprint(completed.Load()), fmt.Sprint(refused.Load()), usd(max(-left, 0)), usd(left),
		fmt.Sprintf("%.2f %%", 100*float64(max(left-hold, 0))/float64(balance)),
	}, nil
}

// usd shows nano-USD.
func usd(nano int64) string { return fmt.Sprintf("%.6f", float64(nano)/1e9) }

func isBroke(err error) bool {
	_, ok := errors.AsType[*billing.Broke](err)
	return ok
}

// request is one exchange: it holds, works, asks for more as it goes, and
// settles what it cost. One that is cut short has cost what it held.
func (p contestant) request(ctx context.Context, c contest, tenant string, n int) error {
	slice := requestNano * c.holds / 100 / int64(c.slices)
	hold, err := p.funds.Hold(ctx, billing.HoldRequest{Tenant: tenant, Nodes: []string{tenant}, Nano: slice})
	if err != nil {
		return err
	}
	cost := int64(requestNano)
	for s := range c.slices {
		timer := time.NewTimer(time.Duration(rand.Int64N(int64(2 * workTime))))
		<-timer.C
		if s == c.slices-1 {
			break
		}
		if err = hold.Extend(ctx, slice); err != nil {
			cost = hold.Nano()
			break
		}
	}
	r := receipt(n, tenant)
	r.Mode, r.CostNano, r.Chunks = billing.ModeEnforce, cost, hold.Chunks()
	if stored := p.settler.Settle(ctx, r, nil); stored != nil {
		hold.Settle(cost)
		return stored
	}
	hold.Settle(cost)
	return err
}
