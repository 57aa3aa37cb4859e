package main

import (
	"context"
	"slices"
	"time"
)

// sweep is coding agents under several policies, at several numbers of them.
type sweep struct {
	size   size
	agents []int
	names  []string
	points map[string][]point // by policy
}

// point is one number of agents under one policy, in full swing.
type point struct {
	agents      int
	hits        float64
	ceiling     float64 // part of the blocks that any cache could find
	ttft, tail  time.Duration
	tokens      float64 // prompt and answer, a second
	turns, good float64 // a second; those whose first token came in time
}

// slo is when an agent's first token comes in time.
const slo = 2 * time.Second

// publishedAgents is how many the published run had at once.
const publishedAgents = 64

func measureAgents(ctx context.Context, b bubbles, s size, numbers []int, policies []policy) (*sweep, error) {
	type cell struct {
		policy policy
		agents int
	}
	out := &sweep{size: s, agents: numbers, names: names(policies), points: map[string][]point{}}
	var cells []cell
	for _, p := range policies {
		for _, n := range numbers {
			cells = append(cells, cell{p, n})
		}
	}
	done, err := each(ctx, cells, func(c cell) (point, error) {
		a := codingAgents(c.agents, 1)
		r, err := setup{workload: a, engines: fleetOf(s.endpoints, standard(s.blocks)), policy: c.policy}.run(b)
		if err != nil {
			return point{}, err
		}
		return pointOf(c.agents, r, 2*a.begin, a.cease), nil
	})
	for i, c := range cells {
		out.points[c.policy.name] = append(out.points[c.policy.name], done[i])
	}
	return out, err
}

func pointOf(agents int, r result, from, to time.Duration) point {
	p := point{agents: agents, ceiling: r.attainable(from)}
	r = r.between(from, to)
	p.hits, p.ttft, p.tail = r.hitRate(), r.ttft("", .5), r.ttft("", .95)
	p.turns, p.tokens = r.throughput()
	good := 0
	for _, x := range r.records {
		if x.ttft() <= slo {
			good++
		}
	}
	p.good = float64(good) / r.span.Seconds()
	return p
}

// capacity is the most that a policy does at any number of agents.
func (s *sweep) capacity(policy string) (turns float64) {
	for _, p := range s.points[policy] {
		turns = max(turns, p.turns)
	}
	return turns
}

// at70 is the number of agents that brings the best policy nearest to 70 % of
// what it can do, on its way up.
func (s *sweep) at70() (best string, i int) {
	for _, name := range s.names {
		if best == "" || s.capacity(name) > s.capacity(best) {
			best = name
		}
	}
	want := .7 * s.capacity(best)
	points := s.points[best]
	i = slices.IndexFunc(points, func(p point) bool { return p.turns >= want })
	if i > 0 && want-points[i-1].turns < points[i].turns-want {
		i--
	}
	return best, i
}

func (s *sweep) find(policy string, agents int) point {
	i := slices.IndexFunc(s.points[policy], func(p point) bool { return p.agents == agents })
	return s.points[policy][i]
}
