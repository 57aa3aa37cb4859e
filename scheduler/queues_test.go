package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCapsAreCheckedFromTheOutsideIn(t *testing.T) {
	t.Parallel()
	now := time.Unix(1, 0)
	// Three requests of 10 bytes wait in flow "f" of band 0.
	tests := []struct {
		name string
		cfg  Config
		to   Flow
		want Reason
	}{
		{"nothing is full", Config{}, Flow{"f", 0}, ""},
		{"the pool's bytes before all else", Config{MaxBytes: 39, MaxQueued: 3, MaxBandQueued: 3, MaxFlowQueued: 3}, Flow{"f", 0}, PoolFull},
		{"just the pool's bytes", Config{MaxBytes: 40}, Flow{"f", 0}, ""},
		{"the pool's requests before the band's bytes", Config{MaxQueued: 3, DefaultBand: BandConfig{MaxBytes: 39}}, Flow{"f", 0}, PoolFull},
		{"the band's bytes before its requests and the flow's", Config{DefaultBand: BandConfig{MaxBytes: 39}, MaxFlowQueued: 3}, Flow{"f", 0}, BandFull},
		{"the band's requests before the flow's", Config{MaxBandQueued: 3, MaxFlowQueued: 3}, Flow{"f", 0}, BandFull},
		{"the flow's own", Config{MaxFlowQueued: 3}, Flow{"f", 0}, FlowFull},
		{"another flow of the band is not full", Config{MaxFlowQueued: 3}, Flow{"g", 0}, ""},
		{"another band is not full", Config{MaxBandQueued: 3, DefaultBand: BandConfig{MaxBytes: 39}}, Flow{"f", 1}, ""},
		{"a band's own cap instead of the pool's", Config{MaxBandQueued: 100, Bands: []BandConfig{{Priority: 0, MaxQueued: 3}}}, Flow{"g", 0}, BandFull},
		{"a band's own cap for its flows", Config{Bands: []BandConfig{{Priority: 0, MaxFlowQueued: 3}}}, Flow{"f", 0}, FlowFull},
		{"a named band is not the default one", Config{DefaultBand: BandConfig{MaxQueued: 3}, Bands: []BandConfig{{Priority: 0}}}, Flow{"f", 0}, ""},
		{"negative bands have a default of their own", Config{DefaultNegativeBand: &BandConfig{MaxQueued: -1}}, Flow{"f", -3}, BandFull},
		{"which is not that of others", Config{DefaultNegativeBand: &BandConfig{MaxQueued: -1}}, Flow{"f", 0}, ""},
		{"a negative number of bytes lets none wait", Config{DefaultBand: BandConfig{MaxBytes: -1}}, Flow{"f", 1}, BandFull},
		{"and none in the pool", Config{MaxBytes: -1}, Flow{"f", 1}, PoolFull},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			q := newQueues(tt.cfg)
			for range 3 {
				r := in("f", 0)
				r.Body = make([]byte, 10)
				q.wait(r, now)
			}
			b, f := q.flow(&Request{Flow: tt.to})
			if got, full := q.full(b, f, 10); got != tt.want || full != (tt.want != "") {
				t.Errorf("full is %q (%v), want %q", got, full, tt.want)
			}
		})
	}
}

func TestTimeLimitIsTheBandsUnlessTheRequestShortensIt(t *testing.T) {
	t.Parallel()
	cfg := Config{TTL: time.Minute, Bands: []BandConfig{{Priority: 1, TTL: time.Second}, {Priority: 2, TTL: -1}}}.withDefaults()
	for _, tt := range []struct {
		priority int
		own      time.Duration
		want     time.Duration
	}{
		{0, 0, time.Minute},
		{0, time.Hour, time.Minute},
		{0, time.Second, time.Second},
		{1, 0, time.Second},
		{1, time.Minute, time.Second},
		{1, 1, 1},
		{2, 0, 0},
		{2, time.Hour, time.Hour},
		{2, 1<<63 - 1, 1<<63 - 1},
	} {
		b := cfg.band(tt.priority)
		if got := b.ttl(tt.own); got != tt.want {
			t.Errorf("band %d limits a request's own %v to %v, want %v", tt.priority, tt.own, got, tt.want)
		}
	}
}

func TestPositionAheadIsExactWithinAFlow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q := newQueues(Config{})
		var all []*waiter
		for i := range rapid.IntRange(1, 40).Draw(t, "waiting") {
			r := in("f", 0)
			r.ID, r.Turn = fmt.Sprint(i), rapid.IntRange(0, 5).Draw(t, "turn")
			if rapid.Bool().Draw(t, "retry") {
				r.QueuedAt = time.Unix(int64(1000-i), 0)
			}
			all = append(all, q.wait(r, time.Unix(1000, 0)))
		}
		for range rapid.IntRange(0, len(all)-1).Draw(t, "leave") {
			i := rapid.IntRange(0, len(all)-1).Draw(t, "who")
			q.remove(all[i])
			all = slices.Delete(all, i, i+1)
		}
		slices.SortFunc(all, func(a, b *waiter) int {
			if a.order.before(&b.order) {
				return -1
			}
			return 1
		})
		for i, w := range all {
			if got := q.aheadOfWaiter(w); got != i {
				t.Fatalf("%d ahead of number %d", got, i)
			}
		}
	})
}

func TestPositionAheadAcrossFlows(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	for _, tt := range []struct {
		policy FairnessPolicy
		want   int // of the third of "few", which came after 100 of "flood"
	}{
		{GlobalStrict, 7 + 102},
		{RoundRobin, 7 + 2 + 3},
		{TurnPriority, 7 + 2 + 3},
		{LeastAttainedService, 7 + 2 + 3},
		{VirtualTokenCounter, 7 + 2 + 2}, // twice the flood's weight
	} {
		q := newQueues(Config{DefaultBand: BandConfig{Fairness: Fairness{Policy: tt.policy}}})
		for range 7 {
			q.wait(in("high", 1), now)
		}
		q.flood(0, 100)
		var w *waiter
		for i := range 5 {
			r := in("few", 0)
			r.Weight = 2
			if got := q.wait(r, now.Add(time.Duration(i))); i == 2 {
				w = got
			}
		}
		if got := q.aheadOfWaiter(w); got != tt.want {
			t.Errorf("%s: %d ahead, want %d", tt.policy, got, tt.want)
		}
	}
}

// Under every policy and ordering, whatever comes and goes: what is counted is
// what is there, and in the end nothing is left of it.
func TestQueuesKeepTheirBooks(t *testing.T) {
	t.Parallel()
	for _, policy := range []FairnessPolicy{VirtualTokenCounter, GlobalStrict, RoundRobin, LeastAttainedService, TurnPriority} {
		for _, ordering := range []Ordering{FirstCome, Earliest, SLODeadline} {
			t.Run(fmt.Sprintf("%s with %s", policy, ordering), func(t *testing.T) {
				t.Parallel()
				rapid.Check(t, func(t *rapid.T) { checkBooks(t, policy, ordering) })
			})
		}
	}
}

func checkBooks(t *rapid.T, policy FairnessPolicy, ordering Ordering) {
	q := newQueues(Config{
		MaxQueued: 20, MaxBytes: 500, TTL: -1,
		DefaultBand: BandConfig{
			MaxQueued: 10, MaxBytes: 300, MaxFlowQueued: 5, MinShare: 0.3, Ordering: ordering, Fairness: Fairness{Policy: policy},
		},
	})
	now := time.Unix(1_700_000_000, 0)
	waiting, live, nextID := map[string]*waiter{}, []*charge(nil), 0
	for range rapid.IntRange(1, 80).Draw(t, "steps") {
		now = now.Add(time.Duration(rapid.IntRange(-3, 30).Draw(t, "seconds")) * time.Second)
		switch rapid.IntRange(0, 5).Draw(t, "step") {
		case 0, 1, 2:
			r := Request{
				ID: fmt.Sprint(nextID), Weight: rapid.IntRange(0, 3).Draw(t, "weight"),
				Flow:    Flow{rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "flow"), rapid.IntRange(-1, 1).Draw(t, "band")},
				Session: rapid.SampledFrom([]string{"", "s", "t"}).Draw(t, "session"), Turn: rapid.IntRange(0, 3).Draw(t, "turn"),
				Reserved: rapid.IntRange(0, 1).Draw(t, "reserves") * 50, Body: make([]byte, rapid.IntRange(0, 60).Draw(t, "bytes")),
				TTL: time.Duration(rapid.IntRange(0, 9).Draw(t, "ttl")) * time.Second, TTFT: time.Duration(rapid.IntRange(0, 9).Draw(t, "ttft")) * time.Second,
			}
			if rapid.IntRange(0, 3).Draw(t, "retry") == 0 {
				r.QueuedAt = now.Add(-time.Second)
			}
			b, f := q.flow(&r)
			if _, full := q.full(b, f, int64(len(r.Body))); full {
				continue
			}
			waiting[r.ID] = q.wait(r, now)
			nextID++
		case 3:
			if w := q.next(always); w != nil {
				c := &charge{band: w.band, flow: w.flow}
				q.began(c, &w.request, service{input: rapid.IntRange(0, 60).Draw(t, "input")}, now)
				q.remove(w)
				delete(waiting, w.request.ID)
				live = append(live, c)
			} else if len(waiting) > 0 {
				t.Fatalf("%d wait and it is nobody's turn", len(waiting))
			}
		case 4:
			if len(live) > 0 {
				q.ended(live[0], service{input: rapid.IntRange(0, 60).Draw(t, "input"), output: 1}, now)
				q.ended(live[0], service{input: 1 << 20}, now) // has no effect
				live = live[1:]
			}
		case 5:
			for id, w := range waiting {
				q.remove(w)
				delete(waiting, id)
				break
			}
		}
		checkCounts(t, q, waiting, live)
	}
	for len(waiting) > 0 {
		w := q.next(always)
		q.remove(w)
		delete(waiting, w.request.ID)
	}
	for _, c := range live {
		q.ended(c, service{}, now)
	}
	checkCounts(t, q, waiting, nil)
	for _, s := range q.sessions.byID {
		if s.live != 0 {
			t.Fatalf("session %s has %d live at the end", s.id, s.live)
		}
	}
}

func checkCounts(t *rapid.T, q *queues, waiting map[string]*waiter, live []*charge) {
	queued, bytes, running := 0, int64(0), 0
	for _, b := range q.bands {
		inBand, inBytes, weight, idle := 0, int64(0), 0, 0
		for _, f := range b.flows {
			held := 0
			for c := range f.live {
				held += c.tokens
			}
			if f.held != held || (f.promised >= 0) != (held < f.reserved && f.queued() > 0) || (f.backlog >= 0) != (f.queued() > 0) {
				t.Fatalf("flow %s: holds %d of %d, counted %d; place %d with %d waiting", f.id, held, f.reserved, f.held, f.backlog, f.queued())
			}
			for i, w := range f.waiting {
				if waiting[w.request.ID] != w || w.place != i || i > 0 && w.order.before(&f.waiting[(i-1)/2].order) {
					t.Fatalf("waiter %s is out of place", w.request.ID)
				}
				inBytes += int64(len(w.request.Body))
			}
			if f.queued() > 0 {
				weight += f.weight
			}
			if !f.busy() {
				idle++
			}
			inBand += f.queued()
			running += len(f.live)
		}
		for i, f := range b.backlog.flows {
			if f.backlog != i || i > 0 && b.backlog.before(f, b.backlog.flows[(i-1)/2]) {
				t.Fatalf("flow %s is out of place", f.id)
			}
		}
		if b.queued != inBand || b.bytes != inBytes || b.weight != weight || b.idle.n != idle || b.queued > b.cfg.MaxQueued || b.bytes > b.cfg.MaxBytes {
			t.Fatalf("band %d counts %d requests of %d bytes and weight %d and %d idle flows; it has %d, %d, %d and %d", b.priority, b.queued, b.bytes, b.weight, b.idle.n, inBand, inBytes, weight, idle)
		}
		queued, bytes = queued+inBand, bytes+inBytes
	}
	if q.queued != queued || q.bytes != bytes || queued != len(waiting) || len(q.byID) != len(waiting) || running != len(live) || q.queued > q.cfg.MaxQueued || q.bytes > q.cfg.MaxBytes {
		t.Fatalf("the pool counts %d of %d bytes, %d by id; %d of %d wait, %d of %d run", q.queued, q.bytes, len(q.byID), queued, len(waiting), running, len(live))
	}
}

func TestTimerThatFiredForAnEarlierLimitIsTooEarly(t *testing.T) {
	t.Parallel()
	now := time.Now()
	w := &waiter{timer: time.NewTimer(time.Hour)}
	w.limit(now.Add(time.Second), now)
	w.limit(now.Add(time.Minute), now) // and then the timer's second is taken note of
	if !w.early(now.Add(time.Second)) {
		t.Error("a limit that was put off refused at its old time")
	}
	if w.early(now.Add(-time.Hour)) {
		t.Error("the clock was believed more than the timer")
	}
	w.limit(time.Time{}, now)
	if !w.early(now.Add(time.Hour)) {
		t.Error("a limit that was lifted refused")
	}
}
