package main

import (
	"cmp"
	"container/heap"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing/synctest"
	"time"

	"weir/scheduler"
)

// scrapeInterval is how often the scheduler hears of the engines' load.
const scrapeInterval = 50 * time.Millisecond

// setup is one cell: a workload in front of engines under a policy.
type setup struct {
	workload workload
	engines  []server
	policy   policy
	shared   bool          // the engines have one cache, as large as all of theirs together
	until    time.Duration // end of the run; 0: when all requests have ended
}

// server is an engine and what the scheduler is told of it.
type server struct {
	model
	endpoint scheduler.Endpoint
}

// fleetOf returns n equal servers.
func fleetOf(n int, m model) []server {
	out := make([]server, n)
	for i := range out {
		out[i] = server{m, scheduler.Endpoint{ID: "engine-" + strconv.Itoa(i)}}
	}
	return out
}

// sim runs one cell. All of it happens on one goroutine, but for the requests
// that wait in the scheduler: each has a goroutine there, as in the gateway.
type sim struct {
	setup
	began    time.Time
	timer    *time.Timer
	sched    scheduler.Scheduler
	loads    loader // nil when the policy reads none
	scraped  time.Duration
	engines  []*engine
	byID     map[string]int
	arrive   []*request // of the trace, the next first
	later    arrivals   // of closed loops
	granted  chan grant
	numbers  int              // ids given out
	requests map[int]*request // those that were sent and have not ended
	out      result
	stop     context.CancelFunc
	ctx      context.Context //nolint:containedctx // the life of the run
}

// loader is a scheduler that reads what engines say of themselves.
type loader interface {
	SetLoad(id string, l scheduler.Load)
}

// grant is the scheduler's answer to a request.
type grant struct {
	request *request
	lease   scheduler.Lease
	err     error
	at      time.Duration
}

// arrivals is a heap of requests by arrival.
type arrivals []*request

func (a arrivals) Len() int      { return len(a) }
func (a arrivals) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a arrivals) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(a[i].at, a[j].at), cmp.Compare(a[i].id, a[j].id)) < 0
}

// Push and Pop belong to heap.Interface.
func (a *arrivals) Push(x any) { *a = append(*a, x.(*request)) }

// Pop removes the last one.
func (a *arrivals) Pop() any {
	last := len(*a) - 1
	r := (*a)[last]
	*a = (*a)[:last]
	return r
}

// run runs the cell in a bubble.
func (s setup) run(b bubbles) (out result, err error) {
	b.run(func() { out, err = s.simulate() })
	if err != nil {
		return out, fmt.Errorf("%s: %w", s.policy.name, err)
	}
	return out, nil
}

func (s setup) simulate() (result, error) {
	m := &sim{setup: s, began: time.Now(), byID: map[string]int{}, requests: map[int]*request{}, granted: make(chan grant, 1<<16)}
	m.ctx, m.stop = context.WithCancel(context.Background())
	defer m.stop()
	m.timer = time.NewTimer(time.Hour)
	defer m.timer.Stop()
	m.out = newResult(len(s.engines))
	one := newKV(0)
	for i, v := range s.engines {
		one.capacity += v.blocks
		kv := newKV(v.blocks)
		if s.shared {
			kv = one
		}
		m.engines = append(m.engines, &engine{id: i, model: v.model, kv: kv, gaps: m.out.gap, served: m.out.serve})
		m.byID[v.endpoint.ID] = i
	}
	sched, closing := s.policy.build(m)
	m.sched = sched
	if l, ok := sched.(loader); ok && s.policy.loads {
		m.loads = l
	}
	m.arrive = s.workload.first()
	m.numbers = len(m.arrive)
	err := m.loop()
	m.stop()
	closing()
	synctest.Wait()
	m.out.span = m.now()
	return m.out, err
}

func (m *sim) now() time.Duration { return time.Since(m.began) }

// loop goes from event to event until nothing is left to come.
func (m *sim) loop() error {
	m.scrape(0)
	for {
		at, more := m.next()
		if !more && len(m.requests) == 0 || m.until > 0 && m.now() >= m.until {
			return nil
		}
		if !more {
			at = m.now() + time.Hour // only the scheduler's own timers can go on from here
		}
		if g, ok := m.sleep(at); ok {
			if err := m.settle(&g); err != nil {
				return err
			}
			continue
		}
		if !more {
			return errors.New("requests wait and nothing happens")
		}
		if err := m.happen(at); err != nil {
			return err
		}
	}
}

// next is the time of the next event.
func (m *sim) next() (at time.Duration, more bool) {
	sooner := func(t time.Duration) {
		if !more || t < at {
			at, more = t, true
		}
	}
	for _, e := range m.engines {
		if t, ok := e.next(); ok {
			sooner(t)
		}
	}
	if len(m.arrive) > 0 {
		sooner(m.arrive[0].at)
	}
	if len(m.later) > 0 {
		sooner(m.later[0].at)
	}
	return at, more
}

// sleep waits for the time, or for a grant before it.
func (m *sim) sleep(until time.Duration) (grant, bool) {
	d := until - m.now()
	if d <= 0 {
		return grant{}, false
	}
	m.timer.Reset(d)
	select {
	case <-m.timer.C:
		return grant{}, false
	case g := <-m.granted:
		return g, true
	}
}

// happen does all that is due at the time, one after the other, so that a run
// can be repeated.
func (m *sim) happen(at time.Duration) error {
	m.scrape(at)
	for _, e := range m.engines {
		if t, ok := e.next(); ok && t <= at {
			e.due(at)
			if err := m.settle(nil); err != nil {
				return err
			}
		}
	}
	for len(m.arrive) > 0 && m.arrive[0].at <= at {
		r := m.arrive[0]
		m.arrive = m.arrive[1:]
		if err := m.send(r); err != nil {
			return err
		}
	}
	for len(m.later) > 0 && m.later[0].at <= at {
		if err := m.send(heap.Pop(&m.later).(*request)); err != nil {
			return err
		}
	}
	return nil
}

// scrape tells the scheduler what the engines say at the last whole interval.
// Nothing has changed since then: it is called before each event.
func (m *sim) scrape(now time.Duration) {
	tick := now.Truncate(scrapeInterval)
	if m.loads == nil || tick == m.scraped && now > 0 {
		return
	}
	m.scraped = tick
	for i, e := range m.engines {
		m.loads.SetLoad(m.setup.engines[i].endpoint.ID, scheduler.Load{
			Running: len(e.running), Waiting: len(e.waiting), KVUsage: e.kv.usage(),
			BlockSize: blockTokens, Blocks: m.policy.told(e.blocks), At: m.began.Add(tick),
		})
	}
}

// send gives a request to the scheduler.
func (m *sim) send(r *request) error {
	m.requests[r.id] = r
	sr := scheduler.Request{
		ID: strconv.Itoa(r.id), Flow: scheduler.Flow{FairnessID: r.tenant, Band: r.band}, Weight: r.weight,
		Session: r.session, Turn: r.turn, Model: "m", Streams: true, InputTokens: r.input, OutputTokens: r.output,
	}
	if m.policy.tokens != nil {
		sr.Tokens = m.policy.tokens(r)
	}
	if m.policy.prompts {
		sr.Prompt = [][]byte{promptOf(r)}
	}
	go func() {
		l, err := m.sched.Schedule(m.ctx, sr)
		m.granted <- grant{r, l, err, m.now()}
	}()
	return m.settle(nil)
}

// promptOf is a prompt whose bytes agree with another's exactly as far as their
// blocks do, four bytes a token.
func promptOf(r *request) []byte {
	const bytesPerToken = 4
	p := make([]byte, 0, len(r.blocks)*blockTokens*bytesPerToken)
	for _, id := range r.blocks {
		from := len(p)
		p = binary.LittleEndian.AppendUint64(p, id+1)
		for len(p)-from < blockTokens*bytesPerToken {
			p = append(p, p[from:]...) // 8 bytes, doubled to a power of two
		}
	}
	return p
}

// settle waits until every goroutine rests and sends on what was granted.
func (m *sim) settle(first *grant) error {
	for {
		synctest.Wait()
		var all []grant
		if first != nil {
			all, first = append(all, *first), nil
		}
		for len(m.granted) > 0 {
			all = append(all, <-m.granted)
		}
		if len(all) == 0 {
			return nil
		}
		slices.SortFunc(all, func(a, b grant) int { return cmp.Compare(a.request.id, b.request.id) })
		for _, g := range all {
			if err := m.start(g); err != nil {
				return err
			}
		}
	}
}

// start sends a granted request to its engine.
func (m *sim) start(g grant) error {
	r := g.request
	if g.err != nil {
		refusal, ok := errors.AsType[*scheduler.Refusal](g.err)
		if !ok {
			return g.err
		}
		m.out.refuse(refusal.Reason)
		m.over(r)
		return nil
	}
	target := g.lease.Targets()[0].Endpoint
	at, ok := m.byID[target]
	if !ok {
		return fmt.Errorf("request %d was sent to %q", r.id, target)
	}
	g.lease.Observe(scheduler.Progress{Kind: scheduler.HeadersReceived})
	m.engines[at].submit(&job{
		request:    r,
		firstToken: func(*job) { g.lease.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1}) },
		end: func(j *job) {
			m.out.add(at, j, g.at, m.now())
			g.lease.End(scheduler.Outcome{
				Result: scheduler.Completed, InputTokens: j.input - j.cached, CachedTokens: j.cached, OutputTokens: j.made,
			})
			m.over(r)
		},
	}, m.now())
	return nil
}

// over asks the workload for what follows from a request's end.
func (m *sim) over(r *request) {
	delete(m.requests, r.id)
	if next := m.workload.ended(r, m.now()); next != nil {
		next.id = m.numbers
		m.numbers++
		heap.Push(&m.later, next)
	}
}
