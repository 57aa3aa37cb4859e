package tenants

import (
	"errors"
	"fmt"
)

// Why a key is not accepted. The first four are all ErrBadKey: the caller is
// told the same of each, so that an answer never says whether a key exists.
var (
	ErrBadKey       = errors.New("bad key")
	ErrMalformedKey = fmt.Errorf("%w: malformed", ErrBadKey)
	ErrUnknownKey   = fmt.Errorf("%w: unknown", ErrBadKey)
	ErrExpired      = fmt.Errorf("%w: expired", ErrBadKey)
	ErrRevoked      = fmt.Errorf("%w: revoked", ErrBadKey)

	// ErrAddress refuses a good key that is used from outside its address list.
	ErrAddress = errors.New("key may not be used from this address")
	// ErrSuspended refuses a good key of a suspended tenant.
	ErrSuspended = errors.New("tenant is suspended")
	// ErrUnavailable says that nobody can tell whether the key is good.
	ErrUnavailable = errors.New("keys can't be checked now")
)

// ErrNotFound says that the tenant has no such thing. Another tenant's thing
// looks the same.
var ErrNotFound = errors.New("not found")

// FieldError refuses one field of what the caller asked to store. Its text may
// be shown to the caller.
type FieldError struct {
	Field  string
	Reason string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }
