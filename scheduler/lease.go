package scheduler

import (
	"sync/atomic"
	"time"
)

// lease is an Embedded scheduler's Lease. It is live while its endpoint's set
// has it; the one that computes its prompt has it until the first token.
type lease struct {
	leg // of the endpoint that answers

	scheduler *Embedded
	prefill   *leg // of the one that computes the prompt for it; nil: the same
	request   leased

	charge   charge
	queuedAt time.Time // when its request's first attempt began to wait
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
	n := l.tokens
	if l.prefill != nil {
		n += l.prefill.tokens
	}
	return n
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
	now := e.now()
	at, before := l.blame(o)
	if l.prefilling() {
		e.vacate(l, l.prefill, before, now)
	}
	e.vacate(l, &l.leg, at, now)
	e.fleet.released(l, o)
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
	if l.prefilling() {
		e.vacate(l, l.prefill, Completed, now)
	}
	if !e.cfg.Detector.OutputTokens {
		p.tokens -= l.tokens
		l.tokens = 0
	}
	p.worked = now
	if l.probation {
		p.proved(l)
	}
	e.follows(p, now)
	e.dispatch(now)
}

// outputOf is what a request's answer counts for at an endpoint, in tokens.
func (e *Embedded) outputOf(r *Request) int {
	d := &e.cfg.Detector
	if !d.OutputTokens {
		return 0
	}
	n := int(d.OutputRatio * float64(r.InputTokens))
	if d.MaxOutput > 0 {
		n = min(n, d.MaxOutput)
	}
	return n
}

// grant gives the request the endpoint that was chosen for it.
func (e *Embedded) grant(c choice, b *band, f *flow, r *Request, came arrival, h held, now time.Time) *lease {
	l := &lease{
		endpoint:  c.endpoints[0],
		scheduler: e, charge: charge{band: b, flow: f},
		request:  leased{body: r.Body, inputTokens: r.InputTokens},
		queuedAt: r.QueuedAt,
	}
	if l.queuedAt.IsZero() || l.queuedAt.After(now) {
		l.queuedAt = came.at
	}
	prompt := max(r.InputTokens-c.computed(), 0)
	e.queues.began(&l.charge, r, service{input: prompt, cached: c.computed(), output: f.expectedOutput(r.OutputTokens)}, now)
	l.tokens = e.outputOf(r)
	if c.prefill == nil {
		l.tokens += prompt
	} else {
		l.prefill = &leg{endpoint: c.prefill, tokens: prompt}
	}
	e.fleet.granted(&c)
	e.fleet.place(l, c, r, now)
	if l.prefill != nil {
		e.occupy(l, l.prefill, now)
	}
	e.occupy(l, &l.leg, now)
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
