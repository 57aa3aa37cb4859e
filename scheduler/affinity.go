package scheduler

import (
	"cmp"
	"time"
)

// maxBindings is how many sessions a pool remembers, some 200 bytes each.
const maxBindings = 1 << 17

// bindings are where each session was served last, for as long as its TTL. It
// also keeps the hints of requests that say what they share a prefix with.
type bindings struct {
	ttl            time.Duration
	most           int
	byKey          map[bindingKey]*binding
	newest, oldest *binding
}

type bindingKey struct {
	id   string
	hint bool // a Request.Affinity, not a Request.Session
}

// binding is one session's last turn.
type binding struct {
	key          bindingKey
	endpoint     *endpoint
	blocks       int // of its prompt
	tokens       int // that the endpoint has of it, once it told
	at           time.Time
	newer, older *binding
}

func (a SessionAffinity) ttl() time.Duration { return cmp.Or(max(a.TTL, 0), 300*time.Second) }

func keyOf(r *Request) bindingKey {
	if r.Session != "" {
		return bindingKey{id: r.Session}
	}
	return bindingKey{id: r.Affinity, hint: true}
}

// find returns the request's session, or nil.
func (s *bindings) find(r *Request, now time.Time) *binding {
	key := keyOf(r)
	if key.id == "" {
		return nil
	}
	x := s.byKey[key]
	if x == nil || now.Sub(x.at) > s.ttl {
		return nil
	}
	return x
}

// bind notes where the request's session is served now.
func (s *bindings) bind(r *Request, p *endpoint, blocks int, now time.Time) {
	key := keyOf(r)
	if key.id == "" {
		return
	}
	x := s.byKey[key]
	switch {
	case x != nil:
		s.unlink(x)
	case len(s.byKey) < s.most:
		x = &binding{key: key}
	default: // the one that was used longest ago makes place
		x = s.oldest
		s.remove(x)
		*x = binding{key: key}
	}
	if x.endpoint != p {
		x.tokens = 0 // the endpoint has yet to compute them
	}
	x.endpoint, x.blocks, x.at = p, blocks, now
	if s.byKey == nil {
		s.byKey = map[bindingKey]*binding{}
	}
	s.byKey[key] = x
	s.link(x)
	for now.Sub(s.oldest.at) > s.ttl {
		s.remove(s.oldest)
	}
}

// served notes what the endpoint has of a session after a turn: for a session
// all of it, for a hint what turned out to be shared.
func (s *bindings) served(key bindingKey, p *endpoint, o Outcome) {
	if x := s.byKey[key]; x != nil && x.endpoint == p {
		x.tokens = o.CachedTokens
		if !key.hint {
			x.tokens += o.InputTokens + o.OutputTokens
		}
	}
}

func (s *bindings) remove(x *binding) {
	s.unlink(x)
	delete(s.byKey, x.key)
}

func (s *bindings) link(x *binding) {
	x.newer, x.older = nil, s.newest
	if s.newest == nil {
		s.oldest = x
	} else {
		s.newest.newer = x
	}
	s.newest = x
}

func (s *bindings) unlink(x *binding) {
	if x.newer == nil {
		s.newest = x.older
	} else {
		x.newer.older = x.older
	}
	if x.older == nil {
		s.oldest = x.newer
	} else {
		x.older.newer = x.newer
	}
}
