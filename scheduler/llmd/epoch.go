package llmd

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"time"
)

// errStale is why a decision of a `weir scheduler` doesn't count that has been
// followed by another.
var errStale = errors.New("the scheduler that answered is no longer the primary")

// epochs is the newest primary from which a decision came.
type epochs struct {
	mu     sync.Mutex
	name   string
	newest uint64
	heard  time.Time // when it last decided
}

// epochKept is how long a primary that decides nothing any more is remembered:
// by then its successors are the only ones. A lower number is that of a Postgres
// that fell back to an earlier state, and for ever refused it would be an outage.
const epochKept = time.Minute

// stale takes in who decided, and reports whether a later primary has before.
// What names no epoch, as a picker that is none of ours, never is.
func (e *epochs) stale(text string, now time.Time) bool {
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
	if e.name == text[:at] && n < e.newest && now.Sub(e.heard) < epochKept {
		return true
	}
	e.name, e.newest, e.heard = text[:at], n, now
	return false
}

const maxEpoch = 128 // bytes
