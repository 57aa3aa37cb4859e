package admission

import "sync"

// shard holds the states of a part of the nodes.
type shard struct {
	mu    sync.Mutex
	nodes map[string]*state
	most  int
	sweep int // size at which idle nodes are forgotten next
}

// state returns a node's state and makes it if need be. It needs the lock.
func (s *shard) state(id string, now int64) (*state, error) {
	if st := s.nodes[id]; st != nil {
		st.expire(now)
		return st, nil
	}
	if len(s.nodes) >= s.sweep {
		s.forgetIdle(now)
	}
	if len(s.nodes) >= s.most {
		return nil, ErrFull
	}
	st := &state{live: map[string]int64{}}
	s.nodes[id] = st
	return st, nil
}

// forgetIdle drops the nodes that a new state would describe as well. The next
// sweep waits until the shard has doubled, so that each node pays for one look.
func (s *shard) forgetIdle(now int64) {
	for id, st := range s.nodes {
		if st.expire(now); len(st.live) == 0 && st.arrival <= now {
			delete(s.nodes, id)
		}
	}
	s.sweep = min(max(64, 2*len(s.nodes)), s.most)
}

// state is what is known of one node. Times are Unix microseconds.
type state struct {
	arrival  int64            // GCRA's theoretical arrival time
	live     map[string]int64 // request id -> when it expires
	earliest int64            // no entry expires before it
}

// expire drops the requests whose holders are gone.
func (s *state) expire(now int64) {
	if len(s.live) == 0 || now < s.earliest {
		return
	}
	s.earliest = 0
	for id, at := range s.live {
		if at <= now {
			delete(s.live, id)
		} else if s.earliest == 0 || at < s.earliest {
			s.earliest = at
		}
	}
}

// enter adds a request to the live set.
func (s *state) enter(requestID string, expiry int64) {
	if len(s.live) == 0 || expiry < s.earliest {
		s.earliest = expiry
	}
	s.live[requestID] = expiry
}

// charge spends a request, unless it is live already: a repeated call.
func (s *state) charge(n Node, requestID string, now, expiry int64) {
	if _, again := s.live[requestID]; again {
		return
	}
	s.enter(requestID, expiry)
	if n.RequestsPerMinute > 0 {
		s.arrival, _ = rateOf(n.RequestsPerMinute).spend(s.arrival, now)
	}
}

// refuse turns the verdict into a refusal if the node has no room. Of several
// refusals the one that takes longest to pass stays.
func (v *Verdict) refuse(n Node, s *state, requestID string, now int64) {
	if _, again := s.live[requestID]; again {
		return
	}
	if n.RequestsPerMinute > 0 {
		if _, wait := rateOf(n.RequestsPerMinute).spend(s.arrival, now); wait > 0 && micros(wait) > v.Retry {
			*v = Verdict{Node: n.ID, Retry: micros(wait)}
			v.describe(n, s, now)
		}
	}
	if n.Concurrency > 0 && len(s.live) >= n.Concurrency && slotRetry > v.Retry {
		*v = Verdict{Node: n.ID, Slots: true, Retry: slotRetry}
		v.describe(n, s, now)
	}
}

// bind makes the node the one that a success reports, if it has least left.
func (v *Verdict) bind(n Node, s *state, now int64) {
	if n.RequestsPerMinute == 0 {
		return
	}
	if left := int(rateOf(n.RequestsPerMinute).left(s.arrival, now)); v.Node == "" || left < v.Left {
		v.Node = n.ID
		v.describe(n, s, now)
	}
}

// describe fills in the state of the node's rate.
func (v *Verdict) describe(n Node, s *state, now int64) {
	if n.RequestsPerMinute == 0 {
		return
	}
	v.Limit = n.RequestsPerMinute
	v.Left = int(rateOf(n.RequestsPerMinute).left(s.arrival, now))
	v.Reset = micros(max(0, s.arrival-now))
}
