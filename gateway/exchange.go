package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir/billing"
	"weir/gateway/admission"
	"weir/gateway/catalogue"
	"weir/scheduler"
	"weir/tenants"
)

// exchange is one call on its way from admission to receipt. One goroutine
// works on it.
type exchange struct {
	g    *Gateway
	call Call
	out  *answer

	// From the catalogue, as it was at the start.
	model  *catalogue.Model
	pool   *catalogue.Pool
	price  billing.Price // that held when the call came, for its tenant
	priced bool          // there was one
	queue  scheduler.Scheduler
	// Whether the pool's document has engines told the priority.
	tellPriority bool
	precise      scheduler.PreciseCache // how the pool follows its engines' caches
	band         string
	priority     int
	tier         tenants.Tier
	times        catalogue.Timeouts

	asked    admission.Request // of the limits
	admitted bool              // they may hold something of it, until finish
	limit    LimitState
	trace    *trace // for checkpoints; nil where nothing is billed
	purse    purse

	// The present attempt, and what is known from all of them.
	body      []byte
	salt      string
	chained   *scheduler.TokenChain // of the prompt, where the pool wants it and it is known
	lease     scheduler.Lease       // nil when none is live
	targets   []scheduler.Target
	endpoint  string
	hideCache bool // the endpoint doesn't keep tenants apart
	attempts  int
	queuedAt  time.Time // when the first one began to wait
	queued    time.Duration
	ttft      time.Duration
	pieceAt   time.Time // when output came last
	made      int       // bytes of the answer as the caller sees it
	visits    []visit   // where it was
	failed    *Error    // how the last attempt ended
	suspect   bool
	meter     meter
	place     waiter  // among those that wait
	held      holding // among those that run

	finished bool
}

func newExchange(g *Gateway, c *Call, sink Sink) *exchange {
	x := &exchange{g: g, call: *c, out: &answer{sink: sink}}
	if c.ReceivedAt.IsZero() {
		x.call.ReceivedAt = time.Now()
	}
	return x
}

// run is the exchange's course. On success it has finished, on failure its
// caller does that.
func (x *exchange) run(ctx context.Context) *Error {
	if err := x.resolve(); err != nil {
		return err
	}
	if err := x.reserve(ctx); err != nil {
		return err
	}
	if err := x.admit(ctx, x.intent()); err != nil {
		return err
	}
	if err := x.reserveExactly(ctx); err != nil {
		return err
	}
	x.salt = x.g.engines.cacheSalt(x.call.Principal.Tenant, x.model.Name)
	x.body = bounded(engineBody(&x.call, x.model, x.pool, x.salt), &x.call, x.purse.clamp)
	x.chained = x.tokens(ctx)
	for {
		if err := x.schedule(ctx); err != nil {
			return err
		}
		if x.failed = x.attempt(ctx); x.failed == nil || !x.mayRetry(ctx) {
			return x.failed
		}
	}
}

// resolve finds out what was asked for, and whether this caller may have it.
func (x *exchange) resolve() *Error {
	snap, p := x.g.deps.Catalogue.Snapshot(), x.call.Principal
	m, ok := snap.Lookup(x.call.Model)
	switch {
	case !ok:
		return &Error{Cause: ModelNotFound, Param: "model", Message: unknownModel(x.call.Model)}
	case !p.MayUse(m.Name): // which is told to the operator alone: that it exists is not the caller's to know
		return &Error{Cause: ModelNotFound, Param: "model", Message: unknownModel(x.call.Model), Err: errNotAllowed}
	case !m.Sold(x.call.ReceivedAt):
		return &Error{Cause: ModelNotFound, Param: "model", Message: fmt.Sprintf("The model %q was shut down on %s.", m.Name, m.ShutdownDate.UTC().Format(time.DateOnly))}
	case !slices.Contains(m.Operations, x.call.Operation.sold()):
		return &Error{Cause: WrongOperation, Param: "model"}
	}
	x.model, x.times = m, limits(m.Timeouts)
	x.price, x.priced = snap.Prices.Rate(m.Name, p.Tenant, x.call.ReceivedAt)
	if left, ok := x.g.suspects.has(p.Tenant, m.Name, x.call.Fields, x.call.ReceivedAt); ok {
		return &Error{Cause: SuspectRequest, RetryAfter: left}
	}
	asked := x.call.Tier
	if asked == "" || x.priced && !x.price.Sells(asked) {
		asked = tenants.TierDefault
	}
	x.band, x.tier = p.Band(asked)
	if x.priority, ok = snap.Band(x.band); !ok {
		return &Error{Cause: Internal, Err: fmt.Errorf("plan %s names no known band for tier %s", p.Plan.Name, asked)}
	}
	x.meter.prompt = x.promptEstimate()
	return x.takeRoute(snap)
}

var errNotAllowed = errors.New("the key's allow-list lacks the model")

// unknownModel names a model that isn't there, as the caller spelled it.
func unknownModel(name string) string {
	const most = 100
	if len(name) > most {
		name = strings.ToValidUTF8(name[:most], "") + "..."
	}
	return fmt.Sprintf("The model %q does not exist, or you have no access to it.", name)
}

// limits fills in the default time limits.
func limits(t catalogue.Timeouts) catalogue.Timeouts {
	for _, l := range [...]struct {
		at    *time.Duration
		value time.Duration
	}{
		{&t.Connect, 5 * time.Second},
		{&t.FirstByte, 2 * time.Minute},
		{&t.Idle, time.Minute},
		{&t.Total, 30 * time.Minute},
	} {
		if *l.at <= 0 {
			*l.at = l.value
		}
	}
	return t
}

// promptEstimate counts about four characters a token, of the text alone, and no
// more than the model's context holds. It is billed where the engine doesn't count.
func (x *exchange) promptEstimate() int64 {
	n := int64(max(len(x.call.Fields)-x.call.MediaBytes, 0)/4 + 1)
	room := int64(x.model.Context)
	switch {
	case room == 0 || x.call.Operation == Embeddings: // which has a context for each of its inputs
		return n
	case x.call.Operation == Completions: // whose choices may be of several prompts
		room *= x.choices()
	}
	return min(n, room)
}

// ended says why the exchange's context did.
func ended(ctx context.Context) *Error {
	cause := context.Cause(ctx)
	var ours *Error
	switch {
	case errors.As(cause, &ours):
		return ours
	case errors.Is(cause, tenants.ErrRevoked):
		return &Error{Cause: KeyRevoked, Err: cause}
	default:
		return &Error{Cause: ClientGone, Err: cause}
	}
}
