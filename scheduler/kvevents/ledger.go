package kvevents

import (
	"strings"

	"weir/scheduler"
)

// maxKnown bounds the blocks of one endpoint that are remembered: 32 million
// tokens in blocks of 16, in some 60 MB.
const maxKnown = 1 << 21

// block is one that an engine has, by its own hash.
type block struct {
	name   uint64   // BlockHash
	copies [3]uint8 // in each tier
}

// ledger translates events: engines name blocks by hashes of their own, whose
// function, seed and extra keys are theirs; the scheduler knows them by
// BlockHash. Tokens and extra keys go no further than here.
type ledger struct {
	known     map[uint64]block
	orphans   int // blocks left out: what comes before them is not known
	malformed int // events left out: they contradict themselves
	full      bool

	report scheduler.CacheReport
}

func newLedger() *ledger { return &ledger{known: map[uint64]block{}} }

// forget begins anew. What an engine has from before is not known.
func (l *ledger) forget() {
	clear(l.known)
	l.full = false
	l.report = scheduler.CacheReport{Changes: l.report.Changes[:0], BlockTokens: l.report.BlockTokens}
}

// empty begins anew with a cache that is known to be empty.
func (l *ledger) empty() {
	l.forget()
	l.report.Clear = true
}

// take adds what an event says to the report.
func (l *ledger) take(e *event) {
	switch {
	case e.group != 0: // other layers of the same tokens; the first group says where a prompt is
	case e.kind == cleared:
		l.empty()
	case e.kind == removed:
		l.remove(e)
	case e.kind == stored && !e.adapted: // an adapter's blocks serve no other model
		l.store(e)
	}
}

func (l *ledger) store(e *event) {
	if len(e.hashes) == 0 {
		return
	}
	if len(e.tokens) > 0 && (e.blockSize < 1 || len(e.tokens)/e.blockSize != len(e.hashes) || len(e.tokens)%e.blockSize != 0 ||
		len(e.extra) > 0 && len(e.extra) != len(e.hashes)) {
		l.malformed++
		return
	}
	tier := tierOf(e.medium)
	var parent uint64
	if e.hasParent {
		parent = l.known[e.parent].name
	}
	orphan := e.hasParent && parent == 0
	for i, hash := range e.hashes {
		b, ok := l.known[hash]
		switch {
		case ok: // also where blocks are copied between tiers, which is told without their tokens
		case len(e.tokens) == 0, orphan:
			l.orphans++
			continue
		case len(l.known) >= maxKnown:
			l.full = true
			return
		default:
			var extra uint64
			if len(e.extra) > 0 {
				extra = scheduler.ExtraHash(e.extra[i]...)
			}
			b.name = scheduler.BlockHash(parent, e.tokens[i*e.blockSize:(i+1)*e.blockSize], extra)
		}
		if b.copies[tier] < 255 {
			b.copies[tier]++
		}
		l.known[hash] = b
		if len(e.tokens) > 0 {
			l.report.BlockTokens = e.blockSize
		}
		l.report.Changes = append(l.report.Changes, scheduler.CacheChange{Block: b.name, Parent: parent, Tier: tier})
		parent, orphan = b.name, false
	}
}

func (l *ledger) remove(e *event) {
	tier := tierOf(e.medium)
	for i, hash := range e.hashes {
		b, ok := l.known[hash]
		if !ok || b.copies[tier] == 0 {
			continue
		}
		b.copies[tier]--
		last := false
		if i < len(e.copies) { // newer engines say how many copies are left
			if e.copies[i] > 0 {
				continue
			}
			b.copies[tier], last = 0, true
		}
		if b.copies == [3]uint8{} {
			delete(l.known, hash)
		} else {
			l.known[hash] = b
		}
		l.report.Changes = append(l.report.Changes, scheduler.CacheChange{Block: b.name, Tier: tier, Gone: true, All: last})
	}
}

// tierOf is the tier by the words that engines use.
func tierOf(medium string) scheduler.Tier {
	switch m := strings.ToUpper(medium); {
	case m == "", m == "GPU", m == "HBM", m == "DEVICE", m == "TPU":
		return scheduler.TierHBM
	case strings.Contains(m, "CPU"), strings.Contains(m, "HOST"), strings.Contains(m, "DRAM"):
		return scheduler.TierHost
	default:
		return scheduler.TierStorage
	}
}
