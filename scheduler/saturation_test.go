package scheduler_test

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"weir/scheduler"
)

// loaded says what an endpoint of a saturation test holds and says.
type loaded struct {
	endpoint scheduler.Endpoint
	tokens   []int // prompts of its leases
	load     *scheduler.Load
	age      time.Duration // of the load
	health   scheduler.Health
}

func TestSaturationIsMeasuredAsLlmdDoes(t *testing.T) {
	t.Parallel()
	at := func(name string, most int, tokens ...int) loaded {
		return loaded{endpoint: endpoint(name, most), tokens: tokens, health: scheduler.Healthy}
	}
	says := func(l loaded, waiting int, kv float64, age time.Duration) loaded {
		l.load, l.age = &scheduler.Load{Waiting: waiting, KVUsage: kv}, age
		return l
	}
	role := func(l loaded, role string) loaded {
		l.endpoint.Labels = map[string]string{scheduler.RoleLabel: role}
		return l
	}
	sick := func(l loaded) loaded { l.health = scheduler.Unhealthy; return l }
	may := func(l loaded, tokens int) loaded { l.endpoint.MaxTokens = tokens; return l }
	tokens := scheduler.Detector{Mode: scheduler.CountTokens, MaxTokens: 1000}
	hybrid := scheduler.Detector{Mode: scheduler.CountHybrid, MaxTokens: 1000}
	utilization := scheduler.Detector{Kind: scheduler.UtilizationDetector}
	strict := scheduler.Detector{Kind: scheduler.UtilizationDetector, StaleIsFull: true}
	output := scheduler.Detector{Mode: scheduler.CountTokens, MaxTokens: 1000, OutputTokens: true}
	short := output
	short.MaxOutput = 50
	tests := []struct {
		name     string
		detector scheduler.Detector
		pool     []loaded
		want     float64
	}{
		{"no endpoint is full", scheduler.Detector{}, nil, 1},
		{"requests count against what all may take", scheduler.Detector{}, []loaded{at("a", 4, 1, 1, 1), at("b", 6, 1, 1)}, 0.5},
		{"an unhealthy endpoint is no capacity", scheduler.Detector{}, []loaded{at("a", 4, 1, 1), sick(at("b", 100))}, 0.5},
		{"an unjudged endpoint is a quarter", scheduler.Detector{}, []loaded{{endpoint: endpoint("a", 8), tokens: []int{1}}}, 0.5},
		{"tokens are those of the prompts", tokens, []loaded{at("a", 9, 300, 100), at("b", 9, 400)}, 0.4},
		{"tokens count against the endpoint's own limit", tokens, []loaded{may(at("a", 9, 300), 500), at("b", 9)}, 0.2},
		{"output is estimated where asked", output, []loaded{at("a", 9, 100)}, 0.25},
		{"and bounded", short, []loaded{at("a", 9, 100)}, 0.15},
		{"hybrid takes the larger of each endpoint", hybrid, []loaded{at("a", 4, 800), at("b", 4, 10, 10)}, 0.65},
		{"utilization is the mean of the larger of queue and cache", utilization, []loaded{says(at("a", 9), 1, 0.4, 0), says(at("b", 9), 4, 0.1, 0)}, 0.65},
		{"utilization isn't clamped", utilization, []loaded{says(at("a", 9), 50, 0, 0)}, 10},
		{"a load that is too old is none: our own count", utilization, []loaded{says(at("a", 4, 1), 50, 1, 6*time.Second)}, 0.25},
		{"as is one that never came", utilization, []loaded{at("a", 4, 1)}, 0.25},
		{"unless such an endpoint is to count as full", strict, []loaded{says(at("a", 4, 1), 0, 0, 6*time.Second), says(at("b", 4), 0, 0, 0)}, 0.5},
		{"the fuller of prefill and decode counts", scheduler.Detector{}, []loaded{role(at("a", 4, 1), "prefill"), role(at("b", 4, 1, 1, 1), "decode")}, 0.75},
		{"an endpoint may be of both", scheduler.Detector{}, []loaded{role(at("a", 4, 1, 1, 1), "prefill-decode"), at("b", 4, 1)}, 0.75},
		{"one of another role is of neither", scheduler.Detector{}, []loaded{role(at("a", 4), "encode"), at("b", 4, 1)}, 0.25},
		{"a role without endpoints is not full", scheduler.Detector{}, []loaded{role(at("a", 4, 1), "prefill")}, 0.25},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e := scheduler.New(scheduler.Config{}, nil)
				t.Cleanup(e.Close)
				var endpoints []scheduler.Endpoint
				for _, p := range tt.pool { // one at a time, so that its leases are its own
					e.SetConfig(scheduler.Config{Detector: scheduler.Detector{OutputTokens: tt.detector.OutputTokens, MaxOutput: tt.detector.MaxOutput}})
					others := append([]scheduler.Endpoint(nil), endpoints...)
					for i := range others {
						others[i].Draining, others[i].Labels = true, nil
					}
					endpoints = append(endpoints, p.endpoint)
					alone := p.endpoint
					alone.Labels = nil // whatever it is to be, it answers now
					e.SetEndpoints(append(others, alone))
					e.SetHealth(p.endpoint.ID, scheduler.Healthy)
					for _, n := range p.tokens {
						if _, err := e.Schedule(t.Context(), scheduler.Request{InputTokens: n}); err != nil {
							t.Fatal(err)
						}
					}
				}
				e.SetEndpoints(endpoints)
				e.SetConfig(scheduler.Config{Detector: tt.detector})
				for _, p := range tt.pool {
					e.SetHealth(p.endpoint.ID, p.health)
					if p.load != nil {
						p.load.At = time.Now().Add(-p.age)
						e.SetLoad(p.endpoint.ID, *p.load)
					}
				}
				if got := e.State().Saturation; math.Abs(got-tt.want) > 1e-6 {
					t.Errorf("saturation %v, want %v", got, tt.want)
				}
				if err := e.Audit(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestPromptTokensCountUntilTheFirstToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{Detector: scheduler.Detector{Mode: scheduler.CountTokens, MaxTokens: 1000}}, endpoint("a", 100))
		big := scheduler.Request{InputTokens: 1000}
		l := take(t, e, big)
		next := send(t.Context(), e, big)
		synctest.Sleep(time.Second)
		l.Observe(scheduler.Progress{Kind: scheduler.FirstToken}) // prefill is over, the stream goes on
		a := <-next
		if a.err != nil || a.after != time.Second {
			t.Fatalf("got %v after %v, want a lease with the other's first token", a.err, a.after)
		}
		l.Observe(scheduler.Progress{Kind: scheduler.FirstToken})
		l.End(scheduler.Outcome{})
		if s := e.State(); s.Saturation != 1 || s.Live != 1 {
			t.Errorf("saturation %v with %d live, want the one prompt that computes", s.Saturation, s.Live)
		}
	})
}

func TestALoadThatGetsOldLetsWaitersGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := healthy(t, scheduler.Config{Detector: scheduler.Detector{Kind: scheduler.UtilizationDetector, Staleness: time.Second}}, endpoint("a", 4))
		e.SetLoad("a", scheduler.Load{Waiting: 100, At: time.Now()})
		a := <-send(t.Context(), e, of("x"))
		if a.err != nil || a.after != time.Second {
			t.Errorf("got %v after %v, want a lease once the scrape is too old to believe", a.err, a.after)
		}
	})
}
