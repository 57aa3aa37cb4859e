package scheduler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// reference is a fairness policy in the plainest form: it keeps for each flow
// what it needs and looks at all of them.
type reference interface {
	sent(id string)
	ended(id string, s service, now time.Time)
	// next is whose turn it is among the flows with a backlog, whose heads are
	// first; more than one where the policy doesn't say.
	next(heads map[string]*waiter, now time.Time) []string
}

type knownFlow struct {
	sent, live int
	last       time.Time
	service    float64
	anchor     time.Time
}

// known is what program-aware policies remember.
type known map[string]*knownFlow

func (k known) of(id string) *knownFlow {
	if k[id] == nil {
		k[id] = &knownFlow{}
	}
	return k[id]
}

func (k known) sent(id string) {
	k.of(id).sent++
	k.of(id).live++
}

func (k known) ended(id string, s service, now time.Time) {
	f := k.of(id)
	f.live--
	f.last, f.anchor = now, now
	if !s.estimated {
		f.service += float64(s.input + s.cached + 2*s.output)
	}
}

func (s *scale) include(v float64) { s.least, s.most = min(s.least, v), max(s.most, v) }

func (s *scale) of(v float64) float64 {
	if s.most == s.least {
		return 0.5
	}
	return (v - s.least) / (s.most - s.least)
}

// best returns those with the highest score, but for rounding.
func best(heads map[string]*waiter, score func(id string, head *waiter) float64) []string {
	highest := math.Inf(-1)
	for id, w := range heads {
		highest = max(highest, score(id, w))
	}
	var ids []string
	for id, w := range heads {
		if score(id, w) >= highest-1e-6 {
			ids = append(ids, id)
		}
	}
	return ids
}

type plainLAS struct{ known }

func (p plainLAS) next(heads map[string]*waiter, now time.Time) []string {
	service, wait := scale{math.Inf(1), math.Inf(-1)}, scale{math.Inf(1), math.Inf(-1)}
	for id, w := range heads {
		service.include(p.of(id).service)
		wait.include(float64(now.Sub(w.entered)) / 1e6)
	}
	return best(heads, func(id string, w *waiter) float64 {
		return 0.8*(1-service.of(p.of(id).service)) + 0.2*wait.of(float64(now.Sub(w.entered))/1e6)
	})
}

type plainTurns struct{ known }

func (p plainTurns) next(heads map[string]*waiter, now time.Time) []string {
	return best(heads, func(id string, w *waiter) float64 {
		f, turn := p.of(id), 1.0
		idle := f.live == 0 && !f.last.IsZero() && w.entered.Sub(f.last) > 120*time.Second
		if id != "default-flow" && !idle {
			turn = float64(f.sent + 1)
		}
		return turn + 0.5*now.Sub(w.entered).Seconds()
	})
}

type plainRoundRobin struct{ last string }

func (p *plainRoundRobin) sent(id string)                 { p.last = id }
func (*plainRoundRobin) ended(string, service, time.Time) {}
func (p *plainRoundRobin) next(heads map[string]*waiter, _ time.Time) []string {
	ids := []string{}
	for id := range heads {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if id > p.last {
			return []string{id}
		}
	}
	return ids[:1]
}

type plainStrict struct{}

func (plainStrict) sent(string)                      {}
func (plainStrict) ended(string, service, time.Time) {}
func (plainStrict) next(heads map[string]*waiter, _ time.Time) []string {
	first := ""
	for id, w := range heads {
		if first == "" || w.order.seq < heads[first].order.seq {
			first = id
		}
	}
	return []string{first}
}

// Whatever comes, goes, ends and is cancelled in whatever order: the next one is
// who it is by a plain reading of the policy's formula.
func TestPoliciesFollowTheirFormulas(t *testing.T) {
	t.Parallel()
	for policy, build := range map[FairnessPolicy]func() reference{
		GlobalStrict:         func() reference { return plainStrict{} },
		RoundRobin:           func() reference { return &plainRoundRobin{} },
		LeastAttainedService: func() reference { return plainLAS{known{}} },
		TurnPriority:         func() reference { return plainTurns{known{}} },
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) { checkPolicy(t, policy, build()) })
		})
	}
}

func checkPolicy(t *rapid.T, policy FairnessPolicy, ref reference) {
	q := newQueues(Config{DefaultBand: BandConfig{Fairness: Fairness{Policy: policy}}})
	now := time.Unix(1_700_000_000, 0)
	waiting := map[string][]*waiter{}
	var running []*charge
	leave := func(id string, w *waiter) {
		waiting[id] = slices.DeleteFunc(waiting[id], func(x *waiter) bool { return x == w })
		if len(waiting[id]) == 0 {
			delete(waiting, id)
		}
	}
	las, _ := ref.(plainLAS)
	came := func(id string) { // what is idle decays until it has something to do
		f := las.of(id)
		if f.live == 0 && len(waiting[id]) == 0 {
			if !f.anchor.IsZero() {
				f.service *= math.Exp2(-now.Sub(f.anchor).Seconds() / 60)
			}
			f.anchor = now
		}
	}
	id := rapid.SampledFrom([]string{"a", "b", "c", "d", "default-flow"})
	for range rapid.IntRange(10, 60).Draw(t, "steps") {
		switch rapid.IntRange(0, 4).Draw(t, "step") {
		case 0, 1:
			id := id.Draw(t, "flow")
			if las.known != nil {
				came(id)
			}
			waiting[id] = append(waiting[id], q.wait(in(id, 0), now))
		case 2:
			if len(waiting) == 0 {
				continue
			}
			heads := map[string]*waiter{}
			for id, ws := range waiting {
				heads[id] = ws[0]
			}
			want, w := ref.next(heads, now), q.next(always)
			got := w.request.Flow.FairnessID
			if !slices.Contains(want, got) {
				t.Fatalf("it is the turn of %s, want %s", got, strings.Join(want, " or "))
			}
			c := &charge{band: w.band, flow: w.flow}
			q.began(c, &w.request, service{input: 1}, now)
			q.remove(w)
			leave(got, w)
			ref.sent(got)
			running = append(running, c)
		case 3:
			if len(running) == 0 {
				continue
			}
			i := rapid.IntRange(0, len(running)-1).Draw(t, "lease")
			s := service{
				input: rapid.IntRange(0, 2000).Draw(t, "input"), cached: rapid.IntRange(0, 2000).Draw(t, "cached"),
				output: rapid.IntRange(0, 500).Draw(t, "output"), estimated: rapid.Bool().Draw(t, "estimated"),
			}
			q.ended(running[i], s, now)
			ref.ended(running[i].flow.id, s, now)
			running = slices.Delete(running, i, i+1)
		case 4:
			for id, ws := range waiting {
				if rapid.Bool().Draw(t, "cancel") {
					w := ws[len(ws)-1]
					q.remove(w)
					leave(id, w)
				}
				break
			}
		}
		if r, ok := ref.(*plainRoundRobin); ok && len(waiting) == 0 {
			r.last = "" // the next backlog begins with the first id
		}
		now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 1, 250, 9_000, 40_000, 119_000, 121_000}).Draw(t, "ms")) * time.Millisecond)
	}
}

// The tree of boxes finds what a look at all of them finds, however many come
// and go.
func TestLeastAttainedAmongManyIsTheHighestScore(t *testing.T) {
	t.Parallel()
	chance := rand.New(rand.NewPCG(1, 2))
	now := time.Unix(1_700_000_000, 0)
	q := newQueues(Config{MaxQueued: 1 << 20, DefaultBand: BandConfig{MaxQueued: 1 << 20, Fairness: Fairness{Policy: LeastAttainedService}}})
	b, heads := q.band(0), map[string]*waiter{}
	for step := range 3000 {
		now = now.Add(time.Duration(chance.IntN(100)) * time.Millisecond)
		id := fmt.Sprint(chance.IntN(500))
		if f := b.flows[id]; f != nil && f.queued() > 0 && step > 1500 {
			q.remove(f.head())
			delete(heads, id)
		} else if f == nil || f.queued() == 0 {
			w := q.wait(in(id, 0), now)
			heads[id] = w
			w.flow.program.service = float64(chance.IntN(5) * chance.IntN(1000))
			b.changed(w.flow)
		}
		service, wait := scale{math.Inf(1), math.Inf(-1)}, scale{math.Inf(1), math.Inf(-1)}
		for _, w := range heads {
			service.include(w.flow.program.service)
			wait.include(now.Sub(w.entered).Seconds())
		}
		want := best(heads, func(_ string, w *waiter) float64 {
			return 0.8*(1-service.of(w.flow.program.service)) + 0.2*wait.of(now.Sub(w.entered).Seconds())
		})
		if len(heads) == 0 {
			continue
		}
		if got := q.next(always).flow.id; !slices.Contains(want, got) {
			t.Fatalf("step %d: it is the turn of %s among %d, want %v", step, got, len(heads), want)
		}
	}
}

func TestBandsWithOnePolicyShareWhatItKnows(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	las := BandConfig{Fairness: Fairness{Policy: LeastAttainedService}}
	q := newQueues(Config{DefaultBand: las})
	q.wait(in("busy", 1), now)
	_, c := q.send(t, service{}, now)
	q.ended(c, service{input: 1000, output: 10}, now)
	q.wait(in("busy", 0), now)
	q.wait(in("quiet", 0), now)
	expect := func(what, want string) {
		t.Helper()
		if got := q.band(0).next().flow.id; got != want {
			t.Errorf("%s it is the turn of %s, want %s", what, got, want)
		}
	}
	expect("of one that was served in another band and one that wasn't", "quiet")
	q.wait(in("quiet", 1), now)
	_, c = q.send(t, service{}, now)
	q.ended(c, service{input: 5000}, now)
	expect("when that is served more in another band while both wait", "busy")
	q.wait(in("quiet", 1), now.Add(time.Hour))
	expect("when it comes back in another band after an hour", "quiet")
	if n := len(q.programs[las.Fairness.withDefaults()]); n != 2 {
		t.Errorf("%d programs are known, want 2", n)
	}
}

func TestABandThatIsNoLongerNamedIsForgotten(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	las := Fairness{Policy: LeastAttainedService}
	cfg := Config{Bands: []BandConfig{{Priority: 1, Fairness: las}, {Priority: 2, Fairness: las}, {Priority: 3, Fairness: las}}}
	q := newQueues(cfg)
	for _, priority := range []int{1, 2, 3} {
		q.wait(in("f", priority), now)
		_, c := q.send(t, service{}, now)
		if priority != 2 {
			q.ended(c, service{}, now)
		}
	}
	cfg = Config{Bands: []BandConfig{{Priority: 1, Fairness: las}}}.withDefaults()
	q.configure(&cfg)
	var left []int
	for _, b := range q.bands {
		left = append(left, b.priority)
	}
	if !slices.Equal(left, []int{2, 1}) {
		t.Errorf("bands %v are left, want the named one and the one in which something runs", left)
	}
	if p := q.programs[las.withDefaults()]["f"]; p == nil || len(p.flows) != 1 {
		t.Errorf("the program knows of flows in bands that are gone: %+v", p)
	}
}

func TestForgottenFlowsLeaveNoProgram(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	for _, policy := range []FairnessPolicy{LeastAttainedService, TurnPriority} {
		q := newQueues(Config{DefaultBand: BandConfig{Fairness: Fairness{Policy: policy}}})
		for i := range 2 * maxIdleFlows {
			q.wait(in(fmt.Sprint(i), 0), now)
			_, c := q.send(t, service{}, now)
			q.ended(c, service{}, now)
		}
		for _, programs := range q.programs {
			if len(programs) != maxIdleFlows {
				t.Errorf("%s knows %d programs, want one for each of %d flows", policy, len(programs), maxIdleFlows)
			}
		}
	}
}

func TestNewPoliciesKeepTheQueue(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	policies := []FairnessPolicy{VirtualTokenCounter, LeastAttainedService, RoundRobin, TurnPriority, GlobalStrict}
	for _, from := range policies {
		for _, to := range policies {
			t.Run(fmt.Sprintf("from %s to %s", from, to), func(t *testing.T) {
				t.Parallel()
				q := newQueues(Config{DefaultBand: BandConfig{Fairness: Fairness{Policy: from}}})
				var running []*charge
				for i := range 12 {
					r := in([]string{"a", "b", "c"}[i%3], 0)
					r.ID, r.TTFT = fmt.Sprint(i), time.Duration(24-2*i)*time.Second
					q.wait(r, now.Add(time.Duration(i)*time.Second))
				}
				for range 3 {
					_, c := q.send(t, service{input: 10}, now)
					running = append(running, c)
				}
				cfg := Config{DefaultBand: BandConfig{Fairness: Fairness{Policy: to}, Ordering: SLODeadline}}.withDefaults()
				q.configure(&cfg)
				for _, c := range running {
					q.ended(c, service{input: 20}, now)
				}
				got := q.drained(t, now)
				if len(got) != 9 || q.bytes != 0 || len(q.byID) != 0 {
					t.Fatalf("%d of 9 that waited went: %v", len(got), got)
				}
				late, err := strconv.Atoi(got[0])
				if to == GlobalStrict && (err != nil || late != 11) {
					t.Errorf("they went as %v, want the nearest first token first", got)
				}
				for fairness, programs := range q.programs {
					if fairness.Policy != to && len(programs) > 0 {
						t.Errorf("%d programs are kept of %s", len(programs), fairness.Policy)
					}
				}
				for _, f := range q.band(0).flows {
					if f.program != nil && f.program.live != 0 {
						t.Errorf("%d leases of %s are live at the end", f.program.live, f.id)
					}
				}
			})
		}
	}
}
