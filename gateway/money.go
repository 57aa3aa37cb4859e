package gateway

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sort"

	"weir/billing"
)

// Funds sets money aside for exchanges.
type Funds interface {
	// Hold sets money aside at all wallets of the request, or at none. The error
	// is a *billing.Broke, billing.ErrUnavailable, or that of ctx.
	Hold(ctx context.Context, r billing.HoldRequest) (*billing.Hold, error)
}

const (
	// leastOutput is how many output tokens of each choice an answer has to be
	// affordable for to be begun.
	leastOutput = 16
	// spareOutput is held for each choice of a stream beyond what it may use: one
	// event can have several tokens, and it is sent whole.
	spareOutput = 16
	// templateTokens is what an engine's chat template adds to a prompt at most,
	// beyond a token for each byte of the request.
	templateTokens = 256
)

// purse is the money of one exchange. A document's holds all that it can cost;
// a stream's holds its input and a slice of its output, and is filled up as the
// stream goes on.
type purse struct {
	mode billing.Mode
	hold *billing.Hold // nil: nothing has to be held

	input     int64          // tokens: a bound, and what the engine says once it does
	counted   bool           // the engine has said it
	inputNano int64          // and so this is what they cost
	limit     int64          // output tokens of all choices that may be made; 0: not known
	covered   int64          // of them, for how many the hold is
	clamp     int            // bound on a choice's output that the engine is told; 0: the caller's
	scarce    *billing.Broke // the bound was refused: the input has to be counted
	checkAt   int64          // our own count at which the hold is looked at again
	final     bool           // no more can be had
	cut       bool           // the stream was ended for want of money
}

// choices is how many answers the call wants.
func (x *exchange) choices() int64 { return int64(max(x.call.Choices, 1)) }

// reserve sets money aside for the exchange, in this process if it can: the
// upper bound of what it may cost. Where that can't be had, the exchange may
// still be affordable: reserveExactly finds out.
func (x *exchange) reserve(ctx context.Context) *Error {
	u := &x.purse
	u.mode = x.g.mode(x.call.Principal)
	if u.mode != billing.ModeEnforce {
		return nil
	}
	if !x.priced || x.g.deps.Funds == nil {
		return &Error{Cause: Unpriced, Err: errUnpriced}
	}
	u.input, u.limit = x.inputBound(), x.outputLimit()
	if x.price.Most(u.input, billing.MaxTokens, x.tier) == 0 {
		return nil // a model for free
	}
	switch {
	case x.call.Operation == Embeddings:
	case u.limit == 0 && !x.call.Stream: // somebody has to say where it ends
		u.limit = x.g.cfg.HoldSlice * x.choices()
		u.clamp = int(x.g.cfg.HoldSlice)
	case x.call.MaxTokens == 0:
		u.clamp = x.model.MaxOutput // which is what the engine is held to, then
	}
	err := x.open(ctx, x.firstSlice())
	if errors.As(err, &u.scarce) {
		return x.hopeless()
	}
	return x.moneyError(ctx, err)
}

var errUnpriced = errors.New("no price, or no wallets to pay it from")

// firstSlice is for how much output money is set aside at the start.
func (x *exchange) firstSlice() int64 {
	switch slice := x.g.cfg.HoldSlice * x.choices(); {
	case x.call.Operation == Embeddings:
		return 0
	case !x.call.Stream:
		return x.purse.limit
	case x.purse.limit > 0:
		return min(slice, x.purse.limit)
	default:
		return slice
	}
}

// open makes the hold.
func (x *exchange) open(ctx context.Context, output int64) error {
	p, u := x.call.Principal, &x.purse
	nodes := p.Billing.Nodes
	if len(nodes) == 0 {
		nodes = []string{string(p.Tenant)}
	}
	hold, err := x.g.deps.Funds.Hold(ctx, billing.HoldRequest{Tenant: string(p.Tenant), Nodes: nodes, Nano: x.most(output)})
	if err == nil {
		u.hold, u.covered, u.checkAt = hold, output, 1
	}
	return err
}

// most is what the exchange can cost with so many output tokens, in nano-USD.
func (x *exchange) most(output int64) int64 {
	input := x.purse.input
	if x.call.Stream && output > 0 {
		output += spareOutput * x.choices()
	}
	if x.purse.counted {
		return x.purse.inputNano + x.price.Most(input, output, x.tier) - x.price.Most(input, 0, x.tier) + 1 // each is rounded
	}
	room := int64(x.model.Context) * x.choices()
	if room == 0 || input+output <= room || len(x.price.Long) > 0 || x.call.Operation == Embeddings {
		return x.price.Most(input, output, x.tier)
	}
	// Input and output share the model's context, so that they can't both be as
	// long as that.
	return max(x.price.Most(max(room-output, 0), output, x.tier), x.price.Most(input, max(room-input, 0), x.tier))
}

// inputBound is how many tokens the prompt has at most. A token of text has at
// least a byte; images, audio and video have more tokens than their addresses
// have bytes, and only the model's context bounds them.
func (x *exchange) inputBound() int64 {
	bound := int64(len(x.call.Fields)) + templateTokens
	room := int64(x.model.Context) * x.choices()
	switch {
	case room == 0 || x.call.Operation == Embeddings: // which has a context for each of its inputs
		return bound
	case x.hasMedia():
		return room
	default:
		return min(bound, room)
	}
}

// hasMedia reports that the prompt may be more than text.
func (x *exchange) hasMedia() bool {
	m := x.model.Modalities
	if len(m) > 0 && !slices.ContainsFunc(m, func(kind string) bool { return kind != "text" }) {
		return false
	}
	f := x.call.Fields
	return bytes.Contains(f, []byte(`_url"`)) || bytes.Contains(f, []byte(`"input_audio"`)) || bytes.Contains(f, []byte(`"input_image"`))
}

// outputLimit is how many tokens all choices may have at most; 0 when that isn't
// known.
func (x *exchange) outputLimit() int64 {
	if x.call.Operation == Embeddings {
		return 0
	}
	limit := int64(cmp.Or(x.call.MaxTokens, x.model.MaxOutput, x.model.Context))
	if room := int64(x.model.Context); room > 0 {
		limit = min(limit, room)
	}
	return limit * x.choices()
}

// hopeless refuses what can't be afforded whatever the count of the input says,
// so that nobody without money has prompts counted.
func (x *exchange) hopeless() *Error {
	u := &x.purse
	least := x.leastOutput()
	const longestToken = 64 // bytes
	text := int64(0)
	for _, part := range x.call.Prompt {
		text += int64(len(part))
	}
	if need := x.price.Most(text/longestToken, least, x.tier); need > u.scarce.AvailableNano {
		return x.broke(u.scarce, need)
	}
	return nil
}

// reserveExactly sets money aside near the floor of a wallet: the input is
// counted by the engine, and the output clamped to what the money affords.
func (x *exchange) reserveExactly(ctx context.Context) *Error {
	u := &x.purse
	if u.scarce == nil {
		return nil
	}
	if err := x.countInput(ctx); err != nil {
		return err
	}
	const tries = 4 // others spend meanwhile
	for range tries {
		output := x.firstSlice()
		if x.most(output) > u.scarce.AvailableNano {
			output = x.affords(u.scarce.AvailableNano, output)
			if output < x.leastOutput() {
				break
			}
		}
		err := x.open(ctx, output)
		if err == nil {
			x.clampTo(output)
			return nil
		}
		if !errors.As(err, &u.scarce) {
			return x.moneyError(ctx, err)
		}
	}
	return x.broke(u.scarce, x.most(x.leastOutput()))
}

// leastOutput is for how many output tokens the money has to suffice.
func (x *exchange) leastOutput() int64 {
	if x.call.Operation == Embeddings {
		return 0
	}
	return leastOutput * x.choices()
}

// countInput asks the engine's tokenizer. Where there is none to ask, and of
// more than text, the bound stands.
func (x *exchange) countInput(ctx context.Context) *Error {
	if x.call.Operation == Embeddings || x.hasMedia() {
		return nil
	}
	n, err := x.tokenize(ctx)
	switch {
	case err == nil:
		x.purse.input = min(n, x.purse.input)
	case ctx.Err() != nil:
		return ended(ctx)
	}
	return nil
}

// affords is how many output tokens the money suffices for, the input paid; at
// most that many.
func (x *exchange) affords(nano, most int64) int64 {
	n := sort.Search(int(min(most, math.MaxInt32)), func(n int) bool { return x.most(int64(n)+1) > nano })
	return int64(n) / x.choices() * x.choices()
}

// clampTo has the engine stop where the money of a document ends. A stream is
// cut by us, if there is no more by then.
func (x *exchange) clampTo(output int64) {
	if per := output / x.choices(); !x.call.Stream && output < x.purse.limit {
		x.purse.clamp, x.purse.limit = int(per), output
	}
}

// broke is the refusal of a caller whose money doesn't suffice for what it needs at
// least. It names which credit that is, and no amounts: who calls need not be who
// pays. Credit that requests under way hold may come back.
func (x *exchange) broke(b *billing.Broke, need int64) *Error {
	p := x.call.Principal
	whose := "organization"
	switch b.Node {
	case string(p.Key):
		whose = "API key"
	case string(p.Project):
		whose = "project"
	}
	if b.HeldNano > 0 && need <= b.AvailableNano+b.HeldNano {
		return &Error{
			Cause: MoneyHeld, Err: b,
			Message: "The credit of this " + whose + " is held by requests that are under way. Try again when some of them have ended.",
		}
	}
	return &Error{
		Cause: InsufficientQuota, Err: b,
		Message: "The credit of this " + whose + " doesn't cover the request. Please check its plan and billing details.",
	}
}

// moneyError classes what a hold failed for.
func (x *exchange) moneyError(ctx context.Context, err error) *Error {
	var b *billing.Broke
	switch {
	case err == nil:
		return nil
	case errors.As(err, &b):
		return x.broke(b, x.most(x.leastOutput()))
	case ctx.Err() != nil:
		return ended(ctx)
	default:
		return &Error{Cause: MoneyUnknown, Err: err}
	}
}

// pay ends the hold, once the receipt is stored or it is clear that it won't be.
func (x *exchange) pay(ctx context.Context, r *billing.Receipt, stored error) {
	h := x.purse.hold
	switch {
	case h == nil:
	case x.attempts == 0, errors.Is(stored, billing.ErrReceipt), errors.Is(stored, billing.ErrRejected):
		h.Release()
	default: // after any other error it may be stored all the same
		_ = h.Extend(ctx, r.CostNano-h.Nano()) // what can't be had is counted
		h.Settle(r.CostNano)
	}
}
