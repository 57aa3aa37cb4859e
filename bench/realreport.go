package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/bench/section"
)

func (f *realFlood) text() string {
	var w strings.Builder
	fmt.Fprintf(&w, "Measured %s on %s with `%s`", f.when.UTC().Format("2006-01-02"), section.Machine(), f.command)
	if load := section.LoadAverage(); load != "" {
		fmt.Fprintf(&w, "; the machine's load average was %s at the end", load)
	}
	fmt.Fprintf(&w, ".\n\n**A flood below a band, at a real engine**: llama.cpp's server with `--parallel %d` and SmolLM2-135M on this machine's cores, which clients, gateway and Postgres share, behind one `weir serve`. ", f.pool.places)
	fmt.Fprintf(&w, "In each of %d rounds: its capacity; the top band alone at 30 %% of that for up to %s; and the very same requests again while the low band sends five times the capacity for %s, and waits. ", len(f.rounds), f.phases.top, f.phases.flood)
	fmt.Fprintf(&w, "Prompts of %d words and answers of %d tokens, from half to half more, in both bands. Busy is the answers a second under the flood over the capacity.\n\n", f.pool.prompt, f.pool.answer)
	section.Head(&w, "round", "capacity a second", "TTFT p95 over alone", "TTFT p50 / p95", "alone", "ITL p95", "alone", "busy", "low band finished")
	var whole realRound
	for i, r := range f.rounds {
		row(&w, strconv.Itoa(i+1), r)
		whole.add(r)
	}
	whole.capacity, whole.served = whole.capacity/float64(len(f.rounds)), whole.served/float64(len(f.rounds))
	row(&w, "all", whole)
	w.WriteString("\n")
	section.Head(&w, "what", "aim", "measured", "met")
	ratio, busy := whole.ratio(), whole.served/whole.capacity
	section.Row(&w, "TTFT p95 of all rounds over that alone", "≤ 1.5x", fmt.Sprintf("%.2fx", ratio), word(ratio <= 1.5))
	section.Row(&w, "pool busy", "≥ 90 %", fmt.Sprintf("%.0f %%", 100*busy), word(busy >= .9))
	section.Row(&w, "low band finished", "all", fmt.Sprintf("%d of %d", whole.finished, whole.offered), word(whole.finished == whole.offered))
	fmt.Fprintf(&w, "\nThe pool's document (beside the bands `top`, 10, and `standard`, 0):\n\n```yaml\n%s```\n", f.pool.document())
	return w.String()
}

func row(w *strings.Builder, name string, r realRound) {
	alone, gapAlone := tails(r.alone)
	loud, gap := tails(r.loud)
	section.Row(w, name, fmt.Sprintf("%.1f", r.capacity), fmt.Sprintf("%.2fx", r.ratio()),
		fmt.Sprintf("%.0f / %.0f ms", millis(middling(r.loud)), millis(loud)), fmt.Sprintf("%.0f / %.0f ms", millis(middling(r.alone)), millis(alone)),
		fmt.Sprintf("%.0f ms", millis(gap)), fmt.Sprintf("%.0f ms", millis(gapAlone)), fmt.Sprintf("%.0f %%", 100*r.served/r.capacity),
		fmt.Sprintf("%d of %d after %s", r.finished, r.offered, r.took.Round(time.Second)))
}

// add pools another round's figures with those so far.
func (r *realRound) add(o realRound) {
	r.capacity += o.capacity
	r.served += o.served
	r.alone = append(r.alone, o.alone...)
	r.loud = append(r.loud, o.loud...)
	r.offered += o.offered
	r.finished += o.finished
	r.took = max(r.took, o.took)
}

func (r *realRound) ratio() float64 {
	alone, _ := tails(r.alone)
	loud, _ := tails(r.loud)
	return float64(loud) / float64(max(alone, 1))
}

func middling(all []paced) time.Duration {
	if len(all) == 0 {
		return 0
	}
	var firsts []time.Duration
	for _, p := range all {
		firsts = append(firsts, p.first)
	}
	slices.Sort(firsts)
	return firsts[len(firsts)/2]
}

func word(met bool) string {
	if met {
		return "yes"
	}
	return "**no**"
}
