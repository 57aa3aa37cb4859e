package scheduler

import (
	"math"
	"time"
)

// llm-d's bounds of an eviction: so many leases at once, then wait until all
// of them have ended and the pool's measure has caught up, or until it has
// taken so long that they may never.
const (
	maxVictims       = 2
	confirmTimeout   = 10 * time.Second
	concurrencyGrace = 10 * time.Millisecond
	utilizationGrace = 250 * time.Millisecond // beyond the age at which a load is unknown
)

// eviction is the taking back of endpoints from negative bands: stop and wait.
type eviction struct {
	round   uint64
	target  int       // leases that the round told to end
	pending int       // of them those that have not ended
	next    time.Time // no further round before it

	confirmed Timing // leases that ended when they were told to, and how long they took
	timedOut  uint64 // leases that had not when the next round began
}

// victim makes a lease one that can be evicted. Those of a band are linked,
// the newest first.
type victim struct {
	evicted      chan struct{} // nil: can't be
	round        uint64        // in which it was told; 0: not yet
	told         time.Time     // when
	older, newer *lease
}

// expose lets the lease be evicted, if it may ever be.
func (e *Embedded) expose(l *lease) {
	if !e.cfg.Eviction || l.charge.band.priority >= 0 {
		return
	}
	l.evicted = make(chan struct{})
	if l.older = l.charge.band.newest; l.older != nil {
		l.older.newer = l
	}
	l.charge.band.newest = l
}

// shelter takes the lease off its band's list. It may be called again.
func (l *lease) shelter() {
	if l.newer != nil {
		l.newer.older = l.older
	} else if l.charge.band.newest == l {
		l.charge.band.newest = l.older
	}
	if l.older != nil {
		l.older.newer = l.newer
	}
	l.older, l.newer = nil, nil
}

// reclaim takes endpoints back for the request that would go next but for the
// ceiling of its band. It returns when to look again, zero: not by itself.
func (e *Embedded) reclaim(w *waiter, now time.Time) (again time.Time) {
	v, b := &e.eviction, w.band
	switch {
	case !e.cfg.Eviction || b.ceiling <= 0:
		return time.Time{}
	case now.Before(v.next):
		return v.next
	}
	v.round++
	v.timedOut += uint64(v.pending) //nolint:gosec // a size
	v.pending, v.next = 0, now.Add(confirmTimeout)
	for range victims(e.cycle.saturation, b.ceiling, e.fleet.running()) {
		l := e.victim(b.priority)
		if l == nil {
			break
		}
		l.shelter()
		l.round, l.told = v.round, now
		v.pending++
		close(l.evicted)
		b.evictions++
	}
	v.target = v.pending
	if v.pending == 0 {
		v.next = time.Time{}
	}
	return v.next
}

// victims is how many leases have to end for the saturation to come down to
// the ceiling, each taken to cause as much of it as any.
func victims(saturation, ceiling float64, live int) int {
	if live == 0 || saturation <= 0 {
		return 0
	}
	n := math.Ceil((saturation - ceiling) / (saturation / float64(live)))
	return int(min(max(n, 1), maxVictims))
}

// victim is the newest lease of the lowest band below zero and below priority,
// on an endpoint that would then have room.
func (e *Embedded) victim(priority int) *lease {
	bands := e.queues.bands
	for i := len(bands) - 1; i >= 0 && bands[i].priority < min(priority, 0); i-- {
		for l := bands[i].newest; l != nil; l = l.older {
			if l.endpoint.share.room > 0 {
				return l
			}
		}
	}
	return nil
}

// confirm notes that a lease has ended which may have been evicted.
func (e *Embedded) confirm(l *lease, now time.Time) {
	l.shelter()
	v := &e.eviction
	if l.round == 0 || l.round != v.round || v.pending == 0 {
		return
	}
	v.confirmed.observe(now.Sub(l.told))
	if v.pending--; v.pending > 0 {
		return
	}
	v.next = now.Add(concurrencyGrace)
	if d := &e.cfg.Detector; d.Kind == UtilizationDetector {
		v.next = now.Add(d.Staleness + utilizationGrace)
	}
}
