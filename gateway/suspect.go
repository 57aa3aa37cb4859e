package gateway

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"weir/tenants"
)

const maxSuspects = 1024

// suspects remembers requests that were with an endpoint when it went down. A
// prompt that kills an engine must not be carried from one to the next, by us
// or by a client that repeats it.
type suspects struct {
	ttl  time.Duration
	seed maphash.Seed
	some atomic.Bool // spares the hash while nobody is suspected

	mu    sync.Mutex
	until map[uint64]time.Time
}

func newSuspects(ttl time.Duration) *suspects {
	return &suspects{ttl: ttl, seed: maphash.MakeSeed(), until: make(map[uint64]time.Time)}
}

// add suspects a request for a while. When there are too many, the one that
// would be cleared first is.
func (s *suspects) add(t tenants.ID, model string, fields []byte, now time.Time) {
	key := s.key(t, model, fields)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	if _, known := s.until[key]; !known && len(s.until) >= maxSuspects {
		s.dropOldest()
	}
	s.until[key] = now.Add(s.ttl)
	s.some.Store(true)
}

// has reports for how long the request is still refused.
func (s *suspects) has(t tenants.ID, model string, fields []byte, now time.Time) (time.Duration, bool) {
	if !s.some.Load() {
		return 0, false
	}
	key := s.key(t, model, fields)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	until, ok := s.until[key]
	return until.Sub(now), ok
}

// key is seeded at random, so that nobody can make two requests collide.
func (s *suspects) key(t tenants.ID, model string, fields []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(s.seed)
	_, _ = h.WriteString(string(t) + "|" + model + "|") // never fails
	_, _ = h.Write(fields)
	return h.Sum64()
}

// expire holds mu.
func (s *suspects) expire(now time.Time) {
	for k, until := range s.until {
		if !now.Before(until) {
			delete(s.until, k)
		}
	}
	s.some.Store(len(s.until) > 0)
}

// dropOldest holds mu.
func (s *suspects) dropOldest() {
	var oldest uint64
	var at time.Time
	for k, until := range s.until {
		if at.IsZero() || until.Before(at) {
			oldest, at = k, until
		}
	}
	delete(s.until, oldest)
}
