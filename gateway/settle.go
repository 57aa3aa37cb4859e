package gateway

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"weir/billing"
	"weir/gateway/admission"
	"weir/scheduler"
)

// finish ends the exchange, once: it ends the lease, frees the slots, stores
// the receipt, and tells log and metrics. A nil failure is success. It returns
// StoreDown or Internal where the receipt of a success could not be stored;
// whoever called it must then not show the answer's end.
func (x *exchange) finish(ctx context.Context, failure *Error) *Error {
	if x.finished {
		return nil
	}
	x.finished = true
	cause, whole := Success, failure == nil
	switch {
	case !whole:
		cause = failure.Cause
	case x.purse.cut:
		cause = BudgetExhausted
	}
	x.endLease(cause.result(), cause.reached())
	r := x.receipt(cause)

	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), x.g.cfg.SettleTimeout)
	defer cancel()
	stored := x.storeAndRelease(ctx, r, failure)
	x.pay(ctx, &r, stored)

	if whole && stored != nil {
		failure = &Error{Cause: storeCause(stored), Err: stored}
		r.Outcome = string(failure.Cause)
	}
	if failure == nil {
		x.g.retries.earn(x.pool.Name)
	}
	x.g.metrics.observe(x, r)
	if s := x.place.series; s != nil {
		x.g.epp.ended(s, &r, x.place.bytes, x.made)
	}
	x.report(ctx, r, failure)
	if whole {
		return failure
	}
	return nil
}

// storeAndRelease stores the receipt and frees the slots: at once where no intent
// is kept, else one after the other. An intent goes with the exchange, whose end
// is known here. It stays where what was used could not be stored at all: whoever
// finds it settles the exchange.
func (x *exchange) storeAndRelease(ctx context.Context, r billing.Receipt, failure *Error) error {
	used := counted(r.Usage)
	var releasing sync.WaitGroup
	if x.admitted && x.asked.Intent == nil {
		releasing.Go(func() { x.release(ctx, used) })
	}
	stored := x.store(ctx, x.tellable(r), failure)
	releasing.Wait()
	if x.admitted && x.asked.Intent != nil {
		if failure != nil && errors.Is(stored, billing.ErrUnavailable) {
			x.asked.Intent = nil
		}
		x.release(ctx, used)
	}
	return stored
}

// storeCause tells a store that is away, which a new try may find again, from a
// receipt that no try will store: a fault of ours.
func storeCause(err error) Cause {
	if errors.Is(err, billing.ErrReceipt) || errors.Is(err, billing.ErrRejected) {
		return Internal
	}
	return StoreDown
}

// endLease gives the endpoint back, if one is held.
func (x *exchange) endLease(result scheduler.Result, reached bool) {
	if x.lease == nil {
		return
	}
	u, _ := x.meter.usage(result == scheduler.Completed)
	x.lease.End(scheduler.Outcome{
		Result:       result,
		InputTokens:  int(u.InputUncached),
		CachedTokens: int(u.InputCached),
		OutputTokens: int(u.Output + u.Reasoning),
		Reached:      reached,
	})
	x.lease = nil
	x.g.running.remove(&x.held)
}

// release frees the slots and corrects what was charged. A store that doesn't
// hear of it lets the slots expire.
func (x *exchange) release(ctx context.Context, used admission.Counts) {
	if x.trace != nil {
		x.g.traces.remove(x.trace)
	}
	if err := x.g.deps.Limits.Release(ctx, &x.asked, used); err != nil {
		x.g.log.LogAttrs(ctx, slog.LevelWarn, "slots not released",
			slog.String("request_id", x.call.ID), slog.Any("error", err))
	}
}

// store writes the receipt of an exchange that was given a lease, and what
// belongs to it. A receipt is kept even where its effect can't be.
func (x *exchange) store(ctx context.Context, r billing.Receipt, failure *Error) error {
	if x.attempts == 0 {
		return nil
	}
	var effect func(*pgx.Batch)
	var lost error
	if x.call.Effect != nil {
		effect, lost = x.call.Effect(ctx, failure)
	}
	settled := x.g.deps.Receipts.Settle(ctx, r, effect)
	if effect != nil && failure != nil && errors.Is(settled, billing.ErrUnavailable) {
		settled = x.g.deps.Receipts.Settle(ctx, r, nil) // what was used is owed, whatever becomes of the rest
	}
	err := errors.Join(lost, settled)
	if err != nil {
		x.g.log.LogAttrs(ctx, slog.LevelError, "receipt not stored",
			slog.String("request_id", r.RequestID), slog.String("tenant", r.Tenant), slog.Any("error", err))
	}
	return err
}

// receipt is the record of what the exchange used and cost.
func (x *exchange) receipt(cause Cause) billing.Receipt {
	c, p := &x.call, x.call.Principal
	r := billing.Receipt{
		RequestID:       c.ID,
		ClientRequestID: c.ClientRequestID,
		Tenant:          string(p.Tenant),
		Project:         string(p.Project),
		Key:             string(p.Key),
		Operation:       string(c.Operation),
		Endpoint:        x.endpoint,
		Attempts:        x.attempts,
		Stream:          c.Stream,
		Band:            x.band,
		Priority:        x.priority,
		Tier:            string(x.tier),
		UsageSource:     billing.NoUsage,
		StartedAt:       c.ReceivedAt,
		QueueTime:       x.queued,
		TTFT:            x.ttft,
		Duration:        time.Since(c.ReceivedAt),
		Outcome:         string(cause),
	}
	if x.model != nil {
		r.Model = x.model.Name
	}
	if x.pool != nil {
		r.Pool = x.pool.Name
	}
	if x.attempts > 0 && cause.Effect().Billable {
		r.Usage, r.UsageSource = x.meter.usage(cause == Success)
		r.CachedTiers = x.meter.cachedTiers(r.Usage, r.UsageSource)
	}
	if x.priced {
		r.PriceVersion = x.price.Version
		cost, err := x.price.Cost(x.billed(r.Usage), x.tier)
		if err != nil { // a broken price or an absurd count: the usage is kept, the cost can be made up for
			x.g.log.Error("exchange not rated", slog.String("request_id", c.ID), slog.Any("error", err))
		}
		r.CostNano, r.SavedNano = cost.Nano, cost.SavedNano
	}
	r.Mode = x.purse.mode
	if x.purse.hold != nil {
		r.Chunks = x.purse.hold.Chunks()
	}
	return r
}

// report writes the exchange's one line.
func (x *exchange) report(ctx context.Context, r billing.Receipt, failure *Error) {
	h := x.g.log.Handler()
	if !h.Enabled(ctx, slog.LevelInfo) {
		return
	}
	line := slog.NewRecord(time.Now(), slog.LevelInfo, "exchange", 0) // by itself, as nobody asks where in the source this is
	line.AddAttrs(
		slog.String("request_id", r.RequestID),
		slog.String("tenant", r.Tenant),
		slog.String("key", r.Key),
		slog.String("operation", r.Operation),
		slog.String("model", r.Model),
		slog.String("band", r.Band),
		slog.String("endpoint", r.Endpoint),
		slog.Int("attempts", r.Attempts),
		slog.Int64("queue_ms", r.QueueTime.Milliseconds()),
		slog.Int64("ttft_ms", r.TTFT.Milliseconds()),
		slog.Int64("duration_ms", r.Duration.Milliseconds()),
		slog.Int64("tokens_in", r.Usage.InputUncached),
		slog.Int64("tokens_cached", r.Usage.InputCached),
		slog.Int64("tokens_out", r.Usage.Output+r.Usage.Reasoning),
		slog.Int64("cost_nano", r.CostNano),
		slog.String("outcome", r.Outcome),
	)
	if failure != nil && failure.Err != nil {
		line.AddAttrs(slog.String("error", failure.Err.Error()))
	}
	_ = h.Handle(ctx, line) // a log that can't be written has nobody to tell
}
