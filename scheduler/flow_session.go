package scheduler

import (
	"container/list"
	"time"
)

// maxSessions is how many sessions are remembered whose turns are counted. A
// forgotten one begins at its first turn again.
const maxSessions = 1 << 16

// session is a chain of requests and how many of them were sent.
type session struct {
	id    string
	turns int
	live  int       // leases: what runs is not idle, however long
	last  time.Time // when it was last heard of
	used  *list.Element
}

// sessions counts turns for requests that don't say theirs.
type sessions struct {
	byID   map[string]*session
	recent *list.List // the longest unused first
}

// turn is that of the session's next request.
func (s *sessions) turn(id string, inactivity time.Duration, now time.Time) int {
	n := s.byID[id]
	if n == nil || n.idle(inactivity, now) {
		return 1
	}
	return n.turns + 1
}

func (n *session) idle(inactivity time.Duration, now time.Time) bool {
	return n.live == 0 && inactivity > 0 && now.Sub(n.last) > inactivity
}

// began counts a turn, which a retry is not.
func (s *sessions) began(id string, retry bool, inactivity time.Duration, now time.Time) *session {
	n := s.byID[id]
	switch {
	case n == nil:
		n = &session{id: id}
		n.used = s.recent.PushBack(n)
		s.byID[id] = n
		s.forget()
	case n.idle(inactivity, now):
		n.turns = 0
	}
	s.recent.MoveToBack(n.used)
	if !retry {
		n.turns++
	}
	n.live++
	n.last = now
	return n
}

// ended notes the end of a lease. The session may be forgotten by now.
func (n *session) ended(now time.Time) {
	n.live--
	n.last = now
}

func (s *sessions) forget() {
	for len(s.byID) > maxSessions {
		n := s.recent.Remove(s.recent.Front()).(*session)
		delete(s.byID, n.id)
	}
}
