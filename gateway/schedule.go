package gateway

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"time"

	"weir/scheduler"
	"weir/tenants"
)

// schedule waits for an endpoint. A retry goes to the head of its flow; where
// only endpoints have room at which it was, the failure that it had there stands.
func (x *exchange) schedule(ctx context.Context) *Error {
	begin := time.Now()
	request := x.request()
	if x.queuedAt.IsZero() {
		x.queuedAt = begin
	}
	x.place = x.waiter(&request, begin)
	x.g.waiters.add(&x.place)
	defer x.g.waiters.remove(&x.place)
	lease, err := x.queue.Schedule(ctx, request)
	waited := time.Since(begin)
	x.queued += waited
	x.g.epp.waited(x.place.series, outcomeOf(ctx, err), waited)
	if err != nil {
		return x.refusal(ctx, err)
	}
	if x.targets = x.usable(lease); len(x.targets) == 0 {
		lease.End(scheduler.Outcome{Result: scheduler.CallerFault}) // costs nothing and says nothing of the endpoint
		if x.failed == nil {
			return &Error{Cause: NoEndpoint, Err: errNoTarget}
		}
		x.unspend()
		return x.failed
	}
	x.lease, x.attempts = lease, x.attempts+1
	x.held = holding{x.place.series, x.targets[0].Endpoint, lease}
	x.g.running.add(&x.held)
	if x.failed != nil {
		x.g.metrics.retries.WithLabelValues(x.pool.Name, string(x.failed.Cause)).Inc()
	}
	return nil
}

// refusal is why there was no lease.
func (x *exchange) refusal(ctx context.Context, err error) *Error {
	if x.failed != nil {
		x.unspend()
	}
	var refusal *scheduler.Refusal
	switch {
	case ctx.Err() != nil:
		return ended(ctx)
	case errors.As(err, &refusal):
		return &Error{Cause: refusalCause(refusal.Reason), RetryAfter: refusal.RetryAfter, Err: err}
	default:
		return &Error{Cause: Internal, Err: err}
	}
}

// waiter is the exchange's entry among those that wait from now on.
func (x *exchange) waiter(r *scheduler.Request, now time.Time) waiter {
	c := &x.call
	return waiter{
		shown: Waiting{
			ID: c.ID, ClientRequestID: c.ClientRequestID, Response: c.Response, Model: x.model.Name, Pool: x.pool.Name,
			Band: x.band, Tier: x.tier, Since: x.queuedAt,
		},
		owner: owner{c.Principal.Tenant, c.Principal.Project},
		series: x.g.epp.series(seriesKey{
			fairness: r.Flow.FairnessID, pool: x.pool.Name, model: x.model.Name, target: r.Model, priority: r.Flow.Band,
		}),
		queue: x.queue, attempt: r.ID, began: now, before: x.queued, bytes: len(x.body),
	}
}

// request is what the scheduler learns of the next attempt. All of it comes
// from our own records but the body, the affinity and a shorter time limit, and
// none of these reaches beyond the tenant.
func (x *exchange) request() scheduler.Request {
	c, p := &x.call, x.call.Principal
	return scheduler.Request{
		ID:           attemptID(c.ID, x.attempts+1),
		Flow:         scheduler.Flow{FairnessID: p.FairnessID, Band: x.priority},
		Weight:       p.Plan.Weight,
		Session:      ofTenant(p.Tenant, c.Session),
		Turn:         c.Turn,
		Affinity:     ofTenant(p.Tenant, c.Affinity),
		Model:        engineName(x.model),
		CacheSalt:    x.salt,
		Path:         c.Operation.Path(),
		Body:         x.body,
		Prompt:       c.prompt(),
		Tokens:       x.chained,
		InputTokens:  int(x.meter.prompt),
		OutputTokens: x.outputBound(),
		QueuedAt:     x.queuedAt,
		TTFT:         time.Duration(p.Plan.TTFTMillis) * time.Millisecond,
		Reserved:     p.Plan.ReservedTokens,
		TTL:          c.QueueTTL,
		Exclude:      x.excluded(),
		Streams:      c.Stream,
	}
}

// attemptID is what scheduler and engine call an attempt, counted from 1.
func attemptID(request string, n int) string { return request + "." + strconv.Itoa(n) }

// ofTenant makes a name that is unique within a tenant unique over all. Ids of
// tenants have no slash.
func ofTenant(t tenants.ID, name string) string {
	if name == "" {
		return ""
	}
	return string(t) + "/" + name
}

// prompt is Prompt without its empty parts.
func (c *Call) prompt() [][]byte {
	switch {
	case len(c.Prompt[0]) > 0:
		return c.Prompt[:]
	case len(c.Prompt[1]) > 0:
		return c.Prompt[1:]
	default:
		return nil
	}
}

// outputBound is the most that the engine may generate; 0 when unknown.
func (x *exchange) outputBound() int {
	n := cmp.Or(x.purse.clamp, x.call.MaxTokens, x.model.MaxOutput)
	return n * max(x.call.Choices, 1)
}
