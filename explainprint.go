package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"weir/gateway"
	"weir/scheduler"
)

// printExplanations tells people what the replicas know.
func printExplanations(out io.Writer, known []explanation) error {
	w := &strings.Builder{}
	for i, e := range known {
		if i > 0 {
			fmt.Fprintln(w)
		}
		for j, d := range e.Decisions {
			if j > 0 {
				fmt.Fprintln(w)
			}
			printDecision(w, e.Replica, d)
		}
		if e.Waiting != nil {
			printWaiting(w, e.Replica, *e.Waiting)
		}
	}
	_, err := io.WriteString(out, w.String())
	return err
}

func printDecision(w io.Writer, replica string, d gateway.Decision) {
	fmt.Fprintf(w, "%s at %s: %s\n", d.Request, replica, d.Why)
	if d.Shared != nil {
		printShared(w, d)
		return
	}
	model := cmp.Or(strings.Join(d.Models, ", "), d.Model)
	fmt.Fprintf(w, "  asked for   %s in pool %s, band %s, as %s\n", cmp.Or(model, "a model"), d.Pool, bandOf(d), d.FairnessID)
	fmt.Fprintf(w, "  came        %s: %d waited in the pool, about %d before it\n", d.EnteredAt.UTC().Format("2006-01-02 15:04:05.000"), d.Queued, d.Ahead)
	fmt.Fprintf(w, "  waited      %s\n", waitedBecause(d.Waited, d.Held))
	if d.HeldSaturation > 0 || d.HeldCeiling > 0 {
		fmt.Fprintf(w, "  held        with the pool at %.2f, which the band might fill to %.2f\n", d.HeldSaturation, d.HeldCeiling)
	}
	fmt.Fprintf(w, "  decided     with the pool at %.2f, which the band might fill to %.2f\n", d.Saturation, d.Ceiling)
	if d.Refused != "" {
		fmt.Fprintf(w, "  refused     %s\n", refusedBecause(d.Refused))
		return
	}
	if d.Considered > 1 {
		fmt.Fprintf(w, "  went to     %s, the best of %d that could take it\n", d.Endpoint, d.Considered)
	} else {
		fmt.Fprintf(w, "  went to     %s, the only one that could take it\n", d.Endpoint)
	}
	if len(d.Left) > 0 {
		var left []string
		for _, by := range slices.Sorted(maps.Keys(d.Left)) {
			left = append(left, fmt.Sprintf("%d by %s", d.Left[by], by))
		}
		fmt.Fprintf(w, "  left out    %s\n", strings.Join(left, ", "))
	}
	printCandidates(w, d)
}

// printShared tells of a decision that another process took: what it told the
// replica, which is not how it came about.
func printShared(w io.Writer, d gateway.Decision) {
	model := cmp.Or(strings.Join(d.Models, ", "), d.Model)
	fmt.Fprintf(w, "  asked for   %s in pool %s, band %s, as %s\n", cmp.Or(model, "a model"), d.Pool, bandOf(d), d.FairnessID)
	fmt.Fprintf(w, "  came        %s\n", d.EnteredAt.UTC().Format("2006-01-02 15:04:05.000"))
	if d.Shared.Scheduler != "" {
		fmt.Fprintf(w, "  scheduler   %s\n", d.Shared.Scheduler)
	}
	if d.Shared.Queued != nil {
		fmt.Fprintf(w, "  waited      %s, of which %s in its queue as it says\n", round(d.Waited), round(*d.Shared.Queued))
	} else {
		fmt.Fprintf(w, "  waited      %s for its decision\n", round(d.Waited))
	}
	if d.Refused != "" {
		fmt.Fprintf(w, "  refused     %s: %s\n", refusedBecause(d.Refused), d.Shared.Reason)
		return
	}
	fmt.Fprintf(w, "  went to     %s, as it said\n", d.Endpoint)
}

func bandOf(d gateway.Decision) string {
	if d.BandName == "" {
		return fmt.Sprint(d.Band)
	}
	return fmt.Sprintf("%s (%d)", d.BandName, d.Band)
}

// printCandidates is the table of scores: each scorer is a column.
func printCandidates(out io.Writer, d gateway.Decision) {
	if len(d.Candidates) == 0 {
		return
	}
	var scorers []scheduler.Score
	for _, c := range d.Candidates {
		for _, s := range c.Scores {
			if !slices.ContainsFunc(scorers, func(x scheduler.Score) bool { return x.Scorer == s.Scorer }) {
				scorers = append(scorers, s)
			}
		}
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprint(w, "  CANDIDATE\tSCORE\tCACHED\tRUNNING")
	for _, s := range scorers {
		fmt.Fprintf(w, "\t%s x%g", s.Scorer, s.Weight)
	}
	weighed := slices.ContainsFunc(d.Candidates, func(c scheduler.Candidate) bool { return c.Work.Pace > 0 })
	if weighed {
		fmt.Fprint(w, "\tPACE\tAHEAD\tUNCACHED\tEXTRA\tEVICTS\tLATER")
	}
	fmt.Fprintln(w)
	for _, c := range d.Candidates {
		fmt.Fprintf(w, "  %s\t%.3f\t%d of %d\t%d", c.Endpoint, c.Score, c.CachedTokens, d.InputTokens, c.Live)
		for _, s := range scorers {
			i := slices.IndexFunc(c.Scores, func(x scheduler.Score) bool { return x.Scorer == s.Scorer })
			if i < 0 {
				fmt.Fprint(w, "\t-")
			} else {
				fmt.Fprintf(w, "\t%.3f", c.Scores[i].Value)
			}
		}
		if x := c.Work; weighed {
			fmt.Fprintf(w, "\t%.2f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f", x.Pace, x.Ahead, x.Uncached, x.Extra, x.Evicts, x.Later)
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // into memory
}

func printWaiting(w io.Writer, replica string, q gateway.Waiting) {
	fmt.Fprintf(w, "%s waits at %s\n", q.ID, replica)
	fmt.Fprintf(w, "  asked for   %s in pool %s, band %s\n", q.Model, q.Pool, q.Band)
	if q.Position == nil {
		fmt.Fprintf(w, "  waits       %s so far\n", round(q.Waited))
		return
	}
	fmt.Fprintf(w, "  waits       %s so far, with about %d before it: %s\n", round(q.Waited), q.Position.Ahead, holdInWords(q.Position.Hold))
	if q.Position.Expected > 0 {
		fmt.Fprintf(w, "  expected    to go in %s at the present pace\n", round(q.Position.Expected))
	}
}

func waitedBecause(waited time.Duration, held scheduler.Hold) string {
	if held == "" {
		return "not at all: nothing waited and an endpoint had room"
	}
	return fmt.Sprintf("%s, at the end because %s", round(waited), holdInWords(held))
}

func holdInWords(h scheduler.Hold) string {
	switch h {
	case scheduler.HeldByOrder:
		return "others went first"
	case scheduler.HeldByCeiling:
		return "the pool was as full as the band may make it, and what was left is kept for higher ones"
	case scheduler.HeldByEndpoints:
		return "no endpoint that may take it had room"
	case scheduler.HeldByCaches:
		return "it would have driven out of the caches what others come back for, and stood aside"
	case scheduler.HeldByNoEndpoint:
		return "the pool had no endpoint that works"
	default:
		return string(h)
	}
}

func refusedBecause(r scheduler.Reason) string {
	switch r {
	case scheduler.FlowFull:
		return "as many of its tenant's requests waited as may"
	case scheduler.BandFull:
		return "its band's queue was full"
	case scheduler.PoolFull:
		return "the pool's queue was full"
	case scheduler.QueueTimeout:
		return "its time in the queue was up"
	case scheduler.NoEndpoints:
		return "there was no endpoint that works"
	case scheduler.Cancelled:
		return "its caller left"
	case scheduler.ShuttingDown:
		return "the scheduler stopped"
	default:
		return string(r)
	}
}

// round keeps what matters to people.
func round(d time.Duration) time.Duration {
	switch {
	case d < time.Millisecond:
		return d.Round(time.Microsecond)
	case d < time.Second:
		return d.Round(time.Millisecond)
	default:
		return d.Round(10 * time.Millisecond)
	}
}
