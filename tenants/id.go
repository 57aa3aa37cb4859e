package tenants

import (
	"crypto/rand"
	"strings"
)

// newID returns the prefix and 26 base32 characters, at least 128 random bits.
func newID(prefix string) string {
	return prefix + strings.ToLower(rand.Text()[:26])
}

// newFairnessID names a flow to schedulers without naming whose it is.
func newFairnessID() string { return newID("flow_") }
