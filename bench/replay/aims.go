package main

import (
	"fmt"
	"time"
)

// aim is what was aimed at and what came of it.
type aim struct {
	what, aim, got string
	met            bool
}

// aims holds the study against the project's aims.
func (s *study) aims() (out []aim) {
	for _, m := range s.traces {
		out = append(out, m.aims()...)
	}
	if len(s.agents) > 0 {
		out = append(out, s.agents[0].aims()...)
	}
	return append(append(out, s.isolationAims()...), s.costAims()...)
}

// aims of a trace: hits and balance as good as one cache of the same total
// size, and the work that this saves.
func (m *matrix) aims() (out []aim) {
	for _, at := range []size{{8, 4000}, {16, 500}} {
		ours := m.cells[at]["ours"]
		shared := inOrder(m.trace, 1, at.endpoints*at.blocks)
		part := ours.recorded.hits / shared
		out = append(out, aim{
			fmt.Sprintf("%s, %s: prefix hits as part of one shared cache's", m.name, at), "≥ 98 %",
			fmt.Sprintf("%s (%s of %s)", percent(part), percent(ours.recorded.hits), percent(shared)), part >= .98,
		})
	}
	at := size{8, 4000}
	ours, plain := m.cells[at]["ours"], m.cells[at]["round-robin"]
	bound := (1 - inOrder(m.trace, 8, 4000)) / (1 - inOrder(m.trace, 1, 8*4000))
	saved := prefillWork(plain.recorded, ours.recorded)
	out = append(out, aim{
		fmt.Sprintf("%s, %s: prefill work of round-robin over ours, as part of the trace's bound", m.name, at), "≥ 90 %",
		fmt.Sprintf("%s (%s of %s)", percent(saved/bound), times(saved), times(bound)), saved/bound >= .9,
	})
	for _, at := range []size{{8, 4000}, {16, 500}} {
		ours := m.cells[at]["ours"]
		out = append(
			out,
			aim{fmt.Sprintf("%s, %s: imbalance in 10 s, saturated", m.name, at), "≤ 1.2", fmt.Sprintf("%.2f", ours.saturated.windowed), ours.saturated.windowed <= 1.2},
			aim{
				fmt.Sprintf("%s, %s: imbalance in 10 s, as recorded", m.name, at), "≤ 1.2",
				fmt.Sprintf("%.2f; single requests force %.2f; least-loaded has %.2f; over the whole run %.2f", ours.recorded.windowed, ours.recorded.lumps, m.cells[at]["least-loaded"].recorded.windowed, ours.recorded.whole),
				ours.recorded.windowed <= 1.2,
			},
		)
	}
	return out
}

// aims of the agents: those of the published run.
func (s *sweep) aims() []aim {
	at := s.find("ours", publishedAgents)
	_, i := s.at70()
	ours, plain := s.points["ours"][i], s.points["round-robin"][i]
	part, gain := at.hits/at.ceiling, ours.turns/plain.turns
	sooner := 1 - ratio(ours.ttft, plain.ttft)
	load := fmt.Sprintf("%d agents, 70 %% of the best capacity: ", ours.agents)
	return []aim{
		{fmt.Sprintf("%d agents: prefix hits as part of what can be reused", publishedAgents), "≥ 97.3 %", fmt.Sprintf("%s (%s of %s)", percent(part), percent(at.hits), percent(at.ceiling)), part >= .973},
		{load + "TTFT p50 below round-robin's", "≥ 85 %", fmt.Sprintf("%s (%s, %s)", percent(sooner), ms(ours.ttft), ms(plain.ttft)), sooner >= .85},
		{load + "throughput over round-robin's", "≥ 2.4x", times(gain), gain >= 2.4},
	}
}

func (s *study) isolationAims() []aim {
	f := s.floods[0]
	ttft, itl := ratio(f.ttft, f.ttftAlone), ratio(f.itl, f.itlAlone)
	chat, plain := s.burst["ours"], s.burst["round-robin"]
	sooner := 1 - ratio(chat.ttft("chat", .95), plain.ttft("chat", .95))
	return []aim{
		{"flood below a band: its TTFT p95 over that without", "≤ 1.2x", times(ttft), ttft <= 1.2},
		{"the same: ITL p95", "≤ 1.1x", times(itl), itl <= 1.1},
		{"the same: pool busy", "≥ 90 %", percent(f.busy), f.busy >= .9},
		{"the same: low band finished", "all", fmt.Sprintf("%d of %d", f.finished, f.offered), f.finished == f.offered},
		{"ten tenants: farthest from its share in 10 s", "≤ 5 %", percent(s.worst), s.worst <= .05},
		{"1,000 agents: chat's TTFT p95 below round-robin's", "≥ 50 %", percent(sooner), sooner >= .5},
		{"the same: agents that failed", "0", fmt.Sprint(chat.refusals()), chat.refusals() == 0},
	}
}

func (s *study) costAims() (out []aim) {
	least := map[int]time.Duration{}
	for _, c := range s.costs {
		var limit time.Duration
		switch c.endpoints {
		case 100:
			limit = 15 * time.Microsecond
		case 1000:
			limit = 50 * time.Microsecond
		default:
			continue
		}
		if c.flows == 1 {
			least[c.endpoints] = c.decision
		}
		out = append(out, aim{
			fmt.Sprintf("decision at %d endpoints, %d flows", c.endpoints, c.flows), fmt.Sprintf("≤ %d us", limit.Microseconds()),
			fmt.Sprintf("%.1f us (%s of one flow's)", float64(c.decision.Nanoseconds())/1e3, times(ratio(c.decision, least[c.endpoints]))), c.decision <= limit,
		})
	}
	return out
}
