package eppsim

import (
	"encoding/base64"
	"fmt"
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"weir/scheduler/extproc"
)

// enqueue lets the item wait, or refuses it.
func (s *Server) enqueue(it *item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	band := 0
	for _, w := range s.waiting {
		if w.band == it.band {
			band++
		}
	}
	switch {
	case s.closed:
		it.refuse(s.refusal(503, extproc.RejectedShuttingDown))
		return
	case s.cfg.MaxQueued > 0 && len(s.waiting) >= s.cfg.MaxQueued, s.cfg.MaxBandQueued > 0 && band >= s.cfg.MaxBandQueued:
		it.refuse(s.refusal(429, extproc.RejectedSaturated))
		return
	}
	s.waiting = append(s.waiting, it)
	s.dispatch()
}

// leave takes the item out of the queue, if it still waits.
func (s *Server) leave(it *item) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting, it)
	if i < 0 {
		return false
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
	return true
}

// release gives the item's place back. It may be called again.
func (s *Server) release(it *item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.live, it); i >= 0 {
		s.live = slices.Delete(s.live, i, i+1)
		s.dispatch()
	}
}

// dispatch gives places away while there are some. Holds mu.
func (s *Server) dispatch() {
	for len(s.waiting) > 0 {
		next := s.next()
		at, ok := s.place(next)
		if !ok {
			s.reclaim(next)
			return
		}
		i := slices.Index(s.waiting, next)
		s.waiting = slices.Delete(s.waiting, i, i+1)
		s.live = append(s.live, next)
		s.turn[next.band] = next.flow
		next.at = at
		close(next.ready)
	}
}

// next is the one whose turn it is: of the highest band, the oldest of the
// flow that comes after the one served last. Holds mu.
func (s *Server) next() *item {
	top := s.waiting[0].band
	for _, it := range s.waiting {
		top = max(top, it.band)
	}
	first := make(map[string]*item)
	var flows []string
	for _, it := range s.waiting {
		if it.band == top && first[it.flow] == nil {
			first[it.flow] = it
			flows = append(flows, it.flow)
		}
	}
	slices.Sort(flows)
	for _, flow := range flows {
		if flow > s.turn[top] {
			return first[flow]
		}
	}
	return first[flows[0]]
}

// place is the endpoint that a session's token names, or the least loaded.
// Holds mu.
func (s *Server) place(it *item) (best Endpoint, ok bool) {
	least := 0
	for _, e := range s.endpoints {
		n := 0
		for _, l := range s.live {
			if l.at.Address == e.Address {
				n++
			}
		}
		if n >= e.Max {
			continue
		}
		if s.cfg.SessionTokens && it.token == token(e) {
			return e, true
		}
		if !ok || n < least {
			best, least, ok = e, n, true
		}
	}
	return best, ok
}

// token names an endpoint to who gives it back.
func token(e Endpoint) string { return base64.StdEncoding.EncodeToString([]byte("pool/" + e.Address)) }

// reclaim takes one place back for the item: of the lowest negative band the
// newest, and no other before that one is free. Holds mu.
func (s *Server) reclaim(it *item) {
	if !s.cfg.Eviction {
		return
	}
	var victim *item
	for _, l := range s.live {
		switch {
		case l.evicting:
			return
		case l.band >= 0 || l.band >= it.band:
		case victim == nil || l.band <= victim.band:
			victim = l
		}
	}
	if victim != nil {
		victim.takeBack()
	}
}

// refusal is one in the form that the server's version has.
func (s *Server) refusal(status int, reason string) *extprocv3.ImmediateResponse {
	return Refusal(status, reason, "the request was dropped", s.cfg.JSONErrors)
}

// Refusal is a picker's no. The reason may be "".
func Refusal(status int, reason, message string, asJSON bool) *extprocv3.ImmediateResponse {
	m := &extprocv3.ImmediateResponse{
		Status: &typev3.HttpStatus{Code: typev3.StatusCode(status)}, //nolint:gosec // statuses of HTTP
		Body:   fmt.Appendf(nil, "inference error: %d - %s", status, message),
	}
	if asJSON {
		m.Body = extproc.ErrorBody(status, message)
	}
	if reason != "" {
		m.Headers = &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
			{Header: &corev3.HeaderValue{Key: extproc.DroppedReason, RawValue: []byte(reason)}},
		}}
	}
	return m
}
