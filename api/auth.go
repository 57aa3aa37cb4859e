package api

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"strings"

	"weir/tenants"
)

// Authenticator tells who owns a key. tenants.Keys is one.
type Authenticator interface {
	// Authenticate returns the key's principal, or an error that is
	// tenants.ErrBadKey, ErrAddress, ErrSuspended or ErrUnavailable.
	Authenticate(ctx context.Context, secret string, client netip.Addr) (*tenants.Principal, error)
	// Guard returns a context that is cancelled, with tenants.ErrRevoked as
	// its cause, when the key stops being good. The function gives it back.
	Guard(ctx context.Context, p *tenants.Principal) (context.Context, func())
}

// maxSecret bounds what is looked at as a key, in bytes.
const maxSecret = 512

// authenticate finds the caller. It does not touch the body: a caller whom we
// don't know can't make us read.
func (s *Server) authenticate(r *http.Request) (*tenants.Principal, error) {
	secret, err := credential(r.Header)
	if err != nil {
		return nil, err
	}
	client := s.proxies.client(r)
	if wait := s.badKeys.blocked(client); wait > 0 {
		return nil, tooManyBadKeysFor(wait)
	}
	if len(secret) > maxSecret {
		err = tenants.ErrMalformedKey
	} else if p, failed := s.keys.Authenticate(r.Context(), secret, client); failed == nil {
		return p, nil
	} else {
		err = failed
	}
	if errors.Is(err, tenants.ErrBadKey) {
		s.badKeys.record(client)
	}
	return nil, err
}

// credential reads the key from either of its two headers.
func credential(h http.Header) (string, error) {
	authorization, plain := h.Values("Authorization"), h.Values("X-Api-Key")
	if len(authorization) > 1 || len(plain) > 1 {
		return "", because(twoKeys, nil)
	}
	var bearer, key string
	if len(authorization) == 1 && authorization[0] != "" {
		scheme, token, _ := strings.Cut(authorization[0], " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return "", tenants.ErrMalformedKey
		}
		bearer = strings.TrimSpace(token)
	}
	if len(plain) == 1 {
		key = strings.TrimSpace(plain[0])
	}
	switch {
	case bearer == "" && key == "":
		return "", because(noKey, nil)
	case bearer != "" && key != "" && bearer != key:
		return "", because(twoKeys, nil)
	case bearer != "":
		return bearer, nil
	default:
		return key, nil
	}
}
