package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// why tells in one sentence why the request waited and where it went.
func (d *Decision) why() string {
	var s strings.Builder
	switch {
	case d.Refused != "" && d.Waited > 0:
		fmt.Fprintf(&s, "refused as %s after %s", d.Refused, short(d.Waited))
	case d.Refused != "":
		fmt.Fprintf(&s, "refused as %s", d.Refused)
	case d.Held == "":
		s.WriteString("dispatched at once")
	default:
		fmt.Fprintf(&s, "dispatched after %s", short(d.Waited))
	}
	if held := d.heldBy(); held != "" {
		s.WriteString(", held by " + held)
	}
	if d.Refused == "" {
		s.WriteString(d.went())
	}
	return s.String()
}

// heldBy is what the request waited for. A refusal at once tells what the pool
// was like.
func (d *Decision) heldBy() string {
	switch d.Held {
	case HeldByOrder:
		return fmt.Sprintf("the order of the queue (about %d before it when it came)", d.Ahead)
	case HeldByCeiling:
		return fmt.Sprintf("the ceiling of its band (the pool was at %.2f, and band %d may fill it to %.2f)", d.HeldSaturation, d.Band, d.HeldCeiling)
	case HeldByEndpoints:
		if d.HeldSaturation >= 1 {
			return fmt.Sprintf("its endpoints (the pool was full, at %.2f)", d.HeldSaturation)
		}
		return fmt.Sprintf("its endpoints (none that may take it had room, the pool being at %.2f)", d.HeldSaturation)
	case HeldByCaches:
		return "the caches (it would have driven out what others come back for, and stood aside)"
	case HeldByNoEndpoint:
		return "the lack of endpoints (the pool had none that works)"
	default:
		return ""
	}
}

func (d *Decision) went() string {
	var s strings.Builder
	fmt.Fprintf(&s, "; went to %s", d.Endpoint)
	if d.Considered > 1 {
		fmt.Fprintf(&s, ", best of %d", d.Considered)
	}
	if d.Prefill != "" {
		fmt.Fprintf(&s, ", with the prompt computed at %s", d.Prefill)
	}
	if d.CachedTokens > 0 {
		fmt.Fprintf(&s, ", where %d of about %d prompt tokens should be cached", d.CachedTokens, d.InputTokens)
	}
	if len(d.Candidates) > 1 {
		s.WriteString(d.lead())
	}
	if len(d.Left) > 0 {
		s.WriteString("; left out: ")
		for i, by := range slices.Sorted(maps.Keys(d.Left)) {
			if i > 0 {
				s.WriteString(", ")
			}
			fmt.Fprintf(&s, "%d by %s", d.Left[by], by)
		}
	}
	return s.String()
}

// lead names the scorer that put the first candidate furthest before the
// second.
func (d *Decision) lead() string {
	first, second := &d.Candidates[0], &d.Candidates[1]
	most, by := 0.0, ""
	for i := range min(len(first.Scores), len(second.Scores)) {
		a, b := first.Scores[i], second.Scores[i]
		if lead := a.Weight*a.Value - b.Weight*b.Value; lead > most {
			most, by = lead, a.Scorer
		}
	}
	if by == "" {
		return fmt.Sprintf(", level with %s", second.Endpoint)
	}
	return fmt.Sprintf(", %.2f to %.2f before %s by %s", first.Score, second.Score, second.Endpoint, by)
}

// short drops what nobody reads of a duration.
func short(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(time.Millisecond)
	default:
		return d.Round(10 * time.Microsecond)
	}
}
