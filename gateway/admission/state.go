package admission

import (
	"slices"
	"sync"
)

// shard holds the states of a part of the nodes.
type shard struct {
	mu    sync.Mutex
	nodes map[string]*state
	most  int
	sweep int // size at which idle nodes are forgotten next
}

// state returns a node's state and makes it if need be. It needs the lock.
func (s *shard) state(id, tenant string, now int64) (*state, error) {
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
	st := &state{tenant: tenant, live: map[string]hold{}}
	s.nodes[id] = st
	return st, nil
}

// forgetIdle drops the nodes that a new state would describe as well. The next
// sweep waits until the shard has doubled, so that each node pays for one look.
func (s *shard) forgetIdle(now int64) {
	for id, st := range s.nodes {
		if st.expire(now); st.idle(now) {
			delete(s.nodes, id)
		}
	}
	s.sweep = min(max(64, 2*len(s.nodes)), s.most)
}

// state is what is known of one node. Times are Unix microseconds.
type state struct {
	tenant   string
	arrival  [meters]int64   // GCRA's theoretical arrival times
	told     [meters]int64   // those of another store that admits first, as last heard
	live     map[string]hold // by request id
	earliest int64           // no entry expires before it
}

// hold is a live request.
type hold struct {
	expiry int64
}

func (s *state) idle(now int64) bool {
	return len(s.live) == 0 && slices.Max(s.arrival[:]) <= now && slices.Max(s.told[:]) <= now
}

// expire drops the requests whose holders are gone.
func (s *state) expire(now int64) {
	if len(s.live) == 0 || now < s.earliest {
		return
	}
	s.earliest = 0
	for id, h := range s.live {
		if h.expiry <= now {
			delete(s.live, id)
		} else if s.earliest == 0 || h.expiry < s.earliest {
			s.earliest = h.expiry
		}
	}
}

// enter adds a request to the live set.
func (s *state) enter(requestID string, h hold) {
	if len(s.live) == 0 || h.expiry < s.earliest {
		s.earliest = h.expiry
	}
	s.live[requestID] = h
}

// charge spends a request, unless it is live already: a repeated call.
func (s *state) charge(n *Node, requestID string, estimate Counts, now, expiry int64) {
	if _, again := s.live[requestID]; again {
		return
	}
	s.enter(requestID, hold{expiry: expiry})
	costs := estimate.all()
	for m, limit := range n.rates() {
		if limit > 0 && costs[m] > 0 {
			r := rateOf(Meter(m), limit)
			s.arrival[m], _ = r.spend(s.arrival[m], now, r.cost(costs[m]))
		}
	}
}

// settle ends a request and corrects what it was charged here.
func (s *state) settle(n *Node, requestID string, estimate, used Counts, now int64) {
	_, live := s.live[requestID]
	delete(s.live, requestID)
	if !live {
		return
	}
	for m, by := range n.corrections(estimate, used) {
		if by != 0 {
			s.arrival[m] = correct(s.arrival[m], now, by)
		}
	}
}

// corrections are what the node's meters change by, in microseconds, where an
// estimate is replaced by what was used. The request itself stays counted.
func (n *Node) corrections(estimate, used Counts) (by [meters]int64) {
	before, after := estimate.all(), used.all()
	for m, limit := range n.rates() {
		if limit > 0 && Meter(m) != RequestMeter && before[m] != after[m] {
			r := rateOf(Meter(m), limit)
			by[m] = r.cost(after[m]) - r.cost(before[m])
		}
	}
	return by
}

// refuse turns the verdict into a refusal if the node has no room. Of several
// refusals the one that takes longest to pass stays.
func (v *Verdict) refuse(n *Node, s *state, requestID string, estimate Counts, now int64) {
	if _, again := s.live[requestID]; again {
		return
	}
	costs := estimate.all()
	for m, limit := range n.rates() {
		if limit == 0 || costs[m] == 0 {
			continue
		}
		r := rateOf(Meter(m), limit)
		if _, wait := r.spend(s.arrival[m], now, r.cost(costs[m])); micros(wait) > v.Retry {
			v.Admitted, v.Node, v.Slots, v.Meter, v.Retry = false, n.ID, false, Meter(m), micros(wait)
		}
	}
	if most := n.slots(); most > 0 && len(s.live) >= most && slotRetry > v.Retry {
		v.Admitted, v.Node, v.Slots, v.Meter, v.Retry = false, n.ID, true, RequestMeter, slotRetry
	}
}

// describe tells what is left at the node, where that binds most closely. ahead
// is how far its meters are ahead of now, in microseconds.
func (v *Verdict) describe(n *Node, ahead [meters]int64) {
	for m, limit := range n.PerMinute.all() {
		if limit == 0 {
			continue
		}
		left := rateOf(Meter(m), limit).allowance(ahead[m])
		if Meter(m) == RequestMeter {
			v.Requests = v.Requests.tighter(left)
		} else {
			v.Tokens = v.Tokens.tighter(left)
		}
	}
}

// stand tells how the node stands, of what it is guaranteed.
func (n *Node) stand(ahead [meters]int64, live int) Standing {
	st := Standing{Live: live}
	for m, limit := range n.PerMinute.all() {
		if limit > 0 {
			st.Rates[m] = rateOf(Meter(m), limit).allowance(ahead[m])
		}
	}
	return st
}

func (s *state) ahead(now int64) (ahead [meters]int64) {
	for m, at := range s.arrival {
		ahead[m] = at - now
	}
	return ahead
}
