package scheduler_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"weir/scheduler"
)

// brew is a random set of endpoints with roles, revisions and ranks.
func brew(rnd *rand.Rand) (all []scheduler.Endpoint) {
	roles := []string{"prefill", "decode", "prefill-decode", "", "encode"}
	for i := range 6 {
		if rnd.IntN(4) == 0 {
			continue
		}
		p := endpoint(fmt.Sprint("e", i), 1+rnd.IntN(3))
		p.Ranks = rnd.IntN(3)
		p.Draining = rnd.IntN(8) == 0
		p.Labels = map[string]string{}
		if role := roles[(i+rnd.IntN(2))%len(roles)]; role != "" {
			p.Labels[scheduler.RoleLabel] = role
		}
		if n := rnd.IntN(3); n > 0 {
			p.Labels[scheduler.RevisionLabel] = fmt.Sprint("r", n)
		}
		all = append(all, p)
	}
	return all
}

// Whatever happens in whatever order, what is kept by adding and taking off
// agrees with the sets of live leases, no pair is of two revisions, and nothing
// is left at the end.
func TestSplitPoolsKeepTheirBooks(t *testing.T) {
	t.Parallel()
	results := []scheduler.Result{scheduler.Completed, scheduler.EndpointFault, scheduler.CallerFault, scheduler.Abandoned, scheduler.Overloaded}
	for seed := range uint64(24) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, 3))
			now := time.Unix(1_700_000_000, 0)
			profiles := []scheduler.Profile{{}, ruled(scheduler.RolloutBySum), ruled(scheduler.RolloutByLargestRole), {Scorers: []scheduler.Scorer{{Kind: "queue-scorer", Weight: 1}}}}
			cfg := scheduler.Config{OverloadPause: time.Millisecond, Breaker: scheduler.Breaker{Faults: 2, Backoff: time.Second}, Profile: profiles[0]}
			if seed%2 == 0 {
				cfg.Detector = scheduler.Detector{Mode: scheduler.CountTokens, MaxTokens: 3000, OutputTokens: seed%4 == 0}
			}
			e := scheduler.New(cfg, func() time.Time { return now })
			t.Cleanup(e.Close)
			var held []scheduler.Lease
			labels := map[string]map[string]string{}
			pairs := 0
			for op := range 600 {
				now = now.Add(time.Duration(rnd.IntN(100)) * time.Millisecond)
				switch n := rnd.IntN(20); {
				case op == 0 || n == 0:
					all := brew(rnd)
					for _, p := range all {
						labels[p.ID] = p.Labels
					}
					e.SetEndpoints(all)
				case n == 1:
					cfg.Profile = profiles[rnd.IntN(len(profiles))]
					e.SetConfig(cfg)
				case n < 5:
					e.SetHealth(fmt.Sprint("e", rnd.IntN(6)), scheduler.Health(rnd.IntN(3)))
				case n < 7:
					e.SetLoad(scheduler.PlaceName(fmt.Sprint("e", rnd.IntN(6)), rnd.IntN(2)), scheduler.Load{Waiting: rnd.IntN(4), BlockSize: 16, Blocks: 200 + rnd.IntN(2)*100, At: now})
				case n < 13:
					r := prompted(fmt.Sprint(op), 64*(1+rnd.IntN(12)), fmt.Sprint("text ", rnd.IntN(8)), fmt.Sprint("more ", rnd.IntN(3)))
					r.TTL, r.Streams = -1, rnd.IntN(2) == 0
					if rnd.IntN(2) == 0 {
						r.Session = fmt.Sprint("chain ", rnd.IntN(9))
					}
					if rnd.IntN(4) == 0 {
						r.Exclude = []string{fmt.Sprint("e", rnd.IntN(6))}
					}
					l, err := e.Schedule(t.Context(), r)
					if err != nil {
						break
					}
					held = append(held, l)
					if to := l.Targets()[0]; to.Prefill != nil {
						pairs++
						if a, b := labels[to.Endpoint][scheduler.RevisionLabel], labels[to.Prefill.Endpoint][scheduler.RevisionLabel]; a != b {
							t.Fatalf("op %d: %s of %q answers what %s of %q computes", op, to.Endpoint, a, to.Prefill.Endpoint, b)
						}
					}
				case len(held) == 0:
				case n < 16:
					held[rnd.IntN(len(held))].Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
				default:
					i := rnd.IntN(len(held))
					held[i].End(scheduler.Outcome{Result: results[rnd.IntN(len(results))], Reached: rnd.IntN(2) == 0, InputTokens: 100, CachedTokens: rnd.IntN(100), OutputTokens: 3})
					held = append(held[:i], held[i+1:]...)
				}
				if err := e.Audit(); err != nil {
					t.Fatalf("op %d: %v", op, err)
				}
			}
			for _, l := range held {
				l.End(scheduler.Outcome{})
			}
			s := e.State()
			if s.Live != 0 {
				t.Errorf("%d leases left", s.Live)
			}
			for _, p := range s.Endpoints {
				if p.Live != 0 || p.Tokens != 0 {
					t.Errorf("%s is left with %d leases and %d tokens", p.ID, p.Live, p.Tokens)
				}
			}
			if pairs == 0 && seed == 0 {
				t.Error("no pair was ever made")
			}
		})
	}
}
