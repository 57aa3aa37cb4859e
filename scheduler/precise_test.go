package scheduler_test

import (
	"testing"
	"time"

	"weir/scheduler"
)

const engineBlock = 16

// preciseRig is a scheduler of two endpoints that report their caches.
type preciseRig struct {
	*scheduler.Embedded

	t *testing.T
	n int
}

func newPrecise(t *testing.T, change func(*scheduler.PreciseCache)) *preciseRig {
	t.Helper()
	p := scheduler.PreciseCache{Enabled: true}
	if change != nil {
		change(&p)
	}
	s := scheduler.New(scheduler.Config{Profile: scheduler.Profile{
		Precise: p, SlowStart: -1,
		Scorers: []scheduler.Scorer{{Kind: "prefix-cache-scorer", Weight: 1}},
	}}, nil)
	t.Cleanup(s.Close)
	s.SetEndpoints([]scheduler.Endpoint{{ID: "a"}, {ID: "b"}})
	s.SetHealth("a", scheduler.Healthy)
	s.SetHealth("b", scheduler.Healthy)
	return &preciseRig{Embedded: s, t: t}
}

// tokensOf are n tokens of a prompt that shares none with others.
func tokensOf(prompt, n int) []uint64 {
	all := make([]uint64, n)
	for i := range all {
		all[i] = uint64(prompt)<<32 | uint64(i)
	}
	return all
}

// changes are the blocks of tokens as they come into a tier.
func changes(tokens []uint64, salt string, tier scheduler.Tier) (all []scheduler.CacheChange) {
	extra, parent := scheduler.ExtraHash(salt), uint64(0)
	for ; len(tokens) >= engineBlock; tokens = tokens[engineBlock:] {
		block := scheduler.BlockHash(parent, tokens[:engineBlock], extra)
		all = append(all, scheduler.CacheChange{Block: block, Parent: parent, Tier: tier})
		extra, parent = 0, block
	}
	return all
}

func (r *preciseRig) reports(id string, all []scheduler.CacheChange, empty bool) {
	r.CacheChanged(id, scheduler.CacheReport{Model: "m", BlockTokens: engineBlock, Clear: empty, Changes: all})
}

// send schedules a prompt and returns where it went and how much it was
// expected to find there; found is what the engine then tells.
func (r *preciseRig) send(tokens []uint64, found func(expected int) int) (endpoint string, expected int) {
	r.t.Helper()
	r.n++
	id := string(rune('0' + r.n%10))
	l, err := r.Schedule(r.t.Context(), scheduler.Request{
		ID: id, Model: "m", CacheSalt: "salt", Tokens: scheduler.PreciseCache{}.Chain(tokens, "salt"), InputTokens: 1,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	d, _ := r.Decision(id)
	if found == nil {
		l.End(scheduler.Outcome{Result: scheduler.Abandoned})
	} else {
		n := found(d.CachedTokens)
		l.End(scheduler.Outcome{Result: scheduler.Completed, InputTokens: len(tokens) - n, CachedTokens: n})
	}
	return l.Targets()[0].Endpoint, d.CachedTokens
}

func (r *preciseRig) cache(id string) scheduler.CacheState {
	r.t.Helper()
	for _, p := range r.State().Endpoints {
		if p.ID == id {
			return p.Cache
		}
	}
	r.t.Fatalf("no endpoint %s", id)
	return scheduler.CacheState{}
}

func TestARequestGoesWhereItsPromptIsSaidToBe(t *testing.T) {
	t.Parallel()
	r := newPrecise(t, nil)
	mine := tokensOf(1, 1000)
	r.reports("a", nil, true)
	r.reports("b", changes(mine, "salt", scheduler.TierHBM), true)
	for range 3 {
		if at, n := r.send(mine, nil); at != "b" || n != 992 {
			t.Fatalf("went to %s with %d tokens expected, want b with its 62 whole blocks", at, n)
		}
	}
	all := changes(mine, "salt", scheduler.TierHBM)
	for i := range all {
		all[i].Gone = true
	}
	r.reports("b", all[31:], false)
	if at, n := r.send(mine, nil); at != "b" || n != 31*engineBlock {
		t.Errorf("went to %s with %d tokens expected after an eviction, want b with %d", at, n, 31*engineBlock)
	}
	r.reports("b", all, false)
	if _, n := r.send(mine, nil); n != 0 {
		t.Errorf("%d tokens are expected of a prompt that was evicted everywhere", n)
	}
}

func TestAnotherSaltHitsNothing(t *testing.T) {
	t.Parallel()
	r := newPrecise(t, nil)
	mine := tokensOf(1, 320)
	r.reports("a", changes(mine, "of another tenant", scheduler.TierHBM), true)
	r.reports("b", nil, true)
	if at, n := r.send(mine, nil); n != 0 {
		t.Errorf("%d tokens are expected at %s, which has them for another salt", n, at)
	}
}

func TestAQuickerTierIsWorthMore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		a, b       scheduler.Tier
		best       string
		least, top int
	}{
		{"memory of the accelerator before that of the host", scheduler.TierHost, scheduler.TierHBM, "b", 320, 320},
		{"memory of the host before storage", scheduler.TierHost, scheduler.TierStorage, "a", 250, 319},
		{"storage before nothing", scheduler.TierStorage, 255, "a", 100, 250},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newPrecise(t, nil)
			mine := tokensOf(1, 320)
			r.reports("a", changes(mine, "salt", c.a), true)
			r.reports("b", changes(mine, "salt", c.b), true)
			if at, n := r.send(mine, nil); at != c.best || n < c.least || n > c.top {
				t.Errorf("went to %s with %d tokens expected, want %s with %d to %d", at, n, c.best, c.least, c.top)
			}
		})
	}
}

func TestABlockThatCameTwiceGoesTwice(t *testing.T) {
	t.Parallel()
	r := newPrecise(t, nil)
	mine := tokensOf(1, 160)
	come := changes(mine, "salt", scheduler.TierHBM)
	r.reports("a", come, true)
	r.reports("a", come, false)
	gone := changes(mine, "salt", scheduler.TierHBM)
	for i := range gone {
		gone[i].Gone = true
	}
	r.reports("a", gone, false)
	if s := r.cache("a"); s.HBM != len(come) {
		t.Errorf("%d blocks are left of two copies of %d, one of which went", s.HBM, len(come))
	}
	r.reports("a", gone, false)
	if s := r.cache("a"); s.HBM != 0 {
		t.Errorf("%d blocks are left when both copies went", s.HBM)
	}
}

func TestAfterAGapWhatWasSentDecidesUntilAnswersAgree(t *testing.T) {
	t.Parallel()
	r := newPrecise(t, nil)
	r.reports("a", nil, true)
	r.reports("b", changes(tokensOf(1, 320), "salt", scheduler.TierHBM), true)
	r.CacheMissed("b")
	if s := r.cache("b"); s.Trust != scheduler.Unproven || s.HBM != 0 || s.Dropped != 1 {
		t.Fatalf("after a gap: %+v", s)
	}
	r.reports("b", []scheduler.CacheChange{{Block: 8, Parent: 7}}, false)
	if s := r.cache("b"); s.Orphans != 1 || s.HBM != 0 {
		t.Errorf("a block whose beginning was missed is counted as %+v", s)
	}
	r.SetEndpoints([]scheduler.Endpoint{{ID: "b"}})
	for i := range 20 {
		mine := tokensOf(100+i, 320)
		r.reports("b", changes(mine, "salt", scheduler.TierHBM), false)
		if s := r.cache("b"); s.Trust == scheduler.Trusted {
			if i < 8 {
				t.Fatalf("trusted after %d answers", i)
			}
			return
		}
		r.send(mine, func(int) int { return 304 })
	}
	t.Errorf("after 20 answers that agree: %+v", r.cache("b"))
}

func TestALiarIsFoundOut(t *testing.T) {
	t.Parallel()
	t.Run("blocks that never hit", func(t *testing.T) {
		t.Parallel()
		r := newPrecise(t, nil)
		r.SetEndpoints([]scheduler.Endpoint{{ID: "a"}})
		r.send(tokensOf(9, 320), func(int) int { return 64 }) // its engine does tell
		r.reports("a", nil, true)
		for i := range 12 {
			mine := tokensOf(100+i, 320)
			r.reports("a", changes(mine, "salt", scheduler.TierHBM), false)
			r.send(mine, func(int) int { return 0 })
		}
		if s := r.cache("a"); s.Trust != scheduler.Distrusted || s.Differed != 12 {
			t.Errorf("after 12 answers without a hit: %+v", s)
		}
		if _, n := r.send(tokensOf(100, 320), nil); n != 0 {
			t.Errorf("%d tokens are still expected of it", n)
		}
	})
	t.Run("hits that it never tells of", func(t *testing.T) {
		t.Parallel()
		r := newPrecise(t, nil)
		r.SetEndpoints([]scheduler.Endpoint{{ID: "a"}})
		r.reports("a", nil, true)
		for i := range 60 {
			r.send(tokensOf(i, 320), func(int) int { return 304 })
		}
		if s := r.cache("a"); s.Trust != scheduler.Distrusted {
			t.Errorf("after 60 hits on what it said it hasn't: %+v", s)
		}
	})
	t.Run("more than its memory holds", func(t *testing.T) {
		t.Parallel()
		r := newPrecise(t, nil)
		r.SetLoad("a", scheduler.Load{BlockSize: engineBlock, Blocks: 10, At: time.Now()})
		r.reports("a", changes(tokensOf(1, 12*engineBlock), "salt", scheduler.TierHBM), true)
		if s := r.cache("a"); s.Trust != scheduler.Rejected || s.HBM != 0 {
			t.Errorf("12 blocks in a memory of 10: %+v", s)
		}
		r.reports("a", changes(tokensOf(1, 320), "salt", scheduler.TierHost), false)
		if s := r.cache("a"); s.Host != 0 {
			t.Errorf("what it says is still taken: %+v", s)
		}
		r.reports("a", changes(tokensOf(1, 160), "salt", scheduler.TierHBM), true)
		if s := r.cache("a"); s.Trust != scheduler.Trusted || s.HBM != 10 {
			t.Errorf("after it began anew: %+v", s)
		}
	})
	t.Run("blocks of another size", func(t *testing.T) {
		t.Parallel()
		r := newPrecise(t, func(p *scheduler.PreciseCache) { p.BlockTokens = 64 })
		r.reports("a", changes(tokensOf(1, 160), "salt", scheduler.TierHBM), true)
		if s := r.cache("a"); s.Trust != scheduler.Rejected {
			t.Errorf("it is taken: %+v", s)
		}
	})
}

func TestWhatIsOnItsWayCountsForAMoment(t *testing.T) {
	t.Parallel()
	r := newPrecise(t, func(p *scheduler.PreciseCache) { p.Speculative = 2 * time.Second })
	r.reports("a", nil, true)
	r.reports("b", nil, true)
	prompt := [][]byte{make([]byte, 8<<10)}
	first := ""
	for i := range 4 {
		l, err := r.Schedule(t.Context(), scheduler.Request{ID: "x", Model: "m", Prompt: prompt, Tokens: scheduler.PreciseCache{}.Chain(tokensOf(1, 2048), "")})
		if err != nil {
			t.Fatal(err)
		}
		defer l.End(scheduler.Outcome{})
		if at := l.Targets()[0].Endpoint; i == 0 {
			first = at
		} else if at != first {
			t.Errorf("the same prompt went to %s and to %s before either could report it", first, at)
		}
	}
}

func TestReportsOfAPoolThatDoesNotFollowThemAreDropped(t *testing.T) {
	t.Parallel()
	r := newPrecise(t, nil)
	r.reports("a", changes(tokensOf(1, 320), "salt", scheduler.TierHBM), true)
	r.SetConfig(scheduler.Config{})
	if s := r.cache("a"); s != (scheduler.CacheState{}) {
		t.Errorf("kept: %+v", s)
	}
	r.reports("a", changes(tokensOf(1, 320), "salt", scheduler.TierHBM), true)
	if s := r.cache("a"); s != (scheduler.CacheState{}) {
		t.Errorf("taken: %+v", s)
	}
}

func TestAPromptOfWhichNoTokensAreKnownIsTakenAsIfNoneWereTold(t *testing.T) {
	t.Parallel()
	r := newPrecise(t, nil)
	r.reports("a", nil, true)
	r.reports("b", nil, true)
	l, err := r.Schedule(t.Context(), scheduler.Request{
		ID: "1", Model: "m", InputTokens: 500, Tokens: scheduler.PreciseCache{}.Chain(nil, "salt"), Prompt: [][]byte{make([]byte, 2000)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if d, _ := r.Decision("1"); d.CachedTokens != 0 || d.InputTokens != 500 {
		t.Errorf("%d of %d tokens are expected to be cached, want 0 of 500", d.CachedTokens, d.InputTokens)
	}
	l.End(scheduler.Outcome{Result: scheduler.Abandoned})
}
