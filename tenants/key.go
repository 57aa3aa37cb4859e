package tenants

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Key is what is known of a key. Its secret is not: only its owner has that.
type Key struct {
	Tenant       ID
	ID           KeyID
	Project      ProjectID // "" for administration keys
	Kind         Kind
	Name         string
	DisplayStart string // first and last characters of the secret
	DisplayEnd   string
	Scopes       []string       // empty: all that the kind allows
	Models       []string       // public names; empty: all
	CIDRs        []netip.Prefix // client addresses; empty: all
	Limits       Limits         // what is 0 comes from the plan's key limits
	CreatedBy    string
	CreatedAt    time.Time
	ExpiresAt    time.Time // zero: never
	RevokedAt    time.Time // zero: not revoked
	LastUsedAt   time.Time // zero: never; behind by up to a minute
}

// KeySpec asks for a key.
type KeySpec struct {
	Kind      Kind
	Project   ProjectID // required but for administration keys
	Name      string
	Scopes    []string
	Models    []string
	CIDRs     []string // "10.0.0.0/8", "2001:db8::/32" or one address
	Limits    Limits
	ExpiresAt time.Time
}

// Bounds on the lists of one key.
const (
	maxModels = 200
	maxCIDRs  = 100
)

// check returns the address list, or a *FieldError for what can't be stored.
func (s KeySpec) check(now time.Time) ([]netip.Prefix, error) {
	switch {
	case !s.Kind.known():
		return nil, &FieldError{"kind", fmt.Sprintf("want %q, %q or %q", ProjectKey, ServiceKey, AdminKey)}
	case s.Kind == AdminKey && s.Project != "":
		return nil, &FieldError{"project", "an administration key acts on the whole tenant and takes no project"}
	case s.Kind != AdminKey && s.Project == "":
		return nil, &FieldError{"project", "an inference key needs a project"}
	case !plainText(s.Name, 100):
		return nil, nameError()
	case !s.ExpiresAt.IsZero() && !s.ExpiresAt.After(now):
		return nil, &FieldError{"expires_at", "lies in the past"}
	}
	if err := s.Limits.validate(); err != nil {
		return nil, &FieldError{"limits", err.Error()}
	}
	for _, scope := range s.Scopes {
		if !slices.Contains(s.Kind.Scopes(), scope) {
			return nil, &FieldError{"scopes", fmt.Sprintf("a key of kind %q can't have %q; it may have %q", s.Kind, scope, s.Kind.Scopes())}
		}
	}
	if s.Kind == AdminKey && len(s.Models) > 0 {
		return nil, &FieldError{"models", "an administration key can't use models"}
	}
	if len(s.Models) > maxModels {
		return nil, &FieldError{"models", fmt.Sprintf("%d, want at most %d", len(s.Models), maxModels)}
	}
	for _, model := range s.Models {
		if !plainText(model, 256) {
			return nil, &FieldError{"models", fmt.Sprintf("%q is no model name", model)}
		}
	}
	return parseCIDRs(s.CIDRs)
}

func parseCIDRs(texts []string) ([]netip.Prefix, error) {
	if len(texts) > maxCIDRs {
		return nil, &FieldError{"cidrs", fmt.Sprintf("%d, want at most %d", len(texts), maxCIDRs)}
	}
	prefixes := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if addr, addrErr := netip.ParseAddr(text); addrErr == nil && addr.Zone() == "" {
			p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		switch {
		case err != nil:
			return nil, &FieldError{"cidrs", fmt.Sprintf("%q is neither a network nor an address", text)}
		case p.Addr().Is4In6():
			return nil, &FieldError{"cidrs", fmt.Sprintf("%q: write IPv4 as IPv4", text)}
		case p != p.Masked():
			return nil, &FieldError{"cidrs", fmt.Sprintf("%q reaches beyond its network: did you mean %s?", text, p.Masked())}
		}
		prefixes = append(prefixes, p)
	}
	return sortedSet(prefixes, netip.Prefix.Compare), nil
}

// sortedSet orders the list and drops what it has twice. It returns no nil:
// Postgres would store that as NULL.
func sortedSet[T comparable](list []T, order func(a, b T) int) []T {
	set := slices.Compact(slices.SortedFunc(slices.Values(list), order))
	if set == nil {
		return []T{}
	}
	return set
}
