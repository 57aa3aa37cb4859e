package gateway

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"weir/scheduler"
)

// Told is what a shared scheduler said of a decision that it took: all that a
// replica knows of how it came about.
type Told struct {
	Scheduler string `json:"scheduler,omitempty"` // the process that took it
	// Queued is how long the request waited, as the scheduler says; nil where it
	// says nothing.
	Queued *time.Duration `json:"queued_ns,omitempty"`
	Reason string         `json:"reason,omitempty"` // of a refusal, in its own words
}

// mostTold is how many decisions of a shared scheduler are remembered.
const mostTold = 4096

// told remembers the latest decisions of a shared scheduler. The zero value is
// empty.
type told struct {
	mu   sync.Mutex
	ring []*note
	next int
}

// note is one decision, or what is known of it so far.
type note struct {
	decision Decision
	decided  bool
}

// teller is a lease that knows what its scheduler said. Of the wait it may only
// know once the answer's headers were exchanged.
type teller interface {
	Told() (schedulerName string, queued time.Duration, known bool)
}

// begin notes that a request is on its way to the scheduler.
func (t *told) begin(r *scheduler.Request, now time.Time) *note {
	n := &note{decision: Decision{
		Decision: scheduler.Decision{
			Request: r.ID, FairnessID: r.Flow.FairnessID, Band: r.Flow.Band, Session: r.Session, Model: r.Model,
			EnteredAt: now, InputTokens: r.InputTokens,
		},
		Shared: &Told{},
	}}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.ring) < mostTold {
		t.ring = append(t.ring, n)
	} else {
		t.ring[t.next] = n
		t.next = (t.next + 1) % mostTold
	}
	return n
}

func (t *told) dispatched(n *note, l scheduler.Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := &n.decision
	n.decided, d.Waited = true, time.Since(d.EnteredAt)
	if all := l.Targets(); len(all) > 0 {
		d.Endpoint, d.Considered = all[0].Endpoint, len(all)
	}
	d.Shared.hear(l)
	d.Why = fmt.Sprintf("dispatched after %s by the shared scheduler", d.Waited.Round(time.Microsecond))
}

func (t *told) refused(n *note, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := &n.decision
	n.decided, d.Waited, d.Refused, d.Shared.Reason = true, time.Since(d.EnteredAt), scheduler.Internal, err.Error()
	if refusal, ok := errors.AsType[*scheduler.Refusal](err); ok {
		d.Refused = refusal.Reason
	}
	d.Why = fmt.Sprintf("refused after %s by the shared scheduler: %s", d.Waited.Round(time.Microsecond), d.Refused)
}

// ended takes in what the lease knows at its end.
func (t *told) ended(n *note, l scheduler.Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.decision.Shared.hear(l)
}

func (t *Told) hear(l scheduler.Lease) {
	who, ok := l.(teller)
	if !ok {
		return
	}
	name, queued, known := who.Told()
	t.Scheduler = name
	if known {
		t.Queued = &queued
	}
}

// latest copies the decisions that were taken and match, the oldest first.
func (t *told) latest(pool string, match func(*Decision) bool) (all []Decision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.ring {
		n := t.ring[(t.next+i)%len(t.ring)]
		if !n.decided || !match(&n.decision) {
			continue
		}
		d, shared := n.decision, *n.decision.Shared
		d.Pool, d.Shared = pool, &shared
		all = append(all, d)
	}
	return all
}

// isOf reports whether the decision is on the request, or on the attempt, of
// this id.
func (d *Decision) isOf(id string) bool {
	request, _, _ := strings.Cut(d.Request, ".")
	return id == d.Request || id == request
}
