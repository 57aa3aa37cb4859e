package scheduler_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/scheduler"
)

// placed is an endpoint with a role and a revision.
func placed(id, role, revision string, maxConcurrency int) scheduler.Endpoint {
	p := endpoint(id, maxConcurrency)
	p.Labels = map[string]string{scheduler.RoleLabel: role}
	if revision != "" {
		p.Labels[scheduler.RevisionLabel] = revision
	}
	return p
}

// judged builds a scheduler whose endpoints a probe has found healthy.
func judged(t *testing.T, cfg scheduler.Config, endpoints ...scheduler.Endpoint) embedded {
	t.Helper()
	cfg.Profile.SlowStart = -1
	e := healthy(t, cfg, endpoints...)
	for _, p := range endpoints {
		e.SetHealth(p.ID, scheduler.Healthy)
	}
	return e
}

// live is how many leases each endpoint holds.
func live(e embedded) map[string]int {
	out := map[string]int{}
	for _, p := range e.State().Endpoints {
		out[p.ID] = p.Live
	}
	return out
}

// computes is who computes the prompt for a target; "": itself.
func computes(t scheduler.Target) string {
	if t.Prefill == nil {
		return ""
	}
	return t.Prefill.Endpoint
}

func audit(t *testing.T, e embedded) {
	t.Helper()
	if err := e.Audit(); err != nil {
		t.Error(err)
	}
}

func TestPromptIsComputedApartWhereTheDeciderWantsIt(t *testing.T) {
	t.Parallel()
	decide := func(d scheduler.Decider) scheduler.Profile {
		return scheduler.Profile{
			Filters: []scheduler.Filter{{Kind: "decode-filter"}},
			Scorers: []scheduler.Scorer{{Kind: "prefix-cache-scorer", Weight: 2}, {Kind: "queue-scorer", Weight: 1}},
			Split: &scheduler.Split{Decider: d, Prefill: scheduler.Profile{
				Filters: []scheduler.Filter{{Kind: "prefill-filter"}}, Scorers: []scheduler.Scorer{{Kind: "queue-scorer", Weight: 1}},
			}},
		}
	}
	prefix := func(nonCached, prompt int) scheduler.Profile {
		return decide(scheduler.Decider{Kind: scheduler.PrefixDecider, NonCachedTokens: nonCached, PromptTokens: prompt})
	}
	tests := []struct {
		name    string
		profile scheduler.Profile
		cached  int // tokens that the answering endpoint has
		tokens  int
		want    bool
	}{
		{"a long prompt goes apart", prefix(512, 0), 0, 640, true},
		{"as many as the bound are enough", prefix(640, 0), 0, 640, true},
		{"a short one doesn't", prefix(641, 0), 0, 640, false},
		{"what is cached doesn't count", prefix(512, 0), 640, 1024, false},
		{"but what is not", prefix(512, 0), 640, 1280, true},
		{"a prompt below the gate never does", prefix(64, 1280), 0, 640, false},
		{"0 never does", prefix(0, 0), 0, 64_000, false},
		{"always does", decide(scheduler.Decider{Kind: scheduler.AlwaysDecider}), 0, 64, true},
		{"Weir's own profile does from 512 tokens on", scheduler.Profile{}, 0, 512, true},
		{"and not before", scheduler.Profile{}, 0, 448, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := judged(t, scheduler.Config{Profile: tt.profile}, placed("d", "decode", "", 8), placed("p", "prefill", "", 8))
			text := []string{}
			if tt.cached > 0 {
				first := take(t, e, prompted("0", tt.cached, "text"))
				first.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
				first.End(scheduler.Outcome{InputTokens: tt.cached, OutputTokens: 1})
			}
			r := prompted("1", tt.tokens, append(text, "text")...)
			target := take(t, e, r).Targets()[0]
			want := scheduler.Target{Endpoint: "d", URL: "http://d.test"}
			held := map[string]int{"d": 1, "p": 0}
			if tt.want {
				want.Prefill, want.Headers = &scheduler.Target{Endpoint: "p", URL: "http://p.test"}, [][2]string{{"X-Prefiller-Host-Port", "p.test:80"}}
				held["p"] = 1
			}
			if diff := cmp.Diff(want, target); diff != "" {
				t.Errorf("target (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(held, live(e)); diff != "" {
				t.Errorf("leases (-want +got):\n%s", diff)
			}
			if d, _ := e.Decision("1"); strings.Contains(d.Why, "with the prompt computed at p") != tt.want || (d.Prefill == "p") != tt.want {
				t.Errorf("explained as %q", d.Why)
			}
			if s := e.State(); s.Live != 1 || s.Bands[0].Flows[0].Live != 1 {
				t.Errorf("%d leases, %d of the flow: a pair is one", s.Live, s.Bands[0].Flows[0].Live)
			}
			audit(t, e)
		})
	}
}

func TestEachLegOfAPairIsGivenBackOnce(t *testing.T) {
	t.Parallel()
	first := scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1}
	tests := []struct {
		name string
		do   func(l scheduler.Lease)
		want map[string]int
	}{
		{"both are held until the first token", func(scheduler.Lease) {}, map[string]int{"d": 1, "p": 1}},
		{"which gives back the one that computes", func(l scheduler.Lease) { l.Observe(first); l.Observe(first) }, map[string]int{"d": 1, "p": 0}},
		{"the end gives back both", func(l scheduler.Lease) { l.End(scheduler.Outcome{}); l.End(scheduler.Outcome{}) }, map[string]int{"d": 0, "p": 0}},
		{"the end after the token gives back the other", func(l scheduler.Lease) { l.Observe(first); l.End(scheduler.Outcome{}) }, map[string]int{"d": 0, "p": 0}},
		{"a failure gives back both", func(l scheduler.Lease) {
			l.End(scheduler.Outcome{Result: scheduler.EndpointFault, Reached: true})
			l.Observe(first)
		}, map[string]int{"d": 0, "p": 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := judged(t, scheduler.Config{Detector: scheduler.Detector{Mode: scheduler.CountTokens, OutputTokens: true}},
				placed("d", "decode", "", 8), placed("p", "prefill", "", 8))
			tt.do(take(t, e, prompted("1", 6400, "text")))
			if diff := cmp.Diff(tt.want, live(e)); diff != "" {
				t.Errorf("leases (-want +got):\n%s", diff)
			}
			audit(t, e)
		})
	}
}

func TestWhoWaitsForAPrefillIsServedByItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := judged(t, scheduler.Config{Profile: scheduler.Profile{Headroom: -1}}, placed("d", "decode", "", 8), placed("p", "prefill", "", 1))
		l := take(t, e, prompted("1", 6400, "one"))
		next := send(t.Context(), e, prompted("2", 6400, "two"))
		synctest.Wait()
		if s := e.State(); s.Queued != 1 || s.Saturation != 1 {
			t.Fatalf("%d wait at saturation %v, want 1 since all that prefills is taken", s.Queued, s.Saturation)
		}
		l.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
		a := <-next
		if a.err != nil {
			t.Fatal(a.err)
		}
		if diff := cmp.Diff(map[string]int{"d": 2, "p": 1}, live(e)); diff != "" {
			t.Errorf("leases (-want +got):\n%s", diff)
		}
		audit(t, e)
	})
}

func TestAnswersGoOnWithoutAnybodyToComputeForThem(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(e embedded){
		"dead": func(e embedded) { e.SetHealth("p", scheduler.Unhealthy) },
		"draining": func(e embedded) {
			p := placed("p", "prefill", "", 8)
			p.Draining = true
			e.SetEndpoints([]scheduler.Endpoint{placed("d", "decode", "", 8), p})
		},
		"removed": func(e embedded) { e.SetEndpoints([]scheduler.Endpoint{placed("d", "decode", "", 8)}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := judged(t, scheduler.Config{}, placed("d", "decode", "", 8), placed("p", "prefill", "", 8))
			l := take(t, e, prompted("1", 6400, "text"))
			lose(e)
			if target := take(t, e, prompted("2", 6400, "other")).Targets()[0]; target.Endpoint != "d" || target.Prefill != nil {
				t.Errorf("sent to %+v, want d alone", target)
			}
			l.End(scheduler.Outcome{})
			if got := live(e)["p"]; got != 0 {
				t.Errorf("p holds %d leases of nobody", got)
			}
			audit(t, e)
		})
	}
}

func TestEndpointThatOnlyPrefillsNeverAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := judged(t, scheduler.Config{NoEndpointTTL: time.Second}, placed("p", "prefill", "", 8), placed("x", "encode", "", 8))
		expectAt(t, send(t.Context(), e, of("f")), scheduler.NoEndpoints, time.Second)
	})
}

// A failure of a pair is seen as the answering endpoint's, whose sidecar tells
// of it. Which leg's circuit it opens goes by which of them worked last.
func TestAFailedPairIsLaidToTheLegThatDoesntWork(t *testing.T) {
	t.Parallel()
	told := scheduler.Outcome{Result: scheduler.EndpointFault, Reached: true}
	broke := scheduler.Outcome{Result: scheduler.EndpointFault}
	tests := []struct {
		name string
		dead string // whatever it takes part in fails
		end  scheduler.Outcome
		open []string
	}{
		{"a dead prefill endpoint is found out, and no answering one blamed", "p0", told, []string{"p0"}},
		{"a sidecar that fails whoever computes for it is found out", "d0", told, []string{"d0"}},
		{"an endpoint that breaks off is at fault itself", "d0", broke, []string{"d0"}},
		{"all work", "", told, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				cfg := scheduler.Config{Breaker: scheduler.Breaker{Backoff: time.Hour, MaxBackoff: time.Hour}}
				cfg.Profile = scheduler.Profile{
					Scorers: []scheduler.Scorer{{Kind: "queue-scorer"}}, Filters: []scheduler.Filter{{Kind: "decode-filter"}},
					Picker: scheduler.Picker{Kind: scheduler.Random},
					Split: &scheduler.Split{Decider: scheduler.Decider{Kind: scheduler.AlwaysDecider}, Prefill: scheduler.Profile{
						Filters: []scheduler.Filter{{Kind: "prefill-filter"}}, Scorers: []scheduler.Scorer{{Kind: "queue-scorer"}},
						Picker: scheduler.Picker{Kind: scheduler.Random},
					}},
				}
				var all []scheduler.Endpoint
				for i := range 3 {
					all = append(all, placed(fmt.Sprint("d", i), "decode", "", 8), placed(fmt.Sprint("p", i), "prefill", "", 8))
				}
				e := judged(t, cfg, all...)
				for i := range 200 {
					l := take(t, e, prompted(fmt.Sprint(i), 64, "text"))
					time.Sleep(time.Millisecond)
					if to := l.Targets()[0]; to.Endpoint == tt.dead || to.Prefill.Endpoint == tt.dead {
						l.End(tt.end)
						continue
					}
					l.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
					time.Sleep(time.Millisecond)
					l.End(scheduler.Outcome{OutputTokens: 2})
				}
				var open []string
				for _, p := range e.State().Endpoints {
					if p.Circuit != scheduler.CircuitClosed {
						open = append(open, p.ID)
					}
				}
				slices.Sort(open)
				if diff := cmp.Diff(tt.open, open); diff != "" {
					t.Errorf("open circuits (-want +got):\n%s", diff)
				}
				audit(t, e)
			})
		})
	}
}

func TestTheOnlyPrefillThatIsDeadCostsNoAnsweringEndpoint(t *testing.T) {
	t.Parallel()
	e := judged(t, scheduler.Config{Breaker: scheduler.Breaker{Backoff: time.Hour, MaxBackoff: time.Hour}},
		placed("d", "decode", "", 8), placed("p", "prefill", "", 8))
	for i := range 10 {
		l := take(t, e, prompted(fmt.Sprint(i), 6400, fmt.Sprintf("text %d.", i)))
		if l.Targets()[0].Prefill != nil {
			l.End(scheduler.Outcome{Result: scheduler.EndpointFault, Reached: true})
			continue
		}
		if i != 3 {
			t.Errorf("after %d failures the prefill endpoint was given up, want 3", i)
		}
		return
	}
	t.Error("the prefill endpoint was never given up")
}

func TestARetryDoesNotMeetThePrefillThatFailedIt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		more    []scheduler.Endpoint
		prefill string
	}{
		{"it meets another", []scheduler.Endpoint{placed("q", "prefill", "", 8)}, "q"},
		{"or none, rather than the same", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := judged(t, scheduler.Config{}, append(tt.more, placed("d", "decode", "", 8), placed("p", "prefill", "", 8))...)
			r := prompted("1.2", 6400, "text")
			r.Exclude, r.QueuedAt = []string{"d", "p"}, time.Now()
			if got := take(t, e, r).Targets()[0]; got.Endpoint != "d" || computes(got) != tt.prefill {
				t.Errorf("sent to %q with %q, want d with %q", got.Endpoint, computes(got), tt.prefill)
			}
		})
	}
}
