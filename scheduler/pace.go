package scheduler

import (
	"math"
	"time"
)

// pace is how long an endpoint takes for prefill work, as a multiple of what
// the pool's endpoints take for the same on average: 10 where it needs a second
// for what takes others 100 ms. It begins as what the operator says and follows
// what the endpoint shows; without news for a while it goes back, so that a bad
// hour is not held against an endpoint that gets nothing to prove itself with.
//
// What it shows counts only where it clearly differs from the prior: equal
// endpoints show different times by chance, and if those decided, new prompts
// would all go to one of them.
type pace struct {
	slow  float64   // what counts now
	prior float64   // by what the operator says; above 0
	seen  float64   // observations, fading
	sum   float64   // of their logarithms, as multiples of the prior
	at    time.Time // when they faded last
}

const (
	priorWeight  = 8 // observations that the prior counts as
	clearly      = 2
	paceHalfLife = 30 * time.Second
	paceRefresh  = 10 * time.Second
	// maxSlow bounds what one observation says.
	maxSlow = 64
)

// fade ages what was seen.
func (p *pace) fade(now time.Time) {
	passed := now.Sub(p.at)
	p.at = now
	keep := math.Exp2(-max(passed.Seconds(), 0) / paceHalfLife.Seconds())
	p.seen, p.sum = p.seen*keep, p.sum*keep
	p.settle()
}

// observe takes a time as a multiple of what was to be expected, and its weight.
func (p *pace) observe(slow, weight float64, now time.Time) {
	p.fade(now)
	p.seen += weight
	p.sum += weight * math.Log(min(max(slow, 1.0/maxSlow), maxSlow)/p.prior)
	p.settle()
}

func (p *pace) settle() {
	p.slow = p.prior
	if by := math.Exp(p.sum / (priorWeight + p.seen)); by > clearly || by*clearly < 1 {
		p.slow *= by
	}
}

// speed is how fast the pool's endpoints do prefill work, on average over what
// they did lately: the straight line through all times to first token by the
// tokens that had to be computed until then. What it has at no tokens is what a
// request costs beside them: the way there and back, and the engine's step.
type speed struct{ n, work, took, work2, both float64 }

// observe takes a time to first token and the tokens that had to be computed
// for it, and returns it as a multiple of what was to be expected. What was to
// take less than others weighs less: it says more of the steps of an engine than
// of its speed.
func (s *speed) observe(tokens int, seconds float64) (slow, weight float64) {
	const keep = 1 - 1.0/256
	work := float64(tokens)
	s.n, s.work, s.took = keep*s.n+1, keep*s.work+work, keep*s.took+seconds
	s.work2, s.both = keep*s.work2+work*work, keep*s.both+work*seconds
	expected := s.expect(work)
	return seconds / expected, min(expected*s.n/s.took, 1)
}

func (s *speed) expect(work float64) (seconds float64) {
	meanWork, meanTook := s.work/s.n, s.took/s.n
	variance := s.work2/s.n - meanWork*meanWork
	slope := 0.0
	if variance > meanWork*meanWork/100 { // else all are much the same, and so is what they take
		slope = min(max((s.both/s.n-meanWork*meanTook)/variance, 0), meanTook/meanWork)
	}
	return meanTook + slope*(work-meanWork)
}
