package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"weir/bench/section"
)

// agentReport is what the agents and the flood came to.
type agentReport struct {
	command         string
	when            time.Time
	direct, through crowded
	receipts        int
	pgPID           int
	flood           floodedRun
}

func (r *agentReport) text() string {
	var w strings.Builder
	fmt.Fprintf(&w, "Measured %s on %s with `%s`", r.when.UTC().Format("2006-01-02"), section.Machine(), r.command)
	if load := section.LoadAverage(); load != "" {
		fmt.Fprintf(&w, "; the machine's load average was %s at the end", load)
	}
	w.WriteString(".\n\n")
	r.agentsTable(&w)
	r.floodTable(&w)
	return w.String()
}

func (r *agentReport) agentsTable(w *strings.Builder) {
	t, d := r.through, r.direct
	added := t.latency()
	fmt.Fprintf(w, "**%d agents at once through one `weir serve`**: %d turns in %s, %.0f turns and %.0f chunks a second. A turn that fails or comes short ends the run.\n\n",
		t.agents, len(t.turns), t.wall.Round(time.Second), t.perSecond(), t.perSecond()*agentChunks)
	section.Head(w, "what", "aim", "measured", "met")
	row := func(what, aim, got string, met bool) {
		word := "yes"
		if !met {
			word = "**no**"
		}
		section.Row(w, what, aim, got, word)
	}
	wrong := t.prefix.Requests - len(t.turns) + t.prefix.Abandoned
	row("errors", "0", fmt.Sprint(wrong), wrong == 0)
	row("turns without a receipt", "0", fmt.Sprint(len(t.turns)-r.receipts), r.receipts == len(t.turns))
	row("end-to-end latency that is neither the engine's nor the queue's", "< 1 %",
		fmt.Sprintf("%.2f %% (mean %.2f ms, p50 %.2f ms; straight at the engines %.2f %%, p99 %.2f ms)",
			100*added.part, millis(added.mean), millis(added.median), 100*d.latency().part, millis(d.latency().tail)), added.part < .01)
	row("p99 of that", "≤ 5 ms", fmt.Sprintf("%.2f ms", millis(added.tail)), added.tail <= 5*time.Millisecond)
	part := float64(t.prefix.Hits) / float64(max(t.prefix.Attainable, 1))
	row("prefix hits as part of what can be reused", "≥ 98 %", fmt.Sprintf("%.1f %% (%.1f %% of %.1f %% of all blocks)", 100*part, t.prefix.rate(t.prefix.Hits), t.prefix.rate(t.prefix.Attainable)), part >= .98)
	row(fmt.Sprintf("CPU of gateway and Postgres, of %d cores", runtime.NumCPU()), "< 70 %", fmt.Sprintf("%.0f %%", 100*t.busy()), t.busy() < .7)
	w.WriteString("\n")
	section.Head(w, "part", "CPU us a turn")
	for i, p := range t.parts {
		section.Row(w, p.Name, fmt.Sprint(t.cpu[i].Microseconds()/int64(max(len(t.turns), 1))))
	}
	fmt.Fprintf(w, "\nThe gateway's memory peaked at %s MB. Requests by engine: %d to %d. The queue took %.2f ms in the mean.\n\n",
		megabytes(t.memory), slices.Min(t.prefix.ByEngine), slices.Max(t.prefix.ByEngine), millis(added.queued))
}

func (r *agentReport) floodTable(w *strings.Builder) {
	f := r.flood
	ttftAlone, gapAlone := tails(f.alone)
	ttft, gap := tails(f.loud)
	ratio := float64(ttft) / float64(max(ttftAlone, 1))
	met := "yes"
	if ratio > 1.5 {
		met = "**no**"
	}
	fmt.Fprintf(w, "**A flood below a band, on a real clock**: one `weir sim` with %d places behind one `weir serve`; the top band at 30 %% of capacity, the low one at five times it for %s.\n\n", floodPlaces, floodLasts)
	section.Head(w, "TTFT p95 over alone", "aim", "met", "TTFT p95", "alone", "ITL p95", "alone", "engine busy", "low band finished")
	section.Row(w, fmt.Sprintf("%.2fx", ratio), "≤ 1.5x", met, fmt.Sprintf("%.1f ms", millis(ttft)), fmt.Sprintf("%.1f ms", millis(ttftAlone)),
		fmt.Sprintf("%.1f ms", millis(gap)), fmt.Sprintf("%.1f ms", millis(gapAlone)), fmt.Sprintf("%.0f %%", 100*f.busy),
		fmt.Sprintf("%d of %d after %s", f.finished, f.offered, f.took.Round(time.Second)))
}

func millis(d time.Duration) float64 { return d.Seconds() * 1e3 }

// latency is what of the turns was neither the engine's nor the queue's.
type latency struct {
	part                       float64 // of all latency
	mean, median, tail, queued time.Duration
}

func (c crowded) latency() latency {
	var all []time.Duration
	var sum, total, queued time.Duration
	for _, t := range c.turns {
		all = append(all, t.ours())
		sum += t.ours()
		total += t.total
		queued += t.queued
	}
	if len(all) == 0 {
		return latency{}
	}
	slices.Sort(all)
	n := time.Duration(len(all))
	return latency{
		part: sum.Seconds() / total.Seconds(), mean: sum / n, queued: queued / n,
		median: all[len(all)/2], tail: all[len(all)*99/100],
	}
}

func (c crowded) perSecond() float64 { return float64(len(c.turns)) / c.wall.Seconds() }

func (s PrefixStats) rate(blocks int) float64 {
	return 100 * float64(blocks) / float64(max(s.Blocks, 1))
}
