package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"weir/gateway/upstream"
	"weir/scheduler"
)

const maxErrorBody = 64 << 10

var errNoTarget = errors.New("a lease without a target that may be used")

// attempt uses the lease, and gives it back unless the exchange finished with
// it.
func (x *exchange) attempt(ctx context.Context) *Error {
	x.meter.reset()
	x.purse.checkAt = 1
	x.out.prepare(Head{Stream: x.call.Stream, QueueTime: x.queued, Band: x.band, Tier: x.tier, Limit: x.limit, Shutdown: x.model.ShutdownDate})

	trip, tried := &upstream.Trip{}, len(x.visits)
	err := x.forward(ctx, trip)
	if err == nil {
		return nil
	}
	switch n := len(x.visits); {
	case err.Cause == Evicted:
		x.visits = x.visits[:tried] // the endpoint did nothing wrong
	case n > tried:
		x.visits[n-1].reached = err.Cause.reached()
		if v := x.visits[n-1]; v.either() && tried > 0 && err.Cause == UpstreamStatus {
			x.probe(ctx, v.prefill) // one that died with the first attempt may have been about to; two are the request's doing
		}
	}
	result := err.Cause.result()
	if err.Cause == UpstreamReset && trip.Written() {
		if alive := x.probe(ctx, x.endpoint); alive && trip.Reused() {
			result = scheduler.Abandoned // it had closed a waiting connection: no fault
		}
	}
	x.endLease(result, err.Cause.reached())
	return err
}

// probe asks whether an endpoint survived the request. If it didn't, the
// request is not to meet another one.
func (x *exchange) probe(ctx context.Context, endpoint string) (alive bool) {
	ctx, cancel := context.WithTimeout(ctx, x.g.cfg.ProbeTimeout)
	defer cancel()
	err := x.g.deps.Pools.Probe(ctx, x.pool.Name, endpoint)
	if err == nil || errors.Is(ctx.Err(), context.Canceled) { // a caller who left proves nothing
		return err == nil
	}
	x.suspect = true
	x.g.suspects.add(x.call.Principal.Tenant, x.model.Name, x.call.Fields, time.Now())
	x.g.metrics.suspects.WithLabelValues(x.pool.Name).Inc()
	return false
}

// forward sends the request where the lease says and passes on the answer. It
// returns nil after finish.
func (x *exchange) forward(ctx context.Context, trip *upstream.Trip) *Error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var ping func(time.Time) time.Time
	if x.call.Stream {
		ping = func(now time.Time) time.Time { return x.out.ping(ctx, now, x.g.cfg.KeepAlive) }
	}
	w := newWatch(cancel, x.call.ReceivedAt.Add(x.times.Total), ping, time.Now().Add(x.g.cfg.KeepAlive))
	defer w.stop()
	defer followEviction(ctx, x.lease.Evicted(), cancel)()

	resp, err := x.post(ctx, w, trip)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if l, ok := gatewayLeaseOf(x.lease); ok {
		l.answered(resp)
		if resp.StatusCode == http.StatusOK { // until then it may have waited there, and nobody pays for that
			x.dispatched()
		}
	}
	x.lease.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived, Status: resp.StatusCode})
	switch {
	case resp.StatusCode != http.StatusOK:
		return x.refused(ctx, w, resp)
	case !x.call.Stream:
		return x.document(ctx, w, resp)
	case !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"):
		return &Error{Cause: UpstreamInvalid, Err: fmt.Errorf("a stream of type %q", resp.Header.Get("Content-Type"))}
	default:
		return x.relay(ctx, w, trip, resp.Body)
	}
}

// followEviction ends the attempt when the scheduler takes the endpoint back.
// The returned function waits for the follower; ctx has to end for it.
func followEviction(ctx context.Context, evicted <-chan struct{}, cancel context.CancelCauseFunc) (wait func()) {
	if evicted == nil {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-evicted:
			cancel(&Error{Cause: Evicted})
		case <-ctx.Done():
		}
	}()
	return func() {
		cancel(nil)
		<-done
	}
}

// post tries the attempt's targets in turn while nothing could be sent.
func (x *exchange) post(ctx context.Context, w *watch, trip *upstream.Trip) (*http.Response, *Error) {
	accept := "application/json"
	if x.call.Stream {
		accept = "text/event-stream"
	}
	trip.OnConnect = func() {
		w.wait(FirstByteLimit, x.times.FirstByte)
		if _, waits := gatewayLeaseOf(x.lease); !waits {
			x.dispatched()
		}
	}
	failure := &Error{Cause: Internal, Err: errNoTarget} // never: an attempt has targets
	for _, target := range x.targets {
		x.endpoint, x.hideCache = target.Endpoint, !x.g.isolatesAll(x.pool, target, x.call.Operation)
		x.visits = append(x.visits, visitOf(target))
		w.wait(ConnectFailed, x.times.Connect)
		to, body := x.destination(target, accept)
		resp, err := x.g.engines.post(ctx, trip, to, body)
		switch {
		case err == nil:
			return resp, nil
		case ctx.Err() != nil:
			return nil, ended(ctx)
		case trip.Connected():
			return nil, &Error{Cause: UpstreamReset, Err: err}
		default:
			failure = &Error{Cause: ConnectFailed, Err: err}
		}
	}
	return nil, failure
}

// dispatched notes that a model server has the request.
func (x *exchange) dispatched() {
	if x.trace != nil {
		x.trace.dispatched.Store(true)
	}
}

// destination is where the attempt goes, and with which body.
func (x *exchange) destination(target scheduler.Target, accept string) (*destination, []byte) {
	endpoint := x.pool.Endpoint(target.Endpoint)
	to := newDestination(target, &endpoint)
	to.path, to.accept, to.requestID = x.call.Operation.Path(), accept, attemptID(x.call.ID, x.attempts)
	return to, x.bodyFor(&endpoint)
}

// refused reads why an engine didn't answer.
func (x *exchange) refused(ctx context.Context, w *watch, resp *http.Response) *Error {
	w.wait(IdleLimit, x.times.Idle)
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if err != nil && ctx.Err() != nil {
		return ended(ctx)
	}
	if l, ok := gatewayLeaseOf(x.lease); ok {
		if e := l.refused(resp, body); e != nil {
			return e
		}
	}
	e := responseError(resp, body) // with what was read, even if it is not all
	forCaller(e, x.model, x.call.Operation)
	return e
}
