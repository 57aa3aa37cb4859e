package billing

import (
	"math"
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

	turn    *turn // of whoever moves money between here and Postgres now
	waiting int64 // nano-USD that those who wait for it want
	size    int64 // of the last draws; grows while they come fast
	drawnAt time.Time
	putOff  bool // a return was due during the turn
}

// turn is a draw or a return under way. They exclude one another: both say what
// our chunk shall be from then on.
type turn struct {
	done chan struct{}
	err  error // that of the store; nil where the wallets refused
}

func newTurn() *turn { return &turn{done: make(chan struct{})} }

// refusal is what was learnt of a wallet a moment ago.
type refusal struct {
	available int64
	held      int64 // by exchanges under way
	until     time.Time
	times     int // in a row
}

// believe is for how long a refusal is believed without asking again: longer
// each time, for whom nothing has changed. A top-up may go unnoticed for so long.
func (r *refusal) believe() time.Duration {
	return min(shortestRefusal<<min(r.times, 10), longestRefusal)
}

// pot is what this process holds of one wallet: its chunk.
//
// What is left here is never more than Postgres has on record: a receipt lowers
// it there first and here afterwards, a return here first and a draw there.
type pot struct {
	node  string
	users int   // open holds
	held  int64 // by them
	low   int64 // the least that was free since the last sweep

	chunk  int64 // its id; 0: none
	left   int64
	until  time.Time // when this process stops using it, unless it is renewed
	dirty  bool      // Postgres may have more on record: a draw or a return whose outcome isn't known
	uncapp time.Time // until then the node is known to have no wallet of its own

	scarce  time.Time // until then nothing idle is kept
	scraped *turn     // of a hold that waits for what others return; nil: none does
	refused refusal
}

// free is what a new hold may take.
func (p *pot) free(now time.Time) int64 {
	switch {
	case now.Before(p.until):
		return p.left - p.held
	case now.Before(p.uncapp):
		return math.MaxInt64
	default:
		return -p.held
	}
}

// short is by how much the pot lacks the amount.
func (p *pot) short(nano int64, now time.Time) int64 { return max(0, nano-p.free(now)) }

// hold sets the amount aside, of which free is there.
func (p *pot) hold(nano, free int64) {
	p.held += nano
	p.low = min(p.low, free-nano)
}

// spend takes a receipt's cost out, as Postgres did.
func (p *pot) spend(nano int64) { p.left = max(p.left-nano, 0) }

// add takes in a draw. Another chunk than before means that Postgres had closed
// that one.
func (p *pot) add(chunk, nano int64, until time.Time) {
	if chunk != p.chunk {
		p.chunk, p.left = chunk, 0
	}
	p.left += nano
	p.until = until
}

// giveBack lowers the chunk to what holds need and spare nano-USD beyond. It
// reports whether Postgres has to hear of that.
func (p *pot) giveBack(spare int64) bool {
	if p.chunk == 0 {
		return false
	}
	keep := min(p.left, max(p.held+spare, 0))
	if keep == p.left && keep > 0 && !p.dirty {
		return false
	}
	p.left, p.dirty = keep, true
	return true
}

// lose forgets a chunk that is not ours any more.
func (p *pot) lose() { p.chunk, p.left, p.until, p.dirty = 0, 0, time.Time{}, false }

// tight reports that the wallet's money is scarce: what isn't needed goes back
// at once.
func (p *pot) tight(now func() time.Time) bool { return !p.scarce.IsZero() && now().Before(p.scarce) }

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
func (a *account) idle() bool { return a.open == 0 && a.turn == nil && len(a.pots) == 0 }
