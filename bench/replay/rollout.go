package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"weir/bench/section"
	"weir/scheduler"
)

// counts are the ready servers of one revision.
type counts struct{ prefill, decode int }

// step is a state of a rolling upgrade: the old revision and the new one.
type step [2]counts

// upgrade is how the controller of a set with 2 prefill and 10 decode servers
// replaces all of them, at most two of a role at once.
func upgrade() []step {
	return []step{
		{{2, 10}, {0, 0}},
		{{2, 8}, {0, 0}},
		{{2, 8}, {0, 2}},
		{{1, 6}, {0, 2}},
		{{1, 6}, {1, 4}},
		{{1, 4}, {1, 4}},
		{{1, 4}, {1, 6}},
		{{1, 2}, {1, 6}},
		{{1, 2}, {1, 8}},
		{{0, 0}, {1, 8}},
		{{0, 0}, {2, 10}},
	}
}

func (s step) endpoints() (all []scheduler.Endpoint) {
	add := func(revision, role string, n int) {
		for i := range n {
			id := fmt.Sprintf("%s %s %d", revision, role, i)
			all = append(all, scheduler.Endpoint{
				ID: id, URL: "http://127.0.0.1", MaxConcurrency: 64,
				Labels: map[string]string{scheduler.RoleLabel: role, scheduler.RevisionLabel: revision},
			})
		}
	}
	for i, revision := range []string{"old", "new"} {
		add(revision, "prefill", s[i].prefill)
		add(revision, "decode", s[i].decode)
	}
	return all
}

// rolled is what an upgrade came to under one policy.
type rolled struct {
	name           string
	pairs, crossed int
	refused        int
	spread         float64 // turns of the busiest answering server over the mean of those that may answer, in the mean over steps
	turns, moved   int     // turns of chains after the first, and those that met another revision than the turn before
	least          float64 // part of the turns that has to, since the shares changed
}

const (
	rollSteps  = 2000 // requests at each step
	rollAtOnce = 64
	rollChains = 400
	rollPrompt = 8192 // bytes
	// rollComputing is how many prompts are computed at once.
	rollComputing = 4
)

// roll sends requests through all steps of an upgrade, so many at once.
func roll(ctx context.Context, name string, profile scheduler.Profile) (rolled, error) {
	profile.SlowStart = -1
	sched := scheduler.New(scheduler.Config{Profile: profile, MaxQueued: unlimited, MaxBandQueued: unlimited, MaxFlowQueued: unlimited, NoEndpointTTL: -1}, nil)
	defer sched.Close()
	out := rolled{name: name}
	rnd := rand.New(rand.NewPCG(5, 9))
	at := map[int]string{} // revision of a chain's last turn
	type running struct {
		lease  scheduler.Lease
		prompt int
	}
	var live []running
	share, turns := 0.0, 0
	for _, s := range upgrade() {
		all := s.endpoints()
		sched.SetEndpoints(all)
		for _, p := range all {
			sched.SetHealth(p.ID, scheduler.Healthy)
		}
		was := share
		share = s.newShare()
		out.least += max(share-was, was-share)
		got := map[string]int{}
		for range rollSteps {
			if len(live) == rollAtOnce {
				live[0].lease.End(scheduler.Outcome{InputTokens: live[0].prompt, OutputTokens: 100})
				live = live[1:]
			}
			chain := rnd.IntN(rollChains)
			turns++
			l, err := sched.Schedule(ctx, scheduler.Request{
				ID: fmt.Sprint(turns), Flow: scheduler.Flow{FairnessID: "f"}, Model: "m", Streams: true,
				Session: fmt.Sprint("chain ", chain), Turn: 2, InputTokens: rollPrompt / 4, OutputTokens: 100, TTL: -1,
				Prompt: [][]byte{fresh(rnd)},
			})
			if err != nil {
				out.refused++
				continue
			}
			live = append(live, running{l, rollPrompt / 4})
			if n := len(live); n > rollComputing {
				live[n-1-rollComputing].lease.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
			}
			to := l.Targets()[0]
			got[to.Endpoint]++
			out.count(to, at, chain)
		}
		out.spread += spread(got, s) / float64(len(upgrade()))
	}
	for _, r := range live {
		r.lease.End(scheduler.Outcome{OutputTokens: 1})
	}
	out.least *= rollChains / float64(max(out.turns, 1))
	return out, nil
}

// newShare is the part of the requests that is the new revision's, by its
// decode servers.
func (s step) newShare() float64 {
	old, fresh := s[0], s[1]
	if fresh.prefill == 0 || fresh.decode == 0 {
		return 0
	}
	if old.prefill == 0 || old.decode == 0 {
		return 1
	}
	return float64(fresh.decode) / float64(old.decode+fresh.decode)
}

// fresh is a prompt that nobody has.
func fresh(rnd *rand.Rand) []byte {
	p := make([]byte, rollPrompt)
	for i := range p {
		p[i] = byte('a' + rnd.IntN(26))
	}
	return p
}

func (o *rolled) count(to scheduler.Target, at map[int]string, chain int) {
	revision, _, _ := strings.Cut(to.Endpoint, " ")
	if to.Prefill != nil {
		o.pairs++
		if !strings.HasPrefix(to.Prefill.Endpoint, revision) {
			o.crossed++
		}
	}
	if before, ok := at[chain]; ok {
		o.turns++
		if before != revision {
			o.moved++
		}
	}
	at[chain] = revision
}

// spread is how much more the busiest answering server got than the mean of
// those whose revision is whole.
func spread(got map[string]int, s step) float64 {
	most, sum, servers := 0, 0, 0
	for _, n := range got {
		most, sum = max(most, n), sum+n
	}
	for _, c := range s {
		if c.prefill > 0 {
			servers += c.decode
		}
	}
	if sum == 0 || servers == 0 {
		return 0
	}
	return float64(most) * float64(servers) / float64(sum)
}

// rolls are the policies that are compared. Without a screener each stage picks
// as llm-d's own guide has it.
func rolls() map[string]scheduler.Profile {
	plain := func(roles string) scheduler.Profile {
		return scheduler.Profile{
			Filters: []scheduler.Filter{{Kind: roles}}, Picker: scheduler.Picker{Kind: scheduler.WeightedRandom},
			Scorers: []scheduler.Scorer{{Kind: "prefix-cache-scorer", Weight: 2}, {Kind: "queue-scorer", Weight: 1}, {Kind: "active-request-scorer", Weight: 1}},
		}
	}
	without := plain("decode-filter")
	without.Split = &scheduler.Split{Prefill: plain("prefill-filter"), Decider: scheduler.Decider{Kind: scheduler.AlwaysDecider}}
	with := func(mode scheduler.RolloutMode) scheduler.Profile {
		p := without
		p.Rollout = scheduler.Rollout{Mode: mode, Roles: []string{"prefill", "decode"}}
		return p
	}
	return map[string]scheduler.Profile{
		"no screener": without, "max-role": with(scheduler.RolloutByLargestRole), "sum": with(scheduler.RolloutBySum), "Weir's own": {},
	}
}

// splitCost is what a decision takes in a pool of 100 places.
type splitCost struct {
	name     string
	decision time.Duration
}

// splitCosts measures decisions in pools of 100 places that differ in nothing
// else, in one run.
func splitCosts(ctx context.Context) (all []splitCost) {
	roles := func(revisions int) (out []scheduler.Endpoint) {
		for i := range 100 {
			p := scheduler.Endpoint{ID: fmt.Sprint(i), URL: "http://127.0.0.1", MaxConcurrency: 8, Labels: map[string]string{scheduler.RoleLabel: "decode"}}
			if i%5 == 0 {
				p.Labels[scheduler.RoleLabel] = "prefill"
			}
			if revisions > 0 {
				p.Labels[scheduler.RevisionLabel] = fmt.Sprint("r", i/5%revisions)
			}
			out = append(out, p)
		}
		return out
	}
	plain := make([]scheduler.Endpoint, 100)
	for i := range plain {
		plain[i] = scheduler.Endpoint{ID: fmt.Sprint(i), URL: "http://127.0.0.1", MaxConcurrency: 8}
	}
	ranks := make([]scheduler.Endpoint, 25)
	for i := range ranks {
		ranks[i] = scheduler.Endpoint{ID: fmt.Sprint(i), URL: "http://127.0.0.1", MaxConcurrency: 8, Ranks: 4}
	}
	for _, c := range []struct {
		name string
		pool []scheduler.Endpoint
	}{{"100 endpoints", plain}, {"25 endpoints of four ranks", ranks}, {"80 decode, 20 prefill: pairs", roles(0)}, {"the same, of two revisions", roles(2)}} {
		r := testing.Benchmark(decideIn(ctx, c.pool))
		all = append(all, splitCost{c.name, time.Duration(r.Extra[cpuUnit])})
	}
	return all
}

// decideIn is a request of a session with a prompt of 8,000 tokens, half of which
// is new, its first token and its end.
func decideIn(ctx context.Context, pool []scheduler.Endpoint) func(*testing.B) {
	return func(b *testing.B) {
		b.Helper()
		c := newCrowd(1, 1, 1)
		defer c.sched.Close()
		c.sched.SetConfig(scheduler.Config{Profile: scheduler.Profile{SlowStart: -1}})
		c.sched.SetEndpoints(pool)
		for _, p := range pool {
			c.sched.SetHealth(p.ID, scheduler.Healthy)
		}
		i, began := 0, cpuTime()
		for b.Loop() {
			r := c.request(i)
			r.Session = r.Flow.FairnessID
			l, err := c.sched.Schedule(ctx, r)
			if err != nil {
				b.Fatal(err)
			}
			l.Observe(scheduler.Progress{Kind: scheduler.FirstToken, OutputTokens: 1})
			l.End(c.outcome())
			i++
		}
		b.ReportMetric(float64(cpuTime()-began)/float64(b.N), cpuUnit)
	}
}

// rollouts measures upgrades of a split pool and writes its part of a document.
func rollouts(ctx context.Context, path, command string, stdout io.Writer) error {
	var w strings.Builder
	fmt.Fprintf(&w, "### Rolling upgrades of a split pool\n\nMeasured %s on %s with `%s`.\n\n", time.Now().UTC().Format("2006-01-02"), section.Machine(), command)
	fmt.Fprintf(&w, "A set of 2 prefill and 10 decode servers is replaced in %d steps, at most two of a role at once; %d requests at each, %d at once, in turns of %d chains.\n\n",
		len(upgrade())-1, rollSteps, rollAtOnce, rollChains)
	section.Head(&w, "screener", "pairs", "of two revisions", "refused", "busiest decode server over the mean of those in whole revisions", "turns whose chain met another revision")
	policies := rolls()
	for _, name := range []string{"no screener", "max-role", "sum", "Weir's own"} {
		r, err := roll(ctx, name, policies[name])
		if err != nil {
			return err
		}
		section.Row(&w, name, fmt.Sprint(r.pairs), fmt.Sprintf("%d (%s)", r.crossed, percent(float64(r.crossed)/float64(max(r.pairs, 1)))), fmt.Sprint(r.refused),
			times(r.spread), fmt.Sprintf("%s; %s have to", percent(float64(r.moved)/float64(max(r.turns, 1))), percent(r.least)))
	}
	w.WriteString("\nCPU time of a decision for a prompt of 8,000 tokens in a session, with its first token and its end, by what the pool consists of:\n\n")
	section.Head(&w, "100 places", "us", "over the first")
	costs := splitCosts(ctx)
	for _, c := range costs {
		section.Row(&w, c.name, fmt.Sprintf("%.1f", float64(c.decision.Nanoseconds())/1e3), times(ratio(c.decision, costs[0].decision)))
	}
	if _, err := io.WriteString(stdout, w.String()); err != nil {
		return err
	}
	if path == "" {
		return nil
	}
	return section.Place(path, "Scheduling", "rollouts", w.String())
}
