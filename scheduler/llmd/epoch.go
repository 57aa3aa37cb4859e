package llmd

import (
	"errors"
	"strconv"
	"strings"
	"sync"
)

// errStale is why a decision of a `weir scheduler` doesn't count that has been
// followed by another.
var errStale = errors.New("the scheduler that answered is no longer the primary")

// epochs is the newest primary from which a decision came.
type epochs struct {
	mu     sync.Mutex
	name   string
	newest uint64
}

// stale takes in who decided, and reports whether a later primary has before.
// What names no epoch, as a picker that is none of ours, never is.
func (e *epochs) stale(text string) bool {
	at := strings.LastIndexByte(text, '/')
	if at < 0 || len(text) > maxEpoch {
		return false
	}
	n, err := strconv.ParseUint(text[at+1:], 10, 63)
	if err != nil {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.name == text[:at] && n < e.newest {
		return true
	}
	e.name, e.newest = text[:at], n
	return false
}

const maxEpoch = 128 // bytes
