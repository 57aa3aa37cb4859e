package billing

import (
	"slices"
	"sync"
	"time"
)

// account is what this process holds of one tenant's wallets.
type account struct {
	tenant string

	mu   sync.Mutex
	pots map[string]*pot // by node; as many as the tenant has wallets in use here
	open int             // holds
	gone bool            // forgotten: it isn't in the table any more

	refill  *refill // under way
	waiting int64   // nano-USD that those who wait for it want
	size    int64   // of the last draws; grows while they come fast
	drawnAt time.Time
	scarce  time.Time // until then nothing idle is kept
	refused refusal
}

// refill is a draw that others may wait for.
type refill struct {
	done chan struct{}
	err  error // that of the store; nil where the wallets refused
}

// refusal is what was learnt of a wallet a moment ago.
type refusal struct {
	node      string
	available int64
	until     time.Time
}

// pot is what this process holds of one wallet: its chunks, in the order in
// which Postgres uses them up when receipts name them. Money is accounted by
// pot, not by chunk: holds lie on all of them together.
type pot struct {
	node   string
	chunks []*chunk
	held   int64 // by holds
	users  int   // holds
	low    int64 // the least that was free since the last sweep
}

// chunk is a part of a wallet. left never is more than Postgres has on record:
// a receipt lowers it there first and here afterwards, and a return here first.
type chunk struct {
	id     int64
	left   int64
	until  time.Time // when this process stops using it, unless it is renewed
	lent   bool      // a return of a part of it is under way, or may have failed
	closed bool
}

// free is what a new hold may take.
func (p *pot) free(now time.Time) int64 {
	sum := -p.held
	for _, c := range p.chunks {
		if now.Before(c.until) {
			sum += c.left
		}
	}
	return sum
}

// short is by how much the pot lacks the amount.
func (p *pot) short(nano int64, now time.Time) int64 { return max(0, nano-p.free(now)) }

// hold sets the amount aside, of which free is there.
func (p *pot) hold(nano, free int64) {
	p.held += nano
	p.low = min(p.low, free-nano)
}

// spend takes a receipt's cost out, as Postgres does: from the first chunk on.
func (p *pot) spend(nano int64) {
	for _, c := range p.chunks {
		part := min(nano, c.left)
		c.left -= part
		nano -= part
	}
}

// add takes in a draw: to a chunk that is known, or as the last one.
func (p *pot) add(id, nano int64, until time.Time) {
	for _, c := range p.chunks {
		if c.id == id {
			c.left += nano
			c.until = until
			return
		}
	}
	p.chunks = append(p.chunks, &chunk{id: id, left: nano, until: until})
}

// giveBack lowers the pot's chunks to what its holds need and spare nano-USD
// beyond, the last chunk first: the first ones are used up first. It returns
// the chunks that Postgres has to hear of.
func (p *pot) giveBack(spare int64) (changed []*chunk) {
	need := p.held + spare
	for _, c := range p.chunks {
		keep := min(c.left, max(need, 0))
		need -= keep
		if keep < c.left || keep == 0 || c.lent {
			c.left, c.lent = keep, true
			changed = append(changed, c)
		}
	}
	return changed
}

// drop forgets chunks that are closed.
func (p *pot) drop(closed func(*chunk) bool) { p.chunks = slices.DeleteFunc(p.chunks, closed) }

// tight reports that money is scarce: what isn't needed goes back at once.
func (a *account) tight(now func() time.Time) bool {
	return !a.scarce.IsZero() && now().Before(a.scarce)
}

// pot makes the node's if need be. It holds mu.
func (a *account) pot(node string) *pot {
	p := a.pots[node]
	if p == nil {
		p = &pot{node: node}
		a.pots[node] = p
	}
	return p
}

// idle reports that the account has nothing to remember. It holds mu.
func (a *account) idle(now func() time.Time) bool {
	if a.open > 0 || a.refill != nil || a.tight(now) {
		return false
	}
	return len(a.pots) == 0
}
