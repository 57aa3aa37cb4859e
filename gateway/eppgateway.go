package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/tidwall/gjson"

	"weir/gateway/catalogue"
	"weir/scheduler"
	"weir/scheduler/extproc"
)

// eppGateway reaches a pool through gateways of llm-d: Envoys that ask an
// Endpoint Picker for each request, place it and follow its answer. There is no
// queue here and nothing to wait for: the request waits at the gateway, and a
// refusal comes as the answer's status.
type eppGateway struct {
	log        *slog.Logger
	targets    []scheduler.Target
	objectives map[int]string
	sessions   *otter.Cache[string, string] // the scheduler's own notes of where sessions are; tenants don't see them

	queued   atomic.Uint64 // answers that went through a scheduler
	bypassed atomic.Uint64 // answers that show no trace of one
	last     atomic.Int64  // Unix nanoseconds of the last one without a trace

	mu     sync.Mutex
	closed bool
}

// seenBy is the header that every answer has which an Endpoint Picker of an
// older generation saw.
const seenBy = "x-went-into-resp-headers"

const (
	maxSessionTokens = 20_000
	maxSessionToken  = 512 // bytes
)

func newEPPGateway(log *slog.Logger, p *catalogue.Pool, objectives map[int]string) *eppGateway {
	return &eppGateway{
		log: log, objectives: objectives, targets: gatewaysOf(p),
		sessions: otter.Must(&otter.Options[string, string]{MaximumSize: maxSessionTokens}),
	}
}

// gatewaysOf are the pool's gateways in the order of their ids, but for those
// that drain.
func gatewaysOf(p *catalogue.Pool) (all []scheduler.Target) {
	for _, at := range p.Endpoints {
		if !at.Draining() {
			all = append(all, scheduler.Target{Endpoint: at.ID, URL: at.URL})
		}
	}
	return all
}

// leadsTo reports whether its gateways are the pool's.
func (e *eppGateway) leadsTo(p *catalogue.Pool) bool {
	return slices.EqualFunc(e.targets, gatewaysOf(p), func(a, b scheduler.Target) bool {
		return a.Endpoint == b.Endpoint && a.URL == b.URL
	})
}

// Schedule returns at once: a lease on the gateways in their order.
func (e *eppGateway) Schedule(ctx context.Context, r scheduler.Request) (scheduler.Lease, error) {
	e.mu.Lock()
	closed := e.closed
	e.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return nil, &scheduler.Refusal{Reason: scheduler.Cancelled, Err: context.Cause(ctx)}
	case closed:
		return nil, &scheduler.Refusal{Reason: scheduler.ShuttingDown}
	case len(e.targets) == 0:
		return nil, &scheduler.Refusal{Reason: scheduler.NoEndpoints, RetryAfter: noSchedulerRetry}
	}
	headers := e.headers(&r)
	l := &gatewayLease{gateway: e, body: r.Body, session: r.Session, targets: make([]scheduler.Target, len(e.targets))}
	for i, t := range e.targets {
		t.Headers = headers
		l.targets[i] = t
	}
	return l, nil
}

// headers are all that the scheduler behind the gateway learns beside the body,
// in both generations of their names.
func (e *eppGateway) headers(r *scheduler.Request) [][2]string {
	out := [][2]string{{extproc.FairnessID, r.Flow.FairnessID}, {extproc.FairnessIDOld, r.Flow.FairnessID}}
	if name := e.objectives[r.Flow.Band]; name != "" {
		out = append(out, [2]string{extproc.Objective, name}, [2]string{extproc.ObjectiveOld, name})
	}
	if r.Session != "" {
		sum := sha256.Sum256([]byte(r.Session)) // which tells nobody whose it is
		out = append(out, [2]string{extproc.SessionID, hex.EncodeToString(sum[:16])})
		if token, ok := e.sessions.GetIfPresent(r.Session); ok {
			out = append(out, [2]string{extproc.SessionToken, token})
		}
	}
	if r.TTL > 0 {
		out = append(out, [2]string{extproc.QueueTTL, r.TTL.String()})
	}
	if r.TTFT > 0 {
		wanted := strconv.FormatInt(r.TTFT.Milliseconds(), 10)
		out = append(out, [2]string{extproc.WantedTTFT, wanted}, [2]string{extproc.WantedTTFTOld, wanted})
	}
	return out
}

// Close refuses whatever comes later.
func (e *eppGateway) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
}

// Wait has nothing to wait for.
func (e *eppGateway) Wait() {}

// gatewayLease is one attempt at a gateway of llm-d.
type gatewayLease struct {
	gateway *eppGateway
	targets []scheduler.Target
	body    []byte
	session string

	mu     sync.Mutex
	wait   time.Duration
	waited bool
}

func (l *gatewayLease) Targets() []scheduler.Target { return l.targets }
func (l *gatewayLease) Body() []byte                { return l.body }
func (l *gatewayLease) Evicted() <-chan struct{}    { return nil }
func (l *gatewayLease) Observe(scheduler.Progress)  {}
func (l *gatewayLease) End(scheduler.Outcome)       {}

// Told is what the answer's headers said of the wait.
func (l *gatewayLease) Told() (name string, queued time.Duration, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return "", l.wait, l.waited
}

// answered reads how the scheduler behind the gateway shows in an answer. One
// that has no trace of it was let through: gateways do that while their
// scheduler doesn't answer, and then nobody keeps any order.
func (l *gatewayLease) answered(resp *http.Response) {
	if token := resp.Header.Get(extproc.SessionToken); l.session != "" && token != "" && len(token) <= maxSessionToken {
		l.gateway.sessions.Set(l.session, token)
	}
	ms, err := strconv.ParseUint(resp.Header.Get(extproc.QueueMilliseconds), 10, 31)
	if err == nil {
		l.mu.Lock()
		l.wait, l.waited = time.Duration(ms)*time.Millisecond, true
		l.mu.Unlock()
	}
	switch {
	case err == nil || resp.Header.Get(seenBy) != "":
		l.gateway.queued.Add(1)
	case resp.StatusCode == http.StatusOK:
		l.gateway.bypassed.Add(1)
		now := time.Now().UnixNano()
		warnBypass(l.gateway.log, l.gateway.last.Swap(now), now)
	}
}

// gatewayLeaseOf finds the lease beneath what the fleet put around it.
func gatewayLeaseOf(l scheduler.Lease) (*gatewayLease, bool) {
	if s, ok := l.(*sharedLease); ok {
		l = s.Lease
	}
	g, ok := l.(*gatewayLease)
	return g, ok
}

// refused reads why the scheduler behind the gateway refused; nil where the
// answer is the engine's own. A refusal says nothing of the gateway. Another
// one is asked where this one's scheduler is about to stop or knows no endpoint;
// of one that is full the decision holds.
func (l *gatewayLease) refused(resp *http.Response, body []byte) *Error {
	reason := resp.Header.Get(extproc.DroppedReason)
	message := gjson.GetBytes(body, "error.message").Str
	if message == "" && !gjson.ValidBytes(body) {
		message = string(body[:min(len(body), maxMessage)]) // the older form is plain text
	}
	cause := droppedCause(resp.StatusCode, reason, message)
	if cause == "" {
		return nil
	}
	if len(l.targets) > 1 && (cause == ShuttingDown || cause == NoEndpoint) {
		cause = UpstreamBusy
	}
	return &Error{
		Cause: cause, RetryAfter: retryAfter(resp.Header.Get("Retry-After")),
		Err: fmt.Errorf("the scheduler behind the gateway: %d %s: %s", resp.StatusCode, clean(reason), clean(message)),
	}
}

// droppedCause is what an Endpoint Picker's refusal means; empty where it is
// none. Its two gates that shed load give no reason but in words.
func droppedCause(status int, reason, message string) Cause {
	switch {
	case strings.HasPrefix(reason, extproc.EvictedReason):
		return Evicted
	case reason == extproc.RejectedSaturated:
		return PoolFull
	case reason == extproc.RejectedExpired:
		return QueueTimeout
	case reason == extproc.RejectedShuttingDown, reason == extproc.RejectedCancelled:
		return ShuttingDown
	case reason != "": // it knows no endpoint, or failed by itself
		return NoEndpoint
	case status == http.StatusTooManyRequests && strings.Contains(message, "sheddable request dropped"),
		status == http.StatusInternalServerError && strings.Contains(message, "request cannot be admitted"):
		return Shed
	default:
		return ""
	}
}
