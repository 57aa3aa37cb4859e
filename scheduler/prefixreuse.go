package scheduler

import "math/bits"

// reuse estimates how likely it is that a block of some age, in prompts since
// its last use, will be used again if it is kept. It is the estimator of Kaplan
// and Meier (Nonparametric Estimation from Incomplete Observations, 1958) with
// evictions as the cases that are lost to follow-up: of the blocks that reach
// an age, so many are used at it, so many are evicted, and what would have
// become of these is what becomes of those that stay longer.
//
// Ages are counted by octaves, and older observations fade.
type reuse struct {
	used    [reuseAges]float64 // blocks, by the age at which they were used again
	evicted [reuseAges]float64
	chances [reuseAges]float64 // of a use at that age or later; as of the last time
	seen    int                // blocks since then
	due     int                // at how many of them there is a next time
}

const (
	reuseAges = 33
	// reuseEvery is after how many blocks the chances are computed anew (sooner
	// at first), and reuseKeep what older ones count then.
	reuseFirst = 64
	reuseEvery = 1 << 12
	reuseKeep  = 0.975
)

func (r *reuse) use(age uint32) {
	r.used[bits.Len32(age)]++
	r.see()
}

func (r *reuse) evict(age uint32) {
	r.evicted[bits.Len32(age)]++
	r.see()
}

func (r *reuse) see() {
	if r.seen++; r.seen < r.due {
		return
	}
	r.seen, r.due = 0, min(2*r.due+reuseFirst, reuseEvery)
	reached, never := 0.0, 1.0
	for i := reuseAges - 1; i >= 0; i-- {
		reached += r.used[i] + r.evicted[i]
		if reached > 0 {
			never *= 1 - r.used[i]/reached
		}
		r.chances[i] = 1 - never
		r.used[i] *= reuseKeep
		r.evicted[i] *= reuseKeep
	}
}

// chance is that of a block of this age.
func (r *reuse) chance(age uint32) float64 {
	n := bits.Len32(age)
	if n == 0 || n == reuseAges-1 {
		return r.chances[n]
	}
	within := float64(age)/float64(uint32(1)<<(n-1)) - 1
	return r.chances[n] + within*(r.chances[n+1]-r.chances[n])
}
