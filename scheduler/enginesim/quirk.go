package enginesim

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// quirk is what a server does against its contract without any request
// failing: what only somebody who looks for it finds out.
type quirk struct {
	ignoreSalt, hideCached, noUsage, noContinuousUsage, keepRunning bool
}

func (q *quirk) raise(name string) error {
	switch name {
	case "ignore-salt": // the prefix cache is one for all
		q.ignoreSalt = true
	case "hide-cached": // usage doesn't say what came from the cache
		q.hideCached = true
	case "ignore-include-usage":
		q.noUsage = true
	case "ignore-continuous-usage":
		q.noContinuousUsage = true
	case "keep-running": // an answer goes on when its caller has left
		q.keepRunning = true
	default:
		return fmt.Errorf("unknown name")
	}
	return nil
}

// apply makes the server read the request as the quirk has it.
func (q quirk) apply(s *sampling) {
	if q.ignoreSalt {
		s.CacheSalt = nil
	}
	if s.StreamOptions != nil {
		s.StreamOptions.IncludeUsage = s.StreamOptions.IncludeUsage && !q.noUsage
		s.StreamOptions.ContinuousUsage = s.StreamOptions.ContinuousUsage && !q.noContinuousUsage
	}
}

// outlive makes the answer of a caller who has left, to its end.
func (e *Engine) outlive(ctx context.Context, j *job) { _ = e.wait(context.WithoutCancel(ctx), j) }

// Priorities says what a server makes of the priority of requests.
type Priorities string

// What engines do: vLLM refuses priorities unless it schedules by them, and
// then the lower number goes first; with SGLang it is the higher one.
const (
	NoPriorities Priorities = ""
	LowerFirst   Priorities = "lower-first"
	HigherFirst  Priorities = "higher-first"
	Ignored      Priorities = "ignored"
)

// urgency orders waiting sequences: the lower goes first.
func (p Priorities) urgency(priority int) int {
	switch p {
	case LowerFirst:
		return priority
	case HigherFirst:
		return -priority
	case NoPriorities, Ignored:
	}
	return 0
}

func (p Priorities) check(priority int) error {
	if priority != 0 && p == NoPriorities {
		return badRequest("priority", "Got priority %d but priority scheduling is not enabled.", priority)
	}
	return nil
}

// line puts sequences into the queue, behind all that are as urgent.
func line(waiting, seqs []*sequence) []*sequence {
	waiting = append(waiting, seqs...)
	slices.SortStableFunc(waiting, func(a, b *sequence) int { return cmp.Compare(a.urgency, b.urgency) })
	return waiting
}
