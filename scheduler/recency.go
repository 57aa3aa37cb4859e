package scheduler

import (
	"math"
	"time"
)

// recency is the weight of time in averages of what was: an instant counts half
// of what one counts that is a half-life later. Instead of all averages fading
// as time goes by, what comes weighs more: so reading those of a thousand
// endpoints takes one power, not a thousand.
type recency struct{ since time.Time }

const (
	recencyHalfLife = 40 * time.Second
	// recencyRebase is after how long weights begin anew, so that they never
	// overflow.
	recencyRebase = 20 * recencyHalfLife
)

// weight is that of all time until now.
func (r *recency) weight(now time.Time) float64 {
	return math.Exp2(now.Sub(r.since).Seconds() / recencyHalfLife.Seconds())
}

// rebase begins the weights anew if that is due: those that there are have to
// be divided by the result, 1 meaning that nothing has changed.
func (r *recency) rebase(now time.Time) (by float64) {
	if passed := now.Sub(r.since); passed >= 0 && passed < recencyRebase {
		return 1
	}
	by = max(r.weight(now), 1) // a clock that went back makes nothing more recent
	r.since = now
	return by
}

// average is the mean of a number over time, by recency. Times the weight of
// now, its mean is sum.
type average struct {
	sum   float64
	until float64 // weight of the time that sum is of
}

// add takes in that the number was so much until now.
func (a *average) add(number, weight float64) {
	a.sum += number * (weight - a.until)
	a.until = weight
}

// times is the average times the weight of now, the number being so much since
// it was last added to.
func (a *average) times(number, weight float64) float64 {
	return a.sum + number*(weight-a.until)
}

func (a *average) rebase(by float64) { a.sum, a.until = a.sum/by, a.until/by }
