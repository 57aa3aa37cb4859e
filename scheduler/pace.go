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
type pace struct {
	prior float64 // by what the operator says
	slow  float64 // what it is now; above 0
	seen  float64 // observations, fading
	sum   float64 // of them
	at    time.Time
}

const (
	priorWeight  = 4 // observations that the prior counts as
	paceHalfLife = 30 * time.Second
	paceRefresh  = 10 * time.Second
	// stepTokens is what a request costs beside its tokens: the step of the
	// engine that begins it, the way there and back.
	stepTokens = 512
	// maxSlow bounds what one observation says.
	maxSlow = 64
)

// fade ages what was seen, at most once in a while when nothing is observed.
func (p *pace) fade(now time.Time, atLeast time.Duration) {
	passed := now.Sub(p.at)
	if passed < atLeast {
		return
	}
	p.at = now
	if p.seen > 0 {
		keep := math.Exp2(-passed.Seconds() / paceHalfLife.Seconds())
		p.seen, p.sum = p.seen*keep, p.sum*keep
	}
	p.slow = (priorWeight*p.prior + p.sum) / (priorWeight + p.seen)
}

func (p *pace) observe(slow float64, now time.Time) {
	p.fade(now, 0)
	p.seen, p.sum = p.seen+1, p.sum+min(max(slow, 1.0/maxSlow), maxSlow)
	p.slow = (priorWeight*p.prior + p.sum) / (priorWeight + p.seen)
}

// speed is how fast the pool's endpoints do prefill work, on average over what
// they did lately.
type speed struct{ tokens, seconds float64 }

// observe takes a time to first token and the tokens that had to be computed
// for it, and returns it as a multiple of what was to be expected.
func (s *speed) observe(tokens int, took time.Duration) (slow float64) {
	const keep = 1 - 1.0/256
	work := float64(tokens + stepTokens)
	s.tokens, s.seconds = keep*s.tokens+work, keep*s.seconds+took.Seconds()
	return took.Seconds() * s.tokens / (s.seconds * work)
}
