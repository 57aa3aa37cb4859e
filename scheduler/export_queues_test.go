package scheduler

import "fmt"

// Left says what is kept of requests that wait or run.
func (e *Embedded) Left() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := &e.queues
	if q.queued != 0 || q.bytes != 0 || len(q.byID) != 0 || len(q.promised) != 0 {
		return fmt.Errorf("the pool has %d waiting, %d bytes, %d by id, %d below a reservation", q.queued, q.bytes, len(q.byID), len(q.promised))
	}
	for _, b := range q.bands {
		if b.queued != 0 || b.bytes != 0 || b.weight != 0 || b.backlog.Len() != 0 || b.idle.n != len(b.flows) || b.owed > 0 {
			return fmt.Errorf("band %d has %d waiting, %d bytes, weight %d, %d flows of them, %d of %d flows idle, and is owed %v",
				b.priority, b.queued, b.bytes, b.weight, b.backlog.Len(), b.idle.n, len(b.flows), b.owed)
		}
		for _, f := range b.flows {
			if f.held != 0 || f.slot != 0 || f.program != nil && f.program.live != 0 {
				return fmt.Errorf("flow %s of band %d holds %d tokens and slot %d of program %+v", f.id, b.priority, f.held, f.slot, f.program)
			}
		}
	}
	for _, s := range q.sessions.byID {
		if s.live != 0 {
			return fmt.Errorf("session %s has %d leases", s.id, s.live)
		}
	}
	return nil
}
