package scheduler

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// flood keeps a band's flow backlogged.
func (q *queues) flood(band, n int) {
	for range n {
		q.wait(in("flood", band), time.Unix(1, 0))
	}
}

func TestReservationGoesFirstUntilItIsHeld(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	q := newQueues(Config{})
	q.flood(10, 50)
	for range 10 {
		r := in("reserved", -10)
		r.Reserved = 250
		q.wait(r, now)
	}
	took := func() (string, *charge) {
		w, c := q.send(t, service{input: 90, cached: 1000, output: 10}, now)
		return w.request.Flow.FairnessID, c
	}
	var held []*charge
	for i := range 3 { // 0, 100 and 200 tokens are less than 250
		id, c := took()
		if id != "reserved" {
			t.Fatalf("place %d went to %s, want the reservation", i, id)
		}
		held = append(held, c)
	}
	for range 10 {
		if id, _ := took(); id != "flood" {
			t.Fatalf("a place went to %s, whose reservation is held, want the higher band", id)
		}
	}
	q.ended(held[0], service{input: 5000, output: 5000}, now)
	if id, _ := took(); id != "reserved" {
		t.Errorf("the place that the reservation gave back went to %s", id)
	}
	if id, _ := took(); id != "flood" {
		t.Errorf("the next place went to %s, want the higher band", id)
	}
}

func TestUnusedReservationIsEveryones(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	q := newQueues(Config{})
	r := in("reserved", 0)
	r.Reserved = 1 << 40
	q.flood(0, 5)
	q.wait(r, now)
	if w, _ := q.send(t, service{input: 1}, now); w.request.Flow.FairnessID != "reserved" {
		t.Fatal("the reservation did not go first")
	}
	for range 5 {
		q.send(t, service{input: 1}, now)
	}
	r.Reserved = 0 // the latest request counts
	q.flood(10, 1)
	q.wait(r, now)
	if got := q.next(always).band.priority; got != 10 {
		t.Errorf("a reservation that was taken back went before band 10")
	}
}

func TestReservationsAreServedByBandAndThenByPart(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	q := newQueues(Config{})
	reserve := func(id string, band, tokens int) {
		for range 10 {
			r := in(id, band)
			r.Reserved = tokens
			q.wait(r, now)
		}
	}
	reserve("low", 0, 100)
	reserve("small", 5, 200)
	reserve("large", 5, 400)
	got := map[string]int{}
	for range 6 {
		w, _ := q.send(t, service{input: 100}, now)
		got[w.request.Flow.FairnessID]++
	}
	if got["small"] != 2 || got["large"] != 4 {
		t.Errorf("6 places in the higher band went as %v, want small:2 large:4", got)
	}
	if w, _ := q.send(t, service{input: 100}, now); w.request.Flow.FairnessID != "low" {
		t.Error("the lower band's reservation did not follow")
	}
}

// serve dispatches and ends n requests whose size the ids of bands say, and
// returns the part of the tokens that each band got.
func serve(t *testing.T, q *queues, n int, actual func(band int) int) map[int]float64 {
	t.Helper()
	now, got, total := time.Unix(1, 0), map[int]float64{}, 0.0
	for range n {
		w, c := q.send(t, service{input: 1000}, now)
		q.wait(w.request, now) // the backlog stays
		tokens := actual(w.request.Flow.Band)
		q.ended(c, service{input: tokens}, now)
		got[w.request.Flow.Band] += float64(tokens)
		total += float64(tokens)
	}
	for b := range got {
		got[b] /= total
	}
	return got
}

func shares(of map[int]float64) Config {
	var cfg Config
	for _, priority := range []int{20, 10, 0, -10} {
		cfg.Bands = append(cfg.Bands, BandConfig{Priority: priority, MinShare: of[priority]})
	}
	return cfg
}

func TestBandGetsItsMinimumShare(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		shares  map[int]float64
		waiting []int
		tokens  map[int]int // of a request, where not 1,000
		want    map[int]float64
	}{
		{"none but by rank without one", nil, []int{10, 0}, nil, map[int]float64{10: 1}},
		{"its share beside a flood above it", map[int]float64{0: 0.2}, []int{10, 0}, nil, map[int]float64{10: 0.8, 0: 0.2}},
		{"two bands theirs, a third nothing", map[int]float64{0: 0.2, 10: 0.1}, []int{20, 10, 0, -10}, nil, map[int]float64{20: 0.7, 10: 0.1, 0: 0.2}},
		{"in tokens, not requests", map[int]float64{0: 0.3}, []int{10, 0}, map[int]int{10: 4000, 0: 100}, map[int]float64{10: 0.7, 0: 0.3}},
		{"in tokens that were served, not estimated", map[int]float64{0: 0.3}, []int{10, 0}, map[int]int{10: 300, 0: 9000}, map[int]float64{10: 0.7, 0: 0.3}},
		{"all of it where nobody else waits", map[int]float64{0: 0.3}, []int{0}, nil, map[int]float64{0: 1}},
		{"a share of the highest changes nothing", map[int]float64{10: 0.3}, []int{10, 0}, nil, map[int]float64{10: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			q := newQueues(shares(tt.shares))
			for _, b := range tt.waiting {
				q.flood(b, 3)
			}
			got := serve(t, q, 40_000, func(b int) int {
				if n := tt.tokens[b]; n > 0 {
					return n
				}
				return 1000
			})
			for _, b := range tt.waiting {
				if math.Abs(got[b]-tt.want[b]) > 0.005 {
					t.Errorf("band %d was served %.3f of the tokens, want %.3f", b, got[b], tt.want[b])
				}
			}
		})
	}
}

func TestShareIsNotSavedUp(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	q := newQueues(shares(map[int]float64{0: 0.1}))
	q.flood(10, 3)
	same := func(int) int { return 1000 }
	serve(t, q, 10_000, same) // nothing of band 0 waits
	q.flood(0, 3)
	if got := serve(t, q, 100, same); got[0] > 0.12 {
		t.Errorf("a band that was away got %.2f of the tokens, want its share of 0.1", got[0])
	}

	// What a band gets by its rank alone costs it nothing later.
	alone := newQueues(shares(map[int]float64{0: 0.1}))
	alone.flood(0, 3)
	serve(t, alone, 10_000, same)
	alone.flood(10, 3)
	if got := serve(t, alone, 100, same); got[0] < 0.08 {
		t.Errorf("a band that was alone got %.2f of the tokens beside a flood, want its share of 0.1", got[0])
	}

	// A band whose backlog comes and goes gets no more by that.
	blinks, low := newQueues(shares(map[int]float64{0: 0.1})), 0
	blinks.flood(10, 4000)
	for range 1000 {
		w := blinks.wait(in("blinks", 0), now)
		for range 2 {
			got, c := blinks.send(t, service{input: 1000}, now)
			blinks.ended(c, service{input: 1000}, now)
			if got == w {
				low++
			}
		}
		if w.flow != nil {
			blinks.remove(w)
		}
		_, c := blinks.send(t, service{input: 1000}, now)
		blinks.ended(c, service{input: 1000}, now)
	}
	if low < 100 || low > 310 {
		t.Errorf("a band whose backlog comes and goes got %d of 3,000 places, want at most its share of 300", low)
	}

	// Nor does one keep what it was owed when it left.
	leaves := newQueues(shares(map[int]float64{0: 0.1}))
	leaves.flood(10, 3)
	w := leaves.wait(in("leaves", 0), now)
	leaves.send(t, service{input: 1000}, now)
	if leaves.next(always) != w {
		t.Fatal("a band that is owed something does not go first")
	}
	leaves.remove(w)
	leaves.wait(in("leaves", 0), now)
	if got := leaves.next(always).band.priority; got != 10 {
		t.Error("a band kept what it was owed while it was away")
	}
}

func TestCeilingOfTheHighestBandHoldsGuarantees(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	q := newQueues(shares(map[int]float64{0: 0.5}))
	r := in("reserved", 0)
	r.Reserved = 1000
	q.wait(r, now)
	q.flood(10, 1)
	closed := func(priorities ...int) func(*band) bool {
		return func(b *band) bool { return !slices.Contains(priorities, b.priority) }
	}
	if w := q.next(closed(10, 0, -10)); w == nil || w.request.Flow.FairnessID != "reserved" {
		t.Error("a reservation was held by a ceiling below the highest band's")
	}
	if w := q.next(closed(20)); w != nil {
		t.Error("somebody goes though the highest band is held")
	}
	q.remove(q.next(always))
	if w := q.next(closed(10)); w != nil {
		t.Error("strict order went past a band that is held")
	}
}

// However bands come and go, whatever is served: a band with a share is never
// behind by more than a request or two while it waits and places are given.
func TestNoBandFallsBehindItsShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		share := rapid.Float64Range(0.05, 0.6).Draw(t, "share")
		q := newQueues(shares(map[int]float64{0: share}))
		now, served, total := time.Unix(1, 0), 0.0, 0.0
		q.flood(10, 2)
		for range 200 {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				q.wait(in("low", 0), now)
			default:
				had := q.band(0).queued > 0
				tokens := rapid.IntRange(1, 100).Draw(t, "tokens")
				w := q.next(always)
				c := &charge{band: w.band, flow: w.flow}
				q.began(c, &w.request, service{input: tokens}, now)
				q.remove(w)
				q.ended(c, service{input: tokens}, now)
				if w.request.Flow.Band == 10 {
					q.flood(10, 1)
				}
				if !had {
					continue
				}
				total += float64(tokens)
				if w.request.Flow.Band == 0 {
					served += float64(tokens)
				}
				if q.band(0).queued == 0 {
					served, total = 0, 0 // a new backlog is a new account
				}
				if behind := share*total - served; behind > 200 {
					t.Fatalf("band 0 is %.0f tokens behind its share of %s", behind, fmt.Sprint(share))
				}
			}
		}
	})
}
