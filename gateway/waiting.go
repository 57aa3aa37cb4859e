package gateway

import (
	"sync"
	"time"

	"weir/scheduler"
	"weir/tenants"
)

// Waiting is one request that waits for an endpoint, as it stood when it was
// looked at.
type Waiting struct {
	ID              string              `json:"id"`
	ClientRequestID string              `json:"client_request_id,omitempty"`
	Response        string              `json:"response_id,omitempty"` // that it makes in the background
	Model           string              `json:"model"`                 // public name
	Pool            string              `json:"pool"`
	Band            string              `json:"band"`
	Tier            tenants.Tier        `json:"service_tier"`
	Since           time.Time           `json:"since"`              // when its first attempt began to wait
	Waited          time.Duration       `json:"waited_ns"`          // in queues, all attempts
	Position        *scheduler.Position `json:"position,omitempty"` // nil where its scheduler can't tell
}

// positioner is a scheduler that knows where its waiting requests stand. One
// in another process may not.
type positioner interface {
	Position(id string) (scheduler.Position, bool)
}

// waiter is an exchange's entry in the set of those that wait: what others may
// read of it. It doesn't change while it is in the set.
type waiter struct {
	shown    Waiting
	owner    owner
	queue    scheduler.Scheduler
	attempt  string        // its id at the scheduler
	began    time.Time     // to wait, this time
	before   time.Duration // waited by earlier attempts
	bytes    int           // of its body
	series   *series       // what metrics call it
	inSet    bool
	old, new *waiter // its neighbours: those of the owner that came before and after it
}

// owner is whose requests one caller may see.
type owner struct {
	tenant  tenants.ID
	project tenants.ProjectID
}

// line is the waiting requests of one owner in the order in which they came.
type line struct {
	first, last *waiter

	looks int // positions that were asked for since
	since time.Time
}

// maxLooks is how many positions a second one owner may ask for: each is
// counted under the lock of a scheduler that has others to serve.
const maxLooks = 200

// waiters is the set of exchanges that wait for an endpoint. An exchange is in
// it for as long as it is in a scheduler's hands, so that the schedulers' own
// bounds bound the set.
type waiters struct {
	mu    sync.Mutex
	lines map[owner]line
}

func newWaiters() *waiters { return &waiters{lines: make(map[owner]line)} }

func (s *waiters) add(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[w.owner]
	if l.last == nil {
		l.first = w
	} else {
		l.last.new, w.old = w, l.last
	}
	l.last, w.inSet = w, true
	s.lines[w.owner] = l
}

// remove takes w out, if it is in.
func (s *waiters) remove(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !w.inSet {
		return
	}
	l := s.lines[w.owner]
	if w.old == nil {
		l.first = w.new
	} else {
		w.old.new = w.new
	}
	if w.new == nil {
		l.last = w.old
	} else {
		w.new.old = w.old
	}
	w.old, w.new, w.inSet = nil, nil, false
	if l.first == nil {
		delete(s.lines, w.owner)
	} else {
		s.lines[w.owner] = l
	}
}

// find copies those of the owner that match, the oldest first, until there are
// enough. Looks is of how many the positions may be asked.
func (s *waiters) find(o owner, enough int, now time.Time, match func(*waiter) bool) (found []waiter, looks int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.lines[o]
	if !ok {
		return nil, 0
	}
	for w := l.first; w != nil && len(found) < enough; w = w.new {
		if match(w) {
			found = append(found, *w)
		}
	}
	if now.Sub(l.since) >= time.Second {
		l.looks, l.since = 0, now
	}
	looks = min(len(found), maxLooks-l.looks)
	l.looks += looks
	s.lines[o] = l
	return found, looks
}

// each calls f for all of them under the lock.
func (s *waiters) each(f func(*waiter)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lines {
		for w := l.first; w != nil; w = w.new {
			f(w)
		}
	}
}

// present is what is known of w without its scheduler.
func (w *waiter) present(now time.Time) Waiting {
	shown := w.shown
	shown.Waited = w.before + now.Sub(w.began)
	return shown
}

// look asks the scheduler where w stands. False means that it waits no more.
func (w *waiter) look(now time.Time) (Waiting, bool) {
	shown := w.present(now)
	if q, ok := w.queue.(positioner); ok {
		p, waits := q.Position(w.attempt)
		if !waits {
			return Waiting{}, false
		}
		shown.Position = &p
	}
	return shown, true
}

// Waiting lists the requests of the caller's project that wait at this
// gateway, the oldest first; of models that the key may not use it shows
// nothing. With an id, ours or the caller's own, or of a background response, it
// lists those of that name alone. More says that there are others beyond the most. A project that asks
// too often is shown no positions.
func (g *Gateway) Waiting(p *tenants.Principal, id string, most int) (list []Waiting, more bool) {
	now := time.Now()
	found, looks := g.waiters.find(owner{p.Tenant, p.Project}, most+1, now, func(w *waiter) bool {
		return p.MayUse(w.shown.Model) && (id == "" || id == w.shown.ID || id == w.shown.ClientRequestID || id == w.shown.Response)
	})
	if more = len(found) > most; more {
		found = found[:most]
	}
	for i := range found {
		if i >= looks {
			list = append(list, found[i].present(now))
		} else if shown, waits := found[i].look(now); waits {
			list = append(list, shown)
		}
	}
	return list, more
}

// WaitingRequest finds a waiting request by our id, whosever it is: for
// operators.
func (g *Gateway) WaitingRequest(id string) (Waiting, bool) {
	var found *waiter
	g.waiters.each(func(w *waiter) {
		if w.shown.ID == id {
			one := *w
			found = &one
		}
	})
	if found == nil {
		return Waiting{}, false
	}
	return found.look(time.Now())
}
