package scheduler

import "time"

// tokenCounter is a virtual token counter (Sheng et al., Fairness in Serving
// Large Language Models, 2024), weighted: the flow that was served least, by
// weight, goes next; and a flow that comes back starts level with the least
// served one, so that nobody saves up by staying away.
//
// It is fair to flows with a backlog. One that sends its next request only when
// the last has its answer has none while that runs, and gets what it asks for
// but no more: between its requests it is owed nothing.
type tokenCounter struct {
	byOrder
	outputCost int
	level      float64 // counter of the flow that was served last, before it was
	turns      uint64
}

func byService(a, b *flow) bool {
	if a.served != b.served {
		return a.served < b.served
	}
	return a.turn < b.turn
}

func (t *tokenCounter) arrives(f, first *flow, _ time.Time) {
	level := t.level
	if first != nil {
		level = first.served
	}
	if level > f.served {
		f.lifted += level - f.served
		f.served = level
	}
}

func (t *tokenCounter) charge(f *flow, c *charge, _ time.Time) {
	t.level = f.served
	t.turns++
	f.turn = t.turns
	c.lifted, c.amount = f.lifted, float64(c.cost)/float64(c.weight)
	f.served += c.amount
}

// correct returns what the flow was charged too much, but for as much as it was
// lifted meanwhile: without the charge it would have been lifted by that more.
func (t *tokenCounter) correct(c *charge, s service, _ time.Time) {
	f := c.flow
	by := float64(s.cost(t.outputCost))/float64(c.weight) - c.amount
	if by < 0 {
		by = min(by+f.lifted-c.lifted, 0)
	}
	f.served += by
}
