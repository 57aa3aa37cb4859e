package scheduler

import (
	"math"
	"time"
)

// leastAttained is llm-d's program-aware-fairness with strategy las: of the
// flows that wait, the one with the highest
//
//	ServiceWeight*(1 - service) + HeadWaitWeight*(wait of its head)
//
// both scaled to 0..1 between the least and the most of those that wait, 0.5
// where these are the same. Service grows when an answer ends and halves with
// every half-life in which the program has nothing to do.
//
// Each score hangs on the scales of all, so no heap holds their order. A tree
// of boxes does: whose box can't beat the best so far is not looked into.
type leastAttained struct {
	programs map[string]*program
	cfg      Fairness

	slots []*flow // those that wait
	boxes []box   // a binary heap: box i spans 2i and 2i+1; the last half is one for each slot
}

// box spans the service, the times of arrival and the first arrival of some
// heads. The empty one spans nothing.
type box struct {
	service, came scale
	seq           uint64
}

// scale is the least and the most of some values.
type scale struct{ least, most float64 }

func (s scale) with(o scale) scale { return scale{min(s.least, o.least), max(s.most, o.most)} }

// weight is what a step of one on the scale counts, of so much for all of it.
func (s scale) weight(all float64) float64 {
	if s.most <= s.least {
		return 0
	}
	return all / (s.most - s.least)
}

func nothing() box {
	none := scale{math.Inf(1), math.Inf(-1)}
	return box{none, none, math.MaxUint64}
}

func boxOf(f *flow) box {
	o, service := &f.head().order, f.program.service
	return box{scale{service, service}, scale{o.came.Seconds(), o.came.Seconds()}, o.seq}
}

func (b *box) with(o *box) box {
	return box{b.service.with(o.service), b.came.with(o.came), min(b.seq, o.seq)}
}

// next is the flow with the least cost, which is the highest score turned
// around: what it was served and how late its head came, each by its weight.
func (l *leastAttained) next(*flowHeap) *flow {
	service := l.boxes[1].service.weight(l.cfg.ServiceWeight)
	came := l.boxes[1].came.weight(l.cfg.HeadWaitWeight)
	best, least, seq := 0, math.Inf(1), uint64(math.MaxUint64)
	cost := func(b *box) float64 { return service*b.service.least + came*b.came.least }
	var look func(i int)
	look = func(i int) {
		b := &l.boxes[i]
		if c := cost(b); b.seq == math.MaxUint64 || c > least || c == least && b.seq >= seq {
			return
		} else if i >= len(l.boxes)/2 {
			best, least, seq = i-len(l.boxes)/2, c, b.seq
			return
		}
		i *= 2
		if cost(&l.boxes[i+1]) < cost(&l.boxes[i]) {
			look(i + 1)
			look(i)
		} else {
			look(i)
			look(i + 1)
		}
	}
	look(1)
	return l.slots[best]
}

// follow puts the flow in its slot, or closes the gap that it leaves.
func (l *leastAttained) follow(f *flow) {
	waits := f.backlog >= 0
	switch {
	case waits && f.slot == 0:
		l.slots = append(l.slots, f)
		f.slot = len(l.slots)
		l.grow()
	case !waits && f.slot > 0:
		last := len(l.slots) - 1
		moved := l.slots[last]
		l.slots[f.slot-1], moved.slot = moved, f.slot
		l.slots[last] = nil
		l.slots = l.slots[:last]
		f.slot = 0
		l.set(last, nothing())
		if moved == f {
			return
		}
		f = moved
	case !waits:
		return
	}
	l.set(f.slot-1, boxOf(f))
}

// grow doubles the boxes when there are more slots.
func (l *leastAttained) grow() {
	half := len(l.boxes) / 2
	if len(l.slots) <= half {
		return
	}
	half = max(2*half, 64)
	l.boxes = make([]box, 2*half)
	for i := range l.boxes {
		l.boxes[i] = nothing()
	}
	for i, f := range l.slots {
		l.boxes[half+i] = boxOf(f)
	}
	for i := half - 1; i > 0; i-- {
		l.boxes[i] = l.boxes[2*i].with(&l.boxes[2*i+1])
	}
}

func (l *leastAttained) set(slot int, b box) {
	i := len(l.boxes)/2 + slot
	l.boxes[i] = b
	for i /= 2; i > 0; i /= 2 {
		l.boxes[i] = l.boxes[2*i].with(&l.boxes[2*i+1])
	}
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
	p.moved(f)
}

func (l *leastAttained) charge(f *flow, c *charge, _ time.Time) { bind(l.programs, f).began(c) }

func (l *leastAttained) correct(c *charge, s service, now time.Time) {
	p := c.program
	if p == nil {
		return // sent under another policy
	}
	if !s.estimated {
		p.service += float64(s.input + s.cached + 2*s.output)
	}
	p.anchor = now
	p.moved(c.flow)
}
