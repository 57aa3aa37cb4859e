package scheduler

import (
	"math"
	"slices"
	"time"
)

// program is what the program-aware policies know of a fairness ID. Bands with
// the same policy and parameters share it, as they share llm-d's plugin.
type program struct {
	id    string
	in    map[string]*program
	flows []*flow // of this id, one in each band that has it

	dispatched int
	live       int       // leases
	last       time.Time // when one ended last

	service float64 // LeastAttainedService: prompt tokens and twice the output tokens, decayed
	anchor  time.Time
}

// programsOf returns the programs of all bands with these parameters.
func (q *queues) programsOf(f Fairness) map[string]*program {
	p := q.programs[f]
	if p == nil {
		p = map[string]*program{}
		q.programs[f] = p
	}
	return p
}

// bind gives the flow its program.
func bind(programs map[string]*program, f *flow) *program {
	if f.program != nil {
		return f.program
	}
	p := programs[f.id]
	if p == nil {
		p = &program{id: f.id, in: programs}
		programs[f.id] = p
	}
	p.flows = append(p.flows, f)
	f.program = p
	return p
}

// leave takes the flow out of its program, which ends with its last one.
func (p *program) leave(f *flow) {
	if p == nil {
		return
	}
	p.flows = slices.DeleteFunc(p.flows, func(g *flow) bool { return g == f })
	if len(p.flows) == 0 {
		delete(p.in, p.id)
	}
	f.program = nil
}

func (p *program) began(c *charge) {
	c.program = p
	p.dispatched++
	p.live++
}

func (p *program) ended(now time.Time) {
	p.live--
	p.last = now
}

// moved puts the program's flows in other bands where they belong now.
func (p *program) moved(except *flow) {
	for _, f := range p.flows {
		if f != except {
			f.band.changed(f)
		}
	}
}

// leastAttained is llm-d's program-aware-fairness with strategy las: of the
// flows that wait, the one with the highest
//
//	ServiceWeight*(1 - service) + HeadWaitWeight*(wait of its head)
//
// both scaled to 0..1 between the least and the most of those that wait, 0.5
// where these are the same. Service grows when an answer ends and halves with
// every half-life in which the program has nothing to do.
type leastAttained struct {
	programs map[string]*program
	cfg      Fairness
}

// before keeps the longest waiting head first, which is one end of a scale.
func (*leastAttained) before(a, b *flow) bool {
	return a.head().entered.Before(b.head().entered)
}

// next looks at every flow, since each score hangs on the scales of all.
func (l *leastAttained) next(backlog *flowHeap) *flow {
	oldest := backlog.flows[0].head().entered
	service, wait := scale{math.Inf(1), math.Inf(-1)}, scale{math.Inf(1), math.Inf(-1)}
	for _, f := range backlog.flows {
		service.include(f.program.service)
		wait.include(oldest.Sub(f.head().entered).Seconds())
	}
	var best *flow
	score := math.Inf(-1)
	for _, f := range backlog.flows {
		s := l.cfg.ServiceWeight*(1-service.of(f.program.service)) +
			l.cfg.HeadWaitWeight*wait.of(oldest.Sub(f.head().entered).Seconds())
		if s > score || s == score && f.head().order.before(&best.head().order) {
			best, score = f, s
		}
	}
	return best
}

func (l *leastAttained) arrives(f, _ *flow, now time.Time) {
	p := bind(l.programs, f)
	if p.live > 0 {
		return
	}
	if idle := now.Sub(p.anchor); idle > 0 && l.cfg.HalfLife > 0 {
		p.service *= math.Exp2(-idle.Seconds() / l.cfg.HalfLife.Seconds())
	}
	p.anchor = now
}

func (l *leastAttained) charge(f *flow, c *charge, _ time.Time) { bind(l.programs, f).began(c) }

func (l *leastAttained) correct(c *charge, s service, now time.Time) {
	if c.program == nil {
		return // sent under another policy
	}
	if !s.estimated {
		c.program.service += float64(s.input + s.cached + 2*s.output)
	}
	c.program.anchor = now
}

// scale is the least and the most of some values.
type scale struct{ least, most float64 }

func (s *scale) include(v float64) { s.least, s.most = min(s.least, v), max(s.most, v) }

func (s *scale) of(v float64) float64 {
	if s.most == s.least {
		return 0.5
	}
	return (v - s.least) / (s.most - s.least)
}

// turnPriority is llm-d's program-aware-fairness with strategy turn-priority:
// of the flows that wait, the one with the highest
//
//	turn + TurnTimeWeight * seconds that its head waits
//
// where turn is how many of the program's requests were sent, plus one. It is 1
// for a program that had nothing running for longer than TurnInactivity when
// its head came, and for requests without an id of their own. All waits grow at
// the same rate, so the order of two heads never changes by itself.
type turnPriority struct {
	programs map[string]*program
	cfg      Fairness
}

// defaultFlow is the fairness ID that llm-d gives to requests without one.
const defaultFlow = "default-flow"

func (t *turnPriority) before(a, b *flow) bool {
	x, y := t.key(a), t.key(b)
	if x != y {
		return x > y
	}
	return a.head().order.before(&b.head().order)
}

func (t *turnPriority) key(f *flow) float64 {
	return float64(t.turn(f)) - t.cfg.TurnTimeWeight*seconds(f.head().entered)
}

func (t *turnPriority) turn(f *flow) int {
	p := f.program
	if f.id == "" || f.id == defaultFlow || t.cfg.TurnInactivity > 0 && p.live == 0 && !p.last.IsZero() &&
		f.head().entered.Sub(p.last) > t.cfg.TurnInactivity {
		return 1
	}
	return p.dispatched + 1
}

func (*turnPriority) next(backlog *flowHeap) *flow { return backlog.flows[0] }

func (t *turnPriority) arrives(f, _ *flow, _ time.Time) { bind(t.programs, f) }

func (t *turnPriority) charge(f *flow, c *charge, _ time.Time) {
	p := bind(t.programs, f)
	p.began(c)
	p.moved(f)
}

func (*turnPriority) correct(c *charge, _ service, _ time.Time) {
	if c.program != nil {
		c.program.moved(c.flow)
	}
}
