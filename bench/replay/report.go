package main

import (
	"fmt"
	"strings"
	"time"

	"weir/bench/section"
)

func place(path, text string) error { return section.Place(path, "Scheduling", "replay", text) }

// report writes the tables.
func (s *study) report(command string, when time.Time) string {
	var w strings.Builder
	fmt.Fprintf(&w, "Measured %s on %s with `%s`; what runs in virtual time took %s", when.UTC().Format("2006-01-02"), section.Machine(), command, s.took.Round(time.Second))
	if load := section.LoadAverage(); load != "" {
		fmt.Fprintf(&w, "; the machine's load average was %s at the end", load)
	}
	w.WriteString(".\n\n")
	s.aimsTable(&w)
	for _, m := range s.traces {
		m.tables(&w)
	}
	for i, v := range s.agents {
		v.table(&w, i)
	}
	s.isolationTables(&w)
	s.costTable(&w)
	return w.String()
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

func times(v float64) string { return fmt.Sprintf("%.2fx", v) }

func (s size) String() string {
	if s.blocks == 0 {
		return fmt.Sprintf("%d x unlimited", s.endpoints)
	}
	return fmt.Sprintf("%d x %d", s.endpoints, s.blocks)
}

// aimsTable holds what was measured against what was aimed at.
func (s *study) aimsTable(w *strings.Builder) {
	w.WriteString("### Aims\n\n")
	section.Head(w, "what", "aim", "measured", "met")
	for _, a := range s.aims() {
		met := "yes"
		if !a.met {
			met = "**no**"
		}
		section.Row(w, a.what, a.aim, a.got, met)
	}
	w.WriteString("\n")
}

// tables: what a trace comes to in all pools.
func (m *matrix) tables(w *strings.Builder) {
	fmt.Fprintf(w, "### %s\n\n%d requests in %s. A cache that forgets nothing finds %s of the blocks.\n\n", strings.ReplaceAll(m.name, "_", " "),
		len(m.trace), m.trace[len(m.trace)-1].at.Round(time.Second), percent(m.unlimited))
	fmt.Fprintf(w, "![Prefix hits by cache size](img/%s)\n\n", m.file("hits"))
	all := names(referred())
	m.table(w, "**Prefix hit rate**, in blocks.", all, func(c compared) string { return percent(c.recorded.hits) })
	m.table(w, "**TTFT p50 / p95**, in seconds, at the recorded speed.", all, func(c compared) string {
		return fmt.Sprintf("%.2f / %.2f", c.recorded.ttft.Seconds(), c.recorded.tail.Seconds())
	})
	m.table(w, "**Throughput**, in thousand tokens (prompt and answer) a second, when requests come faster than any policy can serve them: as many times faster than recorded as there are engines.", all,
		func(c compared) string { return fmt.Sprintf("%.0f", c.saturated.tokens/1e3) })
	m.table(w, "**Imbalance**: prompt tokens computed by the busiest engine over the mean, in windows of 10 s; at the recorded speed, what single requests force, and when saturated.", all, func(c compared) string {
		return fmt.Sprintf("%.2f (%.2f) / %.2f", c.recorded.windowed, c.recorded.lumps, c.saturated.windowed)
	})
}

func (m *matrix) table(w *strings.Builder, title string, policies []string, cell func(compared) string) {
	w.WriteString(title + "\n\n")
	section.Head(w, append([]string{"engines x blocks"}, policies...)...)
	for _, s := range sizes() {
		cells := []string{s.String()}
		for _, p := range policies {
			cells = append(cells, cell(m.cells[s][p]))
		}
		section.Row(w, cells...)
	}
	w.WriteString("\n")
}

func (m *matrix) file(what string) string { return "scheduling-" + what + "-" + m.name + ".svg" }

// table: agents at all numbers.
func (s *sweep) table(w *strings.Builder, i int) {
	best, at := s.at70()
	fmt.Fprintf(w, "### Coding agents, %s blocks\n\n", s.size)
	fmt.Fprintf(w, "The best policy is %s with %.2f turns a second; %d agents bring it to 70 %% of that.\n\n", best, s.capacity(best), s.agents[at])
	for _, what := range []string{"ttft", "turns", "goodput"} {
		fmt.Fprintf(w, "![%s](img/%s)\n", what, sweepFile(what, i))
	}
	fmt.Fprintf(w, "\nEach cell: prefix hits; TTFT p50 / p95 in seconds; turns a second, and those of them whose first token came within %s.\n\n", slo)
	section.Head(w, append([]string{"agents", "attainable"}, s.names...)...)
	for j, n := range s.agents {
		cells := []string{fmt.Sprint(n), percent(s.points["ours"][j].ceiling)}
		for _, name := range s.names {
			p := s.points[name][j]
			cells = append(cells, fmt.Sprintf("%s; %.2f / %.1f; %.2f, %.2f", percent(p.hits), p.ttft.Seconds(), p.tail.Seconds(), p.turns, p.good))
		}
		section.Row(w, cells...)
	}
	w.WriteString("\n")
}

func sweepFile(what string, i int) string {
	return fmt.Sprintf("scheduling-agents-%s-%d.svg", what, i+1)
}

func (s *study) isolationTables(w *strings.Builder) {
	w.WriteString("### Isolation\n\n")
	section.Head(w, "flood of a lower band, five times the capacity", "TTFT p95", "alone", "ITL p95", "alone", "pool busy", "low band finished")
	for _, f := range s.floods {
		section.Row(w, f.name, ms(f.ttft), ms(f.ttftAlone), tenths(f.itl), tenths(f.itlAlone), percent(f.busy), fmt.Sprintf("%d of %d", f.finished, f.offered))
	}
	fmt.Fprintf(w, "\nTen tenants: the farthest that any was from its share in 10 s is %s; in the mean it is %s.\n\n", percent(s.worst), percent(s.mean))
	section.Head(w, "1,000 agents beside 20 chats a second", "chat TTFT p50", "p95", "agents' TTFT p95", "prefix hits", "requests", "refused")
	for _, name := range []string{"round-robin", "llm-d", "ours"} {
		r := s.burst[name]
		section.Row(w, name, ms(r.ttft("chat", .5)), ms(r.ttft("chat", .95)), ms(r.ttft("agent", .95)), percent(r.hitRate()), fmt.Sprint(len(r.records)), fmt.Sprint(r.refusals()))
	}
	w.WriteString("\n")
}

func tenths(d time.Duration) string { return d.Round(time.Millisecond / 10).String() }

func (s *study) costTable(w *strings.Builder) {
	w.WriteString("### Cost of a decision\n\n![Cost of a decision](img/scheduling-cost.svg)\n\nCPU time for a prompt of 8,000 tokens, with the end of the request that it was for.\n\n")
	section.Head(w, "endpoints", "flows", "us", "allocations", "bytes", "requests through a full pool's queue in a second of CPU")
	for _, c := range s.costs {
		through := ""
		if c.queued > 0 {
			through = fmt.Sprintf("%.0f", float64(time.Second)/float64(c.queued))
		}
		section.Row(w, fmt.Sprint(c.endpoints), fmt.Sprint(c.flows), fmt.Sprintf("%.1f", float64(c.decision.Nanoseconds())/1e3), fmt.Sprint(c.allocs), fmt.Sprint(c.bytes), through)
	}
	w.WriteString("\n")
}
