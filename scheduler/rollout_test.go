package scheduler_test

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/scheduler"
)

// revisions is so many prefill and decode endpoints of each revision.
type revisions map[string][2]int

func (v revisions) endpoints(maxConcurrency int) (all []scheduler.Endpoint) {
	for revision, n := range v {
		for i := range n[0] {
			all = append(all, placed(fmt.Sprintf("%s-p%d", revision, i), "prefill", revision, maxConcurrency))
		}
		for i := range n[1] {
			all = append(all, placed(fmt.Sprintf("%s-d%d", revision, i), "decode", revision, maxConcurrency))
		}
	}
	return all
}

func ruled(mode scheduler.RolloutMode) scheduler.Profile {
	return scheduler.Profile{
		Filters: []scheduler.Filter{{Kind: "decode-filter"}}, Scorers: []scheduler.Scorer{{Kind: "active-request-scorer", Weight: 1}},
		Split: &scheduler.Split{Decider: scheduler.Decider{Kind: scheduler.AlwaysDecider}, Prefill: scheduler.Profile{
			Filters: []scheduler.Filter{{Kind: "prefill-filter"}}, Scorers: []scheduler.Scorer{{Kind: "active-request-scorer", Weight: 1}},
		}},
		Rollout: scheduler.Rollout{Mode: mode, Roles: []string{"prefill", "decode"}},
	}
}

// revisionOf is the first part of an endpoint's name.
func revisionOf(id string) string { return id[:2] }

// The shares are those of the example in llm-d's own description of its
// screener: two prefill and nine decode endpoints of the old revision, one of
// each of the new one.
func TestRevisionsGetTheirShareAndNeverMix(t *testing.T) {
	t.Parallel()
	step := revisions{"r1": {2, 9}, "r2": {1, 1}}
	tests := []struct {
		name    string
		profile scheduler.Profile
		pool    revisions
		session bool
		want    map[string]float64
	}{
		{"by the largest role", ruled(scheduler.RolloutByLargestRole), step, false, map[string]float64{"r1": 0.9, "r2": 0.1}},
		{"by the sum", ruled(scheduler.RolloutBySum), step, false, map[string]float64{"r1": 11. / 13, "r2": 2. / 13}},
		{"sessions get the same shares", ruled(scheduler.RolloutByLargestRole), step, true, map[string]float64{"r1": 0.9, "r2": 0.1}},
		{"by Weir's own profile too", scheduler.Profile{}, step, false, map[string]float64{"r1": 0.9, "r2": 0.1}},
		{"none goes to a revision that can't prefill", ruled(scheduler.RolloutBySum), revisions{"r1": {1, 2}, "r2": {0, 8}}, false, map[string]float64{"r1": 1, "r2": 0}},
		{"nor to one that can't answer", ruled(scheduler.RolloutBySum), revisions{"r1": {1, 2}, "r2": {8, 0}}, true, map[string]float64{"r1": 1, "r2": 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			const n = 4000
			e := judged(t, scheduler.Config{Profile: tt.profile}, tt.pool.endpoints(8)...)
			got := map[string]float64{}
			for i := range n {
				r := prompted(fmt.Sprint(i), 640, fmt.Sprintf("text %d.", i))
				if tt.session {
					r.Session = fmt.Sprint("chain ", i)
				}
				l := take(t, e, r)
				to := l.Targets()[0]
				if to.Prefill == nil || revisionOf(to.Prefill.Endpoint) != revisionOf(to.Endpoint) {
					t.Fatalf("%s answers what %q computes", to.Endpoint, computes(to))
				}
				got[revisionOf(to.Endpoint)] += 1. / n
				l.End(scheduler.Outcome{OutputTokens: 1})
			}
			for revision, want := range tt.want {
				if math.Abs(got[revision]-want) > 0.02 {
					t.Errorf("%s got %.3f of the requests, want %.3f", revision, got[revision], want)
				}
			}
			for _, v := range e.State().Revisions {
				if math.Abs(v.Share-tt.want[v.Revision]) > 1e-9 {
					t.Errorf("%s is said to get %.3f, want %.3f", v.Revision, v.Share, tt.want[v.Revision])
				}
			}
			audit(t, e)
		})
	}
}

func TestSessionsMoveOnlyWithTheShares(t *testing.T) {
	t.Parallel()
	const n = 2000
	e := judged(t, scheduler.Config{})
	where := func(v revisions) (at map[int]string) {
		all := v.endpoints(8)
		e.SetEndpoints(all)
		for _, p := range all {
			e.SetHealth(p.ID, scheduler.Healthy)
		}
		at = map[int]string{}
		for i := range n {
			r := of("f")
			r.Session = fmt.Sprint("chain ", i)
			l := take(t, e, r)
			at[i] = revisionOf(l.Targets()[0].Endpoint)
			l.End(scheduler.Outcome{OutputTokens: 1})
		}
		return at
	}
	before := where(revisions{"r1": {1, 8}, "r2": {1, 2}})
	if diff := cmp.Diff(before, where(revisions{"r1": {1, 8}, "r2": {1, 2}})); diff != "" {
		t.Errorf("sessions moved though nothing changed (-before +after):\n%s", diff)
	}
	moved := 0
	for i, after := range where(revisions{"r1": {1, 5}, "r2": {1, 5}}) {
		if after != before[i] {
			moved++
			if after != "r2" {
				t.Fatalf("session %d went back to the revision that shrinks", i)
			}
		}
	}
	if got := float64(moved) / n; math.Abs(got-0.3) > 0.04 {
		t.Errorf("%.2f of the sessions moved, want the 0.3 by which the share grew", got)
	}
}

func TestARevisionComesAndGoesWithItsRoles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := revisions{"r1": {1, 1}, "r2": {1, 1}}.endpoints(8)
		cfg := scheduler.Config{Profile: ruled(scheduler.RolloutBySum), NoEndpointTTL: time.Second}
		e := judged(t, cfg, all...)
		shares := func() map[string]float64 {
			out := map[string]float64{}
			for _, v := range e.State().Revisions {
				out[v.Revision] = v.Share
			}
			return out
		}
		expect := func(when string, r1, r2 float64) {
			t.Helper()
			if diff := cmp.Diff(map[string]float64{"r1": r1, "r2": r2}, shares()); diff != "" {
				t.Errorf("shares %s (-want +got):\n%s", when, diff)
			}
			audit(t, e)
		}
		expect("at first", 0.5, 0.5)
		e.SetHealth("r2-p0", scheduler.Unhealthy)
		expect("when it lost its prefill", 1, 0)
		if s := e.State().Stages; s[0].Saturation != 0 {
			t.Errorf("stages %v", s)
		}
		e.SetHealth("r1-d0", scheduler.Unhealthy)
		expect("when none is whole", 0, 0)
		expectAt(t, send(t.Context(), e, of("f")), scheduler.NoEndpoints, time.Second)
		waits := send(t.Context(), e, prompted("w", 640, "text"))
		synctest.Wait()
		e.SetHealth("r2-p0", scheduler.Healthy)
		expect("when it is whole again", 0, 1)
		if a := <-waits; a.err != nil || revisionOf(a.lease.Targets()[0].Endpoint) != "r2" {
			t.Errorf("who waited got %+v, want r2 as soon as it is whole", a)
		}
	})
}

func TestARequestThatIsPinnedMeetsNoOtherRevision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := judged(t, scheduler.Config{TTL: time.Second}, revisions{"r1": {1, 9}, "r2": {1, 1}}.endpoints(8)...)
		for range 50 {
			r := of("f")
			r.Revision = "r2"
			l := take(t, e, r)
			if to := l.Targets()[0].Endpoint; revisionOf(to) != "r2" {
				t.Fatalf("sent to %s", to)
			}
			l.End(scheduler.Outcome{})
		}
		r := of("f")
		r.Revision = "r3"
		expectAt(t, send(t.Context(), e, r), scheduler.QueueTimeout, time.Second)
	})
}

// Who drew a full revision would else hold up all behind it.
func TestAFullRevisionHoldsUpNobody(t *testing.T) {
	t.Parallel()
	cfg := scheduler.Config{Profile: ruled(scheduler.RolloutByLargestRole)}
	cfg.Profile.Headroom = -1
	e := judged(t, cfg, revisions{"r1": {4, 4}, "r2": {4, 4}}.endpoints(2)...)
	for i := range 16 {
		r := prompted(fmt.Sprint(i), 640, fmt.Sprintf("text %d.", i))
		r.TTL = -1
		take(t, e, r)
	}
	for id, n := range live(e) {
		if n != 2 {
			t.Errorf("%s holds %d, want the pool full", id, n)
		}
	}
	audit(t, e)
}

func TestEndpointsWithoutARevisionAreOneOfTheirOwn(t *testing.T) {
	t.Parallel()
	all := append(revisions{"r2": {1, 1}}.endpoints(8), placed("r1-p", "prefill", "", 8), placed("r1-d", "decode", "", 8))
	for name, profile := range map[string]scheduler.Profile{"in Weir's own profile": {}, "and none by llm-d's rule": ruled(scheduler.RolloutBySum)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := judged(t, scheduler.Config{Profile: profile}, all...)
			seen := map[string]bool{}
			for i := range 100 {
				l := take(t, e, prompted(fmt.Sprint(i), 640, fmt.Sprintf("text %d.", i)))
				to := l.Targets()[0]
				if to.Prefill == nil || revisionOf(to.Prefill.Endpoint) != revisionOf(to.Endpoint) {
					t.Fatalf("%s answers what %q computes", to.Endpoint, computes(to))
				}
				seen[revisionOf(to.Endpoint)] = true
				l.End(scheduler.Outcome{})
			}
			want := map[string]bool{"r2": true}
			if profile.Scorers == nil {
				want["r1"] = true
			}
			if diff := cmp.Diff(want, seen); diff != "" {
				t.Errorf("revisions that were sent to (-want +got):\n%s", diff)
			}
		})
	}
}
