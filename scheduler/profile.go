package scheduler

import (
	"cmp"
	"math/rand/v2"
	"time"
)

// profile is a Profile made ready for use.
type profile struct {
	filters   []filter
	scorers   []scorer
	kind      PickerKind
	max       int // endpoints to name
	prefix    PrefixCache
	precise   PreciseCache
	worth     [tiers]float64 // of cached tokens
	slowStart time.Duration
	headroom  float64 // part of its limit that an endpoint may hold beyond it, for what it has cached
	prefill   float64 // tokens that stand in front at an endpoint of average pace when it takes no more prompts that are new to it; 0: no bound
	chance    *rand.Rand

	split *split // nil: prompts are computed where the answer is made
}

// ownPrefill is the prefill budget of Weir's own profile: about a second of an
// engine's work. An engine computes prompts in the order in which they come, so
// what waits there waits behind all that was sent before; what waits here goes
// by band and turn. More than an engine needs to stay busy is better kept here.
const ownPrefill = 16_384

// ownHeadroom is the headroom of Weir's own profile.
const ownHeadroom = 0.5

// compile makes a profile ready. Plugins that it doesn't know are as if they
// were not there: who takes a Profile from outside asks Unsupported first.
func compile(p Profile, seed uint64) profile {
	own := p.own()
	out := compileRules(p, own, seed)
	out.split = compileSplit(p, own, &out, seed)
	return out
}

// own reports whether the profile is Weir's own.
func (p Profile) own() bool { return len(p.Scorers) == 0 && len(p.Filters) == 0 }

// compileRules is compile for a profile without its split.
func compileRules(p Profile, own bool, seed uint64) profile {
	if own {
		p.Scorers = []Scorer{{Kind: WorkScorer, Weight: 1}}
	}
	out := profile{
		kind:      cmp.Or(p.Picker.Kind, MaxScore),
		max:       max(p.Picker.MaxEndpoints, 1),
		prefix:    p.Prefix.withDefaults(),
		precise:   p.Precise.withDefaults(),
		slowStart: cmp.Or(p.SlowStart, 10*time.Second),
		chance:    chance(seed),
	}
	out.worth = out.precise.worth()
	out.headroom = max(p.Headroom, 0)
	if own {
		out.prefill = ownPrefill
		if p.Headroom == 0 {
			out.headroom = ownHeadroom
		}
	}
	for _, x := range p.Filters {
		if x.Kind == string(ConcurrencyDetector) {
			out.headroom = max(out.headroom, x.Detector.Headroom)
		}
		if f, ok := newFilter(x); ok {
			out.filters = append(out.filters, f)
		}
	}
	for _, x := range p.Scorers {
		if s, ok := newScorer(x); ok {
			out.scorers = append(out.scorers, s)
		}
	}
	return out
}

// Unsupported returns the kinds of plugins of the profile that this scheduler
// doesn't know.
func (p Profile) Unsupported() (kinds []string) {
	for _, x := range p.Filters {
		if _, ok := newFilter(x); !ok {
			kinds = append(kinds, x.Kind)
		}
	}
	for _, x := range p.Scorers {
		if _, ok := newScorer(x); !ok {
			kinds = append(kinds, x.Kind)
		}
	}
	if p.Split != nil {
		kinds = append(kinds, p.Split.Prefill.Unsupported()...)
	}
	return kinds
}
