package scheduler

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The prompt of a rig's requests has 512 tokens in 8 blocks.
func TestWorkCostsWhatTheFormulaSays(t *testing.T) {
	t.Parallel()
	candidates := []candidate{{}, {pending: 4096}, {has: 8, live: 2}, {has: 4}}
	tests := []struct {
		name string
		turn int
		want []WorkCost
	}{
		{
			"a later turn pays for what others have as for all that has to be computed", 2,
			[]WorkCost{
				{Pace: 1, Uncached: 512, Extra: 7 * 512},
				{Pace: 1, Ahead: 4096, Uncached: 512, Extra: 7 * 512, Later: 4 * 4096},
				{Pace: 1, Ahead: 128, Uncached: 1},
				{Pace: 1, Uncached: 256, Extra: 7 * 256},
			},
		},
		{
			"what a session begins with is shared by all, and a copy no burden", 1,
			[]WorkCost{
				{Pace: 1, Uncached: 512},
				{Pace: 1, Ahead: 4096, Uncached: 512, Later: 4 * 4096},
				{Pace: 1, Ahead: 128, Uncached: 1},
				{Pace: 1, Uncached: 256},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := rigged(t, Profile{}, candidates...)
			q := r.request()
			q.Turn = tt.turn
			c := r.pickOf(q)
			got, least := make([]WorkCost, len(candidates)), math.Inf(1)
			for _, x := range c.candidates {
				got[x.Endpoint[1]-'0'] = x.Work
				least = min(least, x.Work.total())
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("costs (-want +got):\n%s", diff)
			}
			for _, x := range c.candidates {
				if want := least / x.Work.total(); x.Score != want {
					t.Errorf("%s scores %v, want %v", x.Endpoint, x.Score, want)
				}
			}
		})
	}
}

// Two endpoints are full, one of what is used again and again, the other of
// what nobody came back for.
func TestNewPromptsGoWhereNobodyComesBackForWhatTheyDriveOut(t *testing.T) {
	t.Parallel()
	r := rigged(t, Profile{}, candidate{}, candidate{})
	busy, dead := &r.endpoints[0].cache, &r.endpoints[1].cache
	r.prefix.resize(busy, 64)
	r.prefix.resize(dead, 64)
	chainOf := func(n uint64) (all []uint64) {
		for i := range uint64(16) {
			all = append(all, n<<32|i+1)
		}
		return all
	}
	use := func(s *shelf, n uint64) {
		hashes := chainOf(n)
		r.prefix.search(hashes)
		r.prefix.use(s, hashes)
	}
	for i := range uint64(400) {
		use(busy, 1+i%4)
		if i%4 == 0 {
			use(dead, 100+i)
		}
	}
	c := r.pickOf(&Request{Session: "new", Turn: 1, InputTokens: 512, chain: r.request().chain})
	if c.endpoints[0].ID != "e1" {
		t.Errorf("it went to %s: %+v", c.endpoints[0].ID, c.candidates)
	}
	for _, x := range c.candidates {
		if x.Endpoint == "e0" && x.Work.Evicts < 512*evictionCost/2 {
			t.Errorf("driving out what was used every fourth prompt is taken to cost %v", x.Work.Evicts)
		}
	}
}

// Blocks whose fate is known: of three kinds, one is used after 2 prompts, one
// after 40, and one never, which is evicted after 100.
func TestTheChanceOfReuseFallsWithAge(t *testing.T) {
	t.Parallel()
	var r reuse
	for range 10_000 {
		r.use(2)
		r.use(40)
		r.evict(100)
	}
	for _, tt := range []struct {
		age  uint32
		want float64
	}{{1, 2.0 / 3}, {2, 2.0 / 3}, {4, 0.5}, {32, 0.5}, {64, 0}, {90, 0}, {1 << 31, 0}} {
		if got := r.chance(tt.age); math.Abs(got-tt.want) > 0.01 {
			t.Errorf("at age %d it is %.2f, want %.2f", tt.age, got, tt.want)
		}
	}
}

func TestAnAverageIsOfTheLatestTime(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	var r recency
	var a average
	a.rebase(r.rebase(now))
	at := func(d time.Duration) float64 { return r.weight(now.Add(d)) }
	a.add(0, at(0))
	a.add(100, at(recencyHalfLife))
	if got := a.times(0, at(recencyHalfLife)) / at(recencyHalfLife); math.Abs(got-50) > 1e-9 {
		t.Errorf("100 for a half-life, and nothing before, is %v in the mean", got)
	}
	if got := a.times(0, at(3*recencyHalfLife)) / at(3*recencyHalfLife); math.Abs(got-12.5) > 1e-9 {
		t.Errorf("two half-lives later it is %v", got)
	}
	later := now.Add(recencyRebase + recencyHalfLife)
	before := a.times(8, r.weight(later)) / r.weight(later)
	if by := r.rebase(later); by == 1 {
		t.Error("weights grow without a bound")
	} else {
		a.rebase(by)
	}
	if got := a.times(8, r.weight(later)) / r.weight(later); math.Abs(got-before) > 1e-9 {
		t.Errorf("a new beginning makes %v of %v", got, before)
	}
}
