package llmd

import (
	"github.com/maypok86/otter/v2"
)

const (
	maxSessions = 20_000
	maxToken    = 512
)

// sessions keeps the pickers' notes of where a session is: a tenant could read
// the fleet from them, and name any endpoint with one, so they stay here.
// Those used least are forgotten, which costs a session no more than its
// engine's cache.
type sessions struct{ tokens *otter.Cache[string, string] }

func newSessions() *sessions {
	return &sessions{otter.Must(&otter.Options[string, string]{MaximumSize: maxSessions})}
}

func (s *sessions) token(session string) string {
	token, _ := s.tokens.GetIfPresent(session)
	return token
}

func (s *sessions) keep(session, token string) {
	if session != "" && token != "" && len(token) <= maxToken {
		s.tokens.Set(session, token)
	}
}

func (s *sessions) size() int { return s.tokens.EstimatedSize() }
