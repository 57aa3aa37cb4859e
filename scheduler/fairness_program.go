package scheduler

import (
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
	byOrder
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
	return float64(t.turn(f)) - t.cfg.TurnTimeWeight*f.head().order.came.Seconds()
}

func (t *turnPriority) turn(f *flow) int {
	p := f.program
	if f.id == "" || f.id == defaultFlow || t.cfg.TurnInactivity > 0 && p.live == 0 && !p.last.IsZero() &&
		f.head().entered.Sub(p.last) > t.cfg.TurnInactivity {
		return 1
	}
	return p.dispatched + 1
}

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
