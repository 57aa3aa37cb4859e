package gateway

import (
	"context"
	"errors"
	"io"
	"math"

	"weir/billing"
)

// budgetNote is what the last chunk of a stream has beside OpenAI's members,
// when it ends because the money did.
const budgetNote = `"weir":{"code":"` + string(BudgetExhausted) + `"}`

// spend looks after the hold of a stream of which more has come. It reports
// whether the stream has to end here, because the money does.
func (x *exchange) spend(ctx context.Context) (end bool) {
	u := &x.purse
	if u.hold == nil || x.meter.output < u.checkAt {
		return false
	}
	used := x.used()
	slice := x.g.cfg.HoldSlice * x.choices()
	if u.limit > 0 && used > u.limit { // the engine doesn't heed it
		u.limit = 0
	}
	if left := u.covered - used; left <= slice/4 && !u.final && (u.limit == 0 || u.covered < u.limit) {
		x.extend(ctx, used+slice)
	}
	left := u.covered - used
	if left <= 0 && u.final {
		x.extend(ctx, used+slice) // somebody may have paid meanwhile
		left = u.covered - used
	}
	// An event of a stream has a few tokens, whatever it was counted as.
	u.checkAt = x.meter.output + max(left/spareOutput, 1)
	return left <= 0 && (u.limit == 0 || u.covered < u.limit) && u.final
}

// used is the output so far. Once the engine has told its input, the hold is
// for that.
func (x *exchange) used() int64 {
	use, source := x.meter.usage(false)
	if u := &x.purse; !u.counted && source == billing.UpstreamPartial {
		x.countedInput(x.billed(use))
		if nano := x.most(u.covered); nano <= u.hold.Nano() {
			u.hold.Shrink(nano)
		} else {
			u.covered = min(u.covered, x.affords(u.hold.Nano(), u.covered))
		}
	}
	return use.Output + use.Reasoning
}

// countedInput takes in what the engine says of the prompt.
func (x *exchange) countedInput(use billing.Usage) {
	u := &x.purse
	use.Output, use.Reasoning = 0, 0
	if cost, err := x.price.Cost(use, x.tier); err == nil {
		u.counted, u.input, u.inputNano = true, use.Input(), cost.Nano
	}
}

// extend fills the hold up to so many output tokens, or to as many as the money
// affords.
func (x *exchange) extend(ctx context.Context, output int64) {
	u := &x.purse
	if u.limit > 0 {
		output = min(output, u.limit)
	}
	has := u.hold.Nano()
	err := u.hold.Extend(ctx, x.most(output)-has)
	var broke *billing.Broke
	switch {
	case err == nil:
		u.covered, u.final = output, false
	case errors.As(err, &broke):
		if n := x.affords(has+broke.AvailableNano, output); n > u.covered && u.hold.Extend(ctx, x.most(n)-has) == nil {
			u.covered = n
		}
		u.final = true
	case ctx.Err() == nil:
		// Postgres is away. What runs is not cut for that: it goes on for a slice
		// until the question is asked again.
		u.covered = output
	}
}

// exhausted ends a stream for which there is no more money, as one that has
// reached its bound: the caller gets what it paid for, whole and usable.
func (x *exchange) exhausted(ctx context.Context, r wire, body io.Closer) *Error {
	out, open := r.cut(nil, int(x.choices()))
	if !open { // the engine is at its end, too
		x.purse.checkAt = math.MaxInt64
		return nil
	}
	_ = body.Close() // the engine stops now, not when the receipt is stored
	x.purse.cut = true
	if gone := x.out.send(ctx, out); gone != nil {
		return gone
	}
	x.ended(nil)
	if err := x.finish(ctx, nil); err != nil {
		return err
	}
	_ = x.out.send(ctx, []byte(doneEvent)) // who leaves now has seen all but the marker
	return nil
}
