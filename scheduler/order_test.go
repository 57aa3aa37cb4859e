package scheduler

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"
)

// drained returns the order in which what waits would go, by Request.ID.
func (q *queues) drained(t *testing.T, at time.Time) []string {
	t.Helper()
	var ids []string
	for q.queued > 0 {
		w, c := q.send(t, service{input: 1}, at)
		ids = append(ids, w.request.ID)
		q.ended(c, service{input: 1}, at)
	}
	return ids
}

func TestOrderInsideAFlow(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_700_000_000, 0)
	type came struct {
		id      string
		after   time.Duration // since start
		retryOf time.Duration // when its first attempt came; 0: no retry
		ttl     time.Duration
		ttft    time.Duration
		turn    int
	}
	tests := []struct {
		name string
		band BandConfig
		came []came
		want []string
	}{
		{
			"first come is first",
			BandConfig{},
			[]came{{id: "a"}, {id: "b", after: 1}, {id: "c", after: 2}},
			[]string{"a", "b", "c"},
		},
		{
			"first come is first when the clock jumps",
			BandConfig{},
			[]came{{id: "a"}, {id: "b", after: -time.Hour}, {id: "c", after: time.Hour}, {id: "d"}},
			[]string{"a", "b", "c", "d"},
		},
		{
			"retries go first, the oldest of them before the others",
			BandConfig{},
			[]came{
				{id: "a"},
				{id: "young", after: 5, retryOf: 4},
				{id: "old", after: 6, retryOf: 3},
				{id: "b", after: 7, turn: 100},
			},
			[]string{"old", "young", "b", "a"},
		},
		{
			"a deeper turn goes first",
			BandConfig{},
			[]came{{id: "a", turn: 1}, {id: "b", turn: 9}, {id: "none"}, {id: "c", turn: 3}},
			[]string{"b", "c", "a", "none"},
		},
		{
			"two seconds of waiting make up for one turn",
			BandConfig{},
			[]came{
				{id: "old", turn: 1},
				{id: "deep and soon", after: 3900 * time.Millisecond, turn: 3},
				{id: "deep but late", after: 4100 * time.Millisecond, turn: 3},
			},
			[]string{"deep and soon", "old", "deep but late"},
		},
		{
			"turns can be switched off",
			BandConfig{Fairness: Fairness{IgnoreTurns: true}},
			[]came{{id: "a", turn: 1}, {id: "b", turn: 9}},
			[]string{"a", "b"},
		},
		{
			"other policies know no turns inside a flow",
			BandConfig{Fairness: Fairness{Policy: RoundRobin}},
			[]came{{id: "a", turn: 1}, {id: "b", turn: 9}},
			[]string{"a", "b"},
		},
		{
			"the earliest end of the time limit first, the band's where none is nearer",
			BandConfig{Ordering: Earliest, TTL: time.Minute},
			[]came{
				{id: "a"},
				{id: "long", after: 1, ttl: time.Hour},
				{id: "forever", after: 2, ttl: math.MaxInt64},
				{id: "short", after: 3, ttl: time.Second},
			},
			[]string{"short", "a", "long", "forever"},
		},
		{
			"without a limit as they came, behind those with one",
			BandConfig{Ordering: Earliest, TTL: -1},
			[]came{{id: "a"}, {id: "b", after: 1}, {id: "c", after: 2, ttl: 1000 * time.Hour}},
			[]string{"c", "a", "b"},
		},
		{
			"the nearest wanted first token first, turns among those without",
			BandConfig{Ordering: SLODeadline},
			[]came{
				{id: "a"},
				{id: "deep", after: 1, turn: 5},
				{id: "loose", after: 2, ttft: time.Minute},
				{id: "tight", after: 3, ttft: time.Second},
				{id: "invalid", after: 4, ttft: -time.Second},
			},
			[]string{"tight", "loose", "deep", "a", "invalid"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			q := newQueues(Config{DefaultBand: tt.band})
			for _, c := range tt.came {
				r := in("f", 0)
				r.ID, r.TTL, r.TTFT, r.Turn = c.id, c.ttl, c.ttft, c.turn
				if c.retryOf > 0 {
					r.QueuedAt = start.Add(c.retryOf)
				}
				q.wait(r, start.Add(c.after))
			}
			if got := q.drained(t, start); !slices.Equal(got, tt.want) {
				t.Errorf("order is %q, want %q", got, tt.want)
			}
		})
	}
}

// turnOf is the turn by which a session's next request would be ordered.
func turnOf(q *queues, r Request, at time.Time) int { return q.turn(q.band(0), &r, at) }

func TestTurnsAreCountedWhereNobodyTells(t *testing.T) {
	t.Parallel()
	q, now := newQueues(Config{}), time.Unix(1_700_000_000, 0)
	r := in("f", 0)
	r.Session = "s"
	sent := func(r Request) *charge {
		q.wait(r, now)
		_, c := q.send(t, service{}, now)
		return c
	}
	expect := func(what string, want int) {
		t.Helper()
		if got := turnOf(q, r, now); got != want {
			t.Errorf("%s it is turn %d, want %d", what, got, want)
		}
	}
	expect("at first", 1)
	first := sent(r)
	expect("after the first was sent", 2)
	again := r
	again.QueuedAt = now.Add(-time.Second)
	retried := sent(again)
	expect("after its retry", 2)
	now = now.Add(time.Hour)
	expect("while it runs for an hour", 2)
	q.ended(first, service{}, now)
	q.ended(retried, service{}, now)
	now = now.Add(defaultInactivity)
	expect("two minutes after its end", 2)
	now = now.Add(1)
	expect("after more than two minutes", 1)
	q.ended(sent(r), service{}, now)
	expect("after it began anew", 2)
	now = now.Add(-24 * time.Hour)
	expect("when the clock goes back", 2)

	for i := range maxSessions {
		other := in("f", 0)
		other.Session = fmt.Sprint(i)
		q.ended(sent(other), service{}, now)
	}
	expect("when so many others came that it is forgotten", 1)
	if n := len(q.sessions.byID); n != maxSessions || q.sessions.recent.Len() != n {
		t.Errorf("%d sessions by id and %d in order, want %d", n, q.sessions.recent.Len(), maxSessions)
	}
	told := in("f", 0)
	told.Session, told.Turn = "told", 7
	q.ended(sent(told), service{}, now)
	if q.sessions.byID["told"] != nil {
		t.Error("a session is counted whose requests tell their turn")
	}
}
