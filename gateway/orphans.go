package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/billing"
	"weir/gateway/admission"
	"weir/tenants"
)

// orphaned is the outcome of an exchange whose replica died before it ended.
const orphaned = "orphaned"

// Orphans settles exchanges that their replica left behind when it died, from
// the intents that it had written down. It is safe for concurrent use: an
// exchange that two settle, or that its replica settled after all, has one
// receipt.
type Orphans struct {
	log      *slog.Logger
	intents  admission.Intents
	chunks   Chunks
	receipts Settler
	prices   func() *billing.Book
	settled  *prometheus.CounterVec
	lost     prometheus.Counter
}

// Chunks are the parts of wallets that replicas held when they died.
type Chunks interface {
	// Replicas names those that left any.
	Replicas(ctx context.Context) ([]string, error)
	// Close gives back what one left, and returns how many nano-USD that was.
	Close(ctx context.Context, replica string) (leftNano int64, err error)
}

// NewOrphans reads intents and writes receipts, at the prices of the catalogue.
func NewOrphans(log *slog.Logger, reg prometheus.Registerer, intents admission.Intents, chunks Chunks, receipts Settler, c Catalogue) *Orphans {
	o := &Orphans{
		log: log, intents: intents, chunks: chunks, receipts: receipts,
		prices: func() *billing.Book { return c.Snapshot().Prices },
		settled: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "weir_billing_orphans_total",
			Help: "Exchanges of replicas that died, settled from what was written down of them: billed as far as they were known to be, or unsent.",
		}, []string{"state"}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_billing_unaccounted_nano_total",
			Help: "Nano-USD that replicas held when they died and that no request is known to have used: what was used of it without a trace is at most this.",
		}),
	}
	for _, state := range [...]string{"billed", "unsent"} {
		o.settled.WithLabelValues(state)
	}
	reg.MustRegister(o.settled, o.lost)
	return o
}

const (
	orphanBatch   = 200
	orphanWriters = 50 // that share transactions
)

// SettleOwn settles what earlier processes left in the state folder of this one.
// It returns how many receipts that made. After an error what is left stays for
// the next time.
func (o *Orphans) SettleOwn(ctx context.Context) (n int, err error) { return o.sweep(ctx, nil) }

// Sweep settles what replicas left that are gone for good, those that hold money
// and are not known any more among them; then it gives back what they held. It
// is for a replica that knows who lives. The returns are those of SettleOwn.
func (o *Orphans) Sweep(ctx context.Context, gone []string) (n int, err error) {
	holders, err := o.chunks.Replicas(ctx)
	if err != nil {
		return 0, err
	}
	gone = slices.Concat(gone, holders)
	slices.Sort(gone)
	if n, err = o.sweep(ctx, slices.Compact(gone)); err != nil {
		return n, err
	}
	for _, replica := range holders {
		left, err := o.chunks.Close(ctx, replica)
		o.lost.Add(float64(left))
		if err != nil {
			return n, err
		}
		o.log.WarnContext(ctx, "gave back what a dead replica held", "replica", replica, "unaccounted_nano", left)
	}
	return n, nil
}

func (o *Orphans) sweep(ctx context.Context, dead []string) (n int, err error) {
	for {
		found, err := o.intents.Orphans(ctx, dead, orphanBatch)
		if err != nil || len(found) == 0 {
			return n, err
		}
		done, err := o.settle(ctx, found)
		n += len(done)
		if err := errors.Join(err, o.intents.Forget(ctx, done)); err != nil {
			return n, err
		}
	}
}

// settle writes the receipts of a batch and returns whose are stored. One that
// Postgres will never take is given up, and said.
func (o *Orphans) settle(ctx context.Context, found []admission.Intent) (done []admission.Intent, err error) {
	var (
		mu      sync.Mutex
		writing sync.WaitGroup
		free    = make(chan struct{}, orphanWriters)
	)
	for _, in := range found {
		free <- struct{}{}
		writing.Go(func() {
			defer func() { <-free }()
			r := o.receipt(&in)
			fault := o.receipts.Settle(ctx, r, nil)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case fault == nil:
				state := "billed"
				if !in.Dispatched {
					state = "unsent"
				}
				o.settled.WithLabelValues(state).Inc()
			case storeCause(fault) == Internal:
				o.log.ErrorContext(ctx, "orphan not settled", "request_id", in.Request, "tenant", in.Tenant, "error", fault)
			default:
				err = errors.Join(err, fault)
				return
			}
			done = append(done, in)
		})
	}
	writing.Wait()
	if len(done) > 0 {
		o.log.WarnContext(ctx, "settled exchanges of a replica that died", "count", len(done), "replica", done[0].Replica)
	}
	return done, err
}

// receipt bills an orphan for what it is known to have used: its input if a
// model server had it, and output as of the last checkpoint. What came after
// that is our loss, never the tenant's: who holds more pays no more.
func (o *Orphans) receipt(in *admission.Intent) billing.Receipt {
	r := billing.Receipt{
		RequestID: in.Request, Tenant: in.Tenant, Project: in.Project, Key: in.Key,
		Operation: in.Operation, Model: in.Model, Tier: in.Tier, UsageSource: billing.NoUsage,
		StartedAt: in.StartedAt, Duration: max(time.Since(in.StartedAt), 0), Outcome: orphaned,
		Mode: billing.Mode(in.Mode), SettledBy: billing.BySweeper, Chunks: in.Chunks,
	}
	if !in.Dispatched {
		return r
	}
	r.Attempts, r.UsageSource = 1, billing.GatewayCount
	cached := min(in.Cached, in.Input)
	r.Usage = billing.Usage{InputUncached: in.Input - cached, InputCached: cached, Output: in.Output}
	if in.Input == 0 {
		r.Usage.InputUncached = in.Prompt
	}
	price, ok := o.prices().Version(in.PriceVersion)
	if !ok {
		return r
	}
	cost, err := price.Cost(r.Usage, tenants.Tier(in.Tier))
	if err != nil { // as in an exchange: the usage is kept, the cost can be made up for
		o.log.Error("orphan not rated", "request_id", in.Request, "error", fmt.Errorf("price %d: %w", in.PriceVersion, err))
		return r
	}
	r.PriceVersion, r.CostNano, r.SavedNano = price.Version, cost.Nano, cost.SavedNano
	return r
}
