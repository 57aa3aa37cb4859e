package main

import (
	"fmt"
	"strings"
	"time"

	"weir/bench/section"
)

// report is the section of the document.
func report(all []row, o options) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## Beside llm-d's Endpoint Picker\n\n%s\n\n", section.Machine()+", load average "+section.LoadAverage())
	b.WriteString("`make bench-epp EPP_BIN=PATH` measures three ways to schedule on the same simulated engines, with a real clock: the embedded scheduler, " +
		"the same one in a process of its own (`weir scheduler`'s stream), and llm-d's Endpoint Picker with flow control, strict bands, round-robin fairness and its " +
		"prefix, queue, cache and in-flight scorers. The last two are asked through the same client.\n\n")
	b.WriteString("**A decision**: a place is asked for and given back at once, by four callers, on eight engines. CPU is for each decision: of the process that asks, " +
		"and of the scheduler's own.\n\n")
	section.Head(&b, "", "prompt", "p50", "p99", "CPU of the caller", "CPU of the scheduler")
	for _, r := range all {
		for _, d := range r.decisions {
			theirs := "in the caller"
			if d.theirs > 0 {
				theirs = short(d.theirs)
			}
			section.Row(&b, r.name, fmt.Sprintf("%d KB", d.size>>10), short(d.p50), short(d.p99), short(d.ours), theirs)
		}
	}
	fmt.Fprintf(&b, "\n**Loads.** Prefix hits: %d conversations of %d turns on four engines whose caches hold three quarters of them together; of the prompt tokens, "+
		"%.0f %% repeat a former turn. Isolation: two engines of %d places; the top band sends 30 %% of what they can do, alone and beside a lower band with five times as "+
		"much. Fairness: ten tenants want more than there is for %v, with answers of 8 to 32 tokens, the first of them with 20 times as many requests at once; tokens by tenant.\n\n",
		talks, turns, 100*all[0].possible, loadPlaces, time.Duration(o.seconds*float64(time.Second)))
	section.Head(&b, "", "prefix hits", "top band's TTFT p95 alone", "in the flood", "with a reserve of 20 %", "fairness (Jain; 1 is even)", "least tenant, of an even share")
	for _, r := range all {
		section.Row(&b, r.name, fmt.Sprintf("%.1f %%", 100*r.hits), short(r.alone), times(r.flooded, r.alone), times(r.reserved, r.alone),
			fmt.Sprintf("%.3f", r.jain), fmt.Sprintf("%.0f %%", 100*r.least))
	}
	if o.binary == "" {
		b.WriteString("\nThe Endpoint Picker's rows are left out: `EPP_BIN` named none.\n")
	}
	return b.String()
}

func times(d, alone time.Duration) string {
	return fmt.Sprintf("%s (%.1f times)", short(d), float64(d)/float64(max(alone, 1)))
}

// short is a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d us", d.Microseconds())
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000)
	default:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
}
