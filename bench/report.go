package main

import (
	"fmt"
	"strings"
	"time"

	"weir/bench/section"
)

const floorName = "floor"

// report writes the tables.
func (b *bench) report(ls, secure []load, command string, when time.Time) string {
	var w strings.Builder
	fmt.Fprintf(&w, "Measured %s on %s with `%s`, %d rounds", when.UTC().Format("2006-01-02"), section.Machine(), command, b.rounds)
	if load := section.LoadAverage(); load != "" {
		fmt.Fprintf(&w, "; the machine's load average was %s at the end", load)
	}
	w.WriteString(".\n\n")
	w.WriteString("**CPU microseconds per request**, of everything that a target needs (gateway, Postgres, Redis): median over the rounds, the range in brackets, and the multiple of the floor in the same round.\n\n")
	b.costTable(&w, ls, b.measured())
	w.WriteString("The same where callers come encrypted; the floor then ends TLS too.\n\n")
	b.costTable(&w, secure, b.secure)
	b.partsTable(&w, ls)
	b.latencyTable(&w, ls)
	b.memoryTable(&w, ls)
	b.gatesList(&w)
	return w.String()
}

// measured lists the targets that have CPU to count, the floor first.
func (b *bench) measured() []*target {
	var out []*target
	for _, t := range b.targets {
		if len(t.parts) > 0 {
			out = append(out, t)
		}
	}
	return out
}

// costTable: CPU per request, and its ratio to the floor in the same round.
func (b *bench) costTable(w *strings.Builder, ls []load, ts []*target) {
	head := []string{"case"}
	for _, t := range ts {
		head = append(head, t.name)
	}
	section.Head(w, append(head, "aim")...)
	for _, l := range ls {
		cells := []string{l.name}
		for _, t := range ts {
			cells = append(cells, b.costCell(l, t))
		}
		aim := ""
		if l.aim > 0 {
			aim = fmt.Sprintf("≤ %.2gx", l.aim)
			if l.aim == 1.25 {
				aim = "≤ 1.25x (chunks per core ≥ 80 %)"
			}
		}
		section.Row(w, append(cells, aim)...)
	}
	w.WriteString("\n")
}

func (b *bench) costCell(l load, t *target) string {
	rounds := b.results[l.name][t.name]
	var us []int64
	for _, r := range rounds {
		us = append(us, r.allCPU().Microseconds())
	}
	s := spreadOf(us)
	text := fmt.Sprintf("%d (%d to %d)", s.median, s.low, s.high)
	ratio := b.ratio(l, t).median
	if t.name == floorName || ratio == 0 {
		return text
	}
	return text + fmt.Sprintf(", %.2fx", ratio)
}

// ratio compares with the floor round by round: what disturbs the machine
// disturbs both.
func (b *bench) ratio(l load, t *target) spread[float64] {
	base := b.results[l.name][floorName]
	var ratios []float64
	for i, r := range b.results[l.name][t.name] {
		if i < len(base) && base[i].allCPU() > 0 {
			ratios = append(ratios, float64(r.allCPU())/float64(base[i].allCPU()))
		}
	}
	return spreadOf(ratios)
}

// partsTable: where the CPU of a target with several parts goes.
func (b *bench) partsTable(w *strings.Builder, ls []load) {
	for _, t := range b.measured() {
		if len(t.parts) < 2 {
			continue
		}
		head := []string{t.name + ": median us in"}
		for _, p := range t.parts {
			head = append(head, p.Name)
		}
		section.Head(w, head...)
		for _, l := range ls {
			cells := []string{l.name}
			for i := range t.parts {
				var us []int64
				for _, r := range b.results[l.name][t.name] {
					us = append(us, r.cpu[i].Microseconds())
				}
				cells = append(cells, fmt.Sprint(spreadOf(us).median))
			}
			section.Row(w, cells...)
		}
		w.WriteString("\n")
	}
}

// latencyTable: what a target adds to the mock's own latency.
func (b *bench) latencyTable(w *strings.Builder, ls []load) {
	w.WriteString("**Added latency in milliseconds**, over asking the upstream directly in the same round: median over the rounds. First byte is the first byte of the body, so TTFT for a stream. The aim is the floor's + 0.3 p50 and + 1 p99; a JSON answer also waits for one durable commit.\n\n")
	section.Head(w, "case", "target", "requests/s", "first byte p50", "first byte p99", "whole p50", "whole p99")
	for _, l := range ls {
		direct := b.results[l.name][directName]
		if len(direct) == 0 {
			continue
		}
		for _, t := range b.measured() {
			rounds := b.results[l.name][t.name]
			added := func(of func(round) time.Duration) string {
				var ms []float64
				for i, r := range rounds {
					ms = append(ms, (of(r)-of(direct[i])).Seconds()*1e3)
				}
				return fmt.Sprintf("%.2f", spreadOf(ms).median)
			}
			var rate []float64
			for _, r := range rounds {
				rate = append(rate, r.perSecond)
			}
			section.Row(w, l.name, t.name, fmt.Sprintf("%.0f", spreadOf(rate).median),
				added(func(r round) time.Duration { return r.first[0] }), added(func(r round) time.Duration { return r.first[1] }),
				added(func(r round) time.Duration { return r.total[0] }), added(func(r round) time.Duration { return r.total[1] }))
		}
	}
	w.WriteString("\n")
}

// memoryTable: resident memory of the proxy or gateway process itself.
func (b *bench) memoryTable(w *strings.Builder, ls []load) {
	fmt.Fprintf(w, "**Memory, streams, throughput.** Resident memory is that of the proxy or gateway alone; the aims are 60 MB at peak in the JSON run, 40 KB for an idle stream and less than 500 MB for 10,000 open streams. Chunks per core are those of the paced streams. Events after a drop: the most that the upstream made for one of %d streams whose caller left (aim: 1).\n\n", droppedStreams)
	section.Head(w, "target", "peak MB, small JSON", "peak MB, 200 KB prompts", fmt.Sprintf("KB per idle stream (%d)", b.idle), fmt.Sprintf("MB with %d open streams", b.crowd), "chunks/s per core", "JSON requests/s, 8 callers", "events after a drop")
	for _, t := range b.measured() {
		var big int64
		for _, r := range b.results[ls[3].name][t.name] {
			big = max(big, r.peakMemory)
		}
		var chunks, rate []float64
		for _, r := range b.results[ls[4].name][t.name] {
			if r.allCPU() > 0 {
				chunks = append(chunks, streamEvents/r.allCPU().Seconds())
			}
		}
		for _, r := range b.results[ls[0].name][t.name] {
			rate = append(rate, r.perSecond)
		}
		h := b.held[t.name]
		section.Row(w, t.name, megabytes(h.jsonPeak), megabytes(big), fmt.Sprintf("%.1f", float64(h.perStream)/1e3), crowdCell(h),
			fmt.Sprintf("%.0f", spreadOf(chunks).median), fmt.Sprintf("%.0f", spreadOf(rate).median), fmt.Sprint(h.overrun))
	}
	w.WriteString("\n")
}

func crowdCell(h held) string {
	if h.crowd == 0 {
		return "" // not measured
	}
	return megabytes(h.crowd)
}

func megabytes(n int64) string { return fmt.Sprintf("%.0f", float64(n)/1e6) }

func (b *bench) gatesList(w *strings.Builder) {
	w.WriteString("**Checked in the same run** (one failure fails the command):\n\n")
	w.WriteString("- every answer had its usage, every stream all 64 events and its `[DONE]`, on every target\n")
	w.WriteString("- every dropped stream was cancelled at the upstream, on every target\n")
	if b.installation != nil {
		fmt.Fprintf(w, "- receipts in Postgres = what the upstream made: %d finished exchanges (uncached, cached, output and reasoning tokens alike), %d whose caller left\n",
			b.made.Done, b.made.Cancelled)
	}
}
