package main

import "slices"

// charts are the document's plots, by file name.
func (s *study) charts() map[string]chart {
	out := map[string]chart{"scheduling-cost.svg": s.costChart()}
	for _, m := range s.traces {
		out[m.file("hits")] = m.chart()
	}
	for i, v := range s.agents {
		out[sweepFile("ttft", i)] = v.chart("Time to first token, median", "seconds", true, func(p point) float64 { return p.ttft.Seconds() })
		out[sweepFile("turns", i)] = v.chart("Throughput", "turns a second", false, func(p point) float64 { return p.turns })
		out[sweepFile("goodput", i)] = v.chart("Goodput: first token within "+slo.String(), "turns a second", false, func(p point) float64 { return p.good })
	}
	return out
}

// chart: hits of a pool of eight by the size of its caches.
func (m *matrix) chart() chart {
	const endpoints = 8
	c := chart{
		title: "Prefix hits, 8 engines", x: "cache blocks of each engine", y: "% of the prompts' blocks", logX: true,
		limits: []limit{{"a cache that forgets nothing", 100 * m.unlimited}},
	}
	for _, name := range names(referred()) {
		l := curve{name: name}
		for _, s := range sizes() {
			if s.endpoints == endpoints && s.blocks > 0 {
				l.xy = append(l.xy, [2]float64{float64(s.blocks), 100 * m.cells[s][name].recorded.hits})
				c.ticks = appendNew(c.ticks, float64(s.blocks))
			}
		}
		c.lines = append(c.lines, l)
	}
	return c
}

func appendNew(all []float64, v float64) []float64 {
	if slices.Contains(all, v) {
		return all
	}
	return append(all, v)
}

func (s *sweep) chart(title, y string, logY bool, of func(point) float64) chart {
	c := chart{title: title, x: "agents at once", y: y, logY: logY}
	for _, name := range s.names {
		l := curve{name: name}
		for _, p := range s.points[name] {
			l.xy = append(l.xy, [2]float64{float64(p.agents), of(p)})
		}
		c.lines = append(c.lines, l)
	}
	return c
}

func (s *study) costChart() chart {
	c := chart{
		title: "Cost of a decision", x: "endpoints", y: "microseconds", logX: true, logY: true,
		limits: []limit{{"aim at 100 endpoints", 15}, {"aim at 1,000 endpoints", 50}},
	}
	for _, flows := range []int{1, 100, 10_000} {
		l := curve{name: short(float64(flows)) + " flows"}
		for _, v := range s.costs {
			if v.flows == flows {
				l.xy = append(l.xy, [2]float64{float64(v.endpoints), float64(v.decision.Nanoseconds()) / 1e3})
			}
		}
		c.lines = append(c.lines, l)
	}
	return c
}
