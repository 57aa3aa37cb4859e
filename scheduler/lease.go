package scheduler

import (
	"sync/atomic"
	"time"
)

// lease is an Embedded scheduler's Lease. It is live while its endpoint's set
// has it.
type lease struct {
	scheduler *Embedded
	endpoint  *endpoint
	request   leased

	charge    charge
	tokens    int       // that it counts for at its endpoint now
	queuedAt  time.Time // when its request's first attempt began to wait
	probation bool      // granted while the endpoint had yet to prove itself
	victim
	placed

	output atomic.Int64 // tokens observed so far
	first  atomic.Bool  // a first token was seen
	ended  atomic.Bool
}

// leased is what a lease keeps of its request.
type leased struct {
	body        []byte
	inputTokens int
}

var _ Lease = (*lease)(nil)

// Targets is the endpoint, and others where the profile wants fallbacks. The
// slice may be shared between leases.
func (l *lease) Targets() []Target { return l.targets }

// Body is the request's own, until the engine has answered.
func (l *lease) Body() []byte { return l.request.body }

// Evicted is nil, which never becomes ready, where the scheduler takes nothing
// back.
func (l *lease) Evicted() <-chan struct{} { return l.evicted }

// Tokens is for how many the lease counts at its endpoint now: by default those
// of the prompt that were not cached, until the first token.
func (l *lease) Tokens() int {
	l.scheduler.mu.Lock()
	defer l.scheduler.mu.Unlock()
	return l.tokens
}

// Observe keeps how much was made, for attempts that end without a count, and
// takes the first token as the end of prefill and as proof that a doubtful
// endpoint works: its stream may run for minutes more.
func (l *lease) Observe(p Progress) {
	if p.Kind == HeadersReceived {
		l.request.body = nil // a stream may run for minutes more
	}
	if p.OutputTokens > 0 {
		l.output.Store(int64(p.OutputTokens))
	}
	if p.Kind == FirstToken && l.first.CompareAndSwap(false, true) {
		l.scheduler.firstTokens.observe(l.scheduler.now().Sub(l.queuedAt))
		l.scheduler.began(l)
	}
}

// End gives the endpoint back, corrects the flow's account to what was used
// and lets the next request go.
func (l *lease) End(o Outcome) {
	if l.ended.CompareAndSwap(false, true) {
		l.scheduler.end(l, o)
	}
}

// usage is what the attempt cost its flow: nothing where the endpoint failed
// or refused; else what is known, and the estimate of the prompt where the
// caller left before it was counted.
func (l *lease) usage(o Outcome) service {
	switch o.Result {
	case EndpointFault, CallerFault, Overloaded:
		return service{}
	default:
	}
	s := service{input: o.InputTokens, cached: o.CachedTokens, output: max(o.OutputTokens, int(l.output.Load()))}
	if s.input == 0 && s.cached == 0 {
		s.input, s.estimated = l.request.inputTokens, true
	}
	return s
}

// end is the one place where a lease stops being live.
func (e *Embedded) end(l *lease, o Outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, p := e.now(), l.endpoint
	e.fleet.release(l, o, now)
	p.tokens -= l.tokens
	l.tokens = 0
	p.ended(l, o.Result, e.cfg.Breaker, e.cfg.OverloadPause, now)
	e.gauge.update(p, now)
	e.confirm(l, now)
	e.settle(l, o, now)
	e.dispatch(now)
}

// settle replaces a lease's charge by what was used.
func (e *Embedded) settle(l *lease, o Outcome, now time.Time) {
	used := l.usage(o)
	e.queues.ended(&l.charge, used, now)
	if o.Result == Completed {
		l.charge.flow.learn(used.output)
	}
}

// began takes the first token of a lease.
func (e *Embedded) began(l *lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l.ended.Load() {
		return // and so released, or about to be
	}
	now, p := e.now(), l.endpoint
	e.fleet.started(l, now)
	if !e.cfg.Detector.OutputTokens {
		p.tokens -= l.tokens
		l.tokens = 0
	}
	if l.probation {
		p.proved(l)
	}
	e.gauge.update(p, now)
	e.dispatch(now)
}

// tokensOf is what a request counts for at an endpoint that has part of its
// prompt in the cache.
func (e *Embedded) tokensOf(r *Request, cached int) int {
	n := max(r.InputTokens-cached, 0)
	if d := &e.cfg.Detector; d.OutputTokens {
		output := int(d.OutputRatio * float64(r.InputTokens))
		if d.MaxOutput > 0 {
			output = min(output, d.MaxOutput)
		}
		n += output
	}
	return n
}

// grant gives the request the endpoint that was chosen for it.
func (e *Embedded) grant(c choice, b *band, f *flow, r *Request, came arrival, h held, now time.Time) *lease {
	p := c.endpoints[0]
	l := &lease{
		scheduler: e, endpoint: p, charge: charge{band: b, flow: f},
		request:   leased{body: r.Body, inputTokens: r.InputTokens},
		queuedAt:  r.QueuedAt,
		probation: p.open() || p.health == Unknown,
	}
	if l.queuedAt.IsZero() || l.queuedAt.After(now) {
		l.queuedAt = came.at
	}
	e.queues.began(&l.charge, r, service{
		input: max(r.InputTokens-c.cached, 0), cached: c.cached, output: f.expectedOutput(r.OutputTokens),
	}, now)
	l.tokens = e.tokensOf(r, c.cached)
	p.tokens += l.tokens
	e.fleet.place(l, c, r, now)
	p.began(l)
	e.gauge.update(p, now)
	e.expose(l)
	b.dispatched++
	b.waited += now.Sub(came.at)
	e.drain.dispatched(now)
	if d := e.ring.add(); d != nil {
		d.begin(r, came, now)
		d.held, d.saturation, d.ceiling = h, e.cycle.saturation, b.ceiling
		d.chose(c)
	}
	return l
}
