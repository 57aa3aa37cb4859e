package billing

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// MaxNodes is how many wallets one exchange may be paid from: the tenant's,
// the project's and the key's.
const MaxNodes = 3

// HoldRequest asks for money to be set aside for one exchange.
type HoldRequest struct {
	Tenant string
	// Nodes are the wallets that the money is asked at, all or none: ids of our
	// own, the tenant's first, then those of project and key where they have one.
	Nodes []string
	Nano  int64 // nano-USD, the most that the exchange can cost until it asks again
}

// Broke says that a wallet doesn't have the money.
type Broke struct { //nolint:errname // it is read as a word: &Broke{Node: ...}
	Node          string
	AvailableNano int64 // what a hold could have had there

	// HeldNano is what exchanges under way hold of the wallet besides, or held a
	// moment ago: some of it comes back when they end.
	HeldNano int64

	there int64 // of what is available, what isn't in this process
}

func (b *Broke) Error() string {
	return fmt.Sprintf("billing: the wallet of %s has no more than %d nano-USD to spend", b.Node, b.AvailableNano)
}

// ErrNodes says that a hold names no wallet, or more than MaxNodes.
var ErrNodes = errors.New("billing: a hold names between 1 and 3 wallets")

// Hold is money set aside for one exchange, out of the chunks that this process
// holds. It ends once, by Settle or Release; what comes after the end does
// nothing. It is safe for concurrent use.
type Hold struct {
	funds   *Funds
	account *account
	pots    [MaxNodes]*pot
	n       int
	nano    int64 // guarded by account.mu
	ended   bool
}

// Nano is how much is set aside.
func (h *Hold) Nano() int64 {
	h.account.mu.Lock()
	defer h.account.mu.Unlock()
	return h.nano
}

// Extend sets nano-USD more aside. The errors are those of Funds.Hold; what was
// held before stays held.
func (h *Hold) Extend(ctx context.Context, nano int64) error {
	if nano <= 0 {
		return nil
	}
	return h.funds.take(ctx, h, nano)
}

// Shrink gives back what is held above nano-USD.
func (h *Hold) Shrink(nano int64) {
	h.account.mu.Lock()
	defer h.account.mu.Unlock()
	if by := h.nano - max(nano, 0); by > 0 && !h.ended {
		h.nano -= by
		h.free(by)
	}
}

// Chunks are those that the exchange's receipt is to name, one of each wallet.
// They are asked for just before the receipt is stored: Postgres may have closed
// one that the hold began with.
func (h *Hold) Chunks() []int64 {
	h.account.mu.Lock()
	defer h.account.mu.Unlock()
	ids := make([]int64, 0, h.n)
	for _, p := range h.pots[:h.n] {
		if p.chunk != 0 {
			ids = append(ids, p.chunk)
		}
	}
	return ids
}

// Settle ends the hold of an exchange whose receipt is stored or spooled with
// this cost, or may be: where that isn't known, the cost counts as spent.
func (h *Hold) Settle(costNano int64) {
	h.account.mu.Lock()
	defer h.account.mu.Unlock()
	if h.ended {
		return
	}
	for _, p := range h.pots[:h.n] {
		p.spend(costNano)
	}
	if over := costNano - h.nano; over > 0 {
		h.funds.metrics.overspent.Add(float64(over) / nanoPerUSD)
	}
	h.end()
}

// Release ends the hold of an exchange that cost nothing.
func (h *Hold) Release() { h.Settle(0) }

// end holds account.mu.
func (h *Hold) end() {
	h.ended = true
	h.free(h.nano)
	h.nano = 0
	for _, p := range h.pots[:h.n] {
		p.users--
	}
	h.account.open--
	h.funds.open.Add(-1)
}

// free holds account.mu.
func (h *Hold) free(nano int64) {
	for _, p := range h.pots[:h.n] {
		p.held -= nano
	}
	if h.tight() {
		h.funds.returnSoon(h.account)
	}
}

// tight reports that the money of one of the wallets is scarce. It holds
// account.mu.
func (h *Hold) tight() bool {
	return slices.ContainsFunc(h.pots[:h.n], func(p *pot) bool { return p.tight(h.funds.now) })
}

// nanoPerUSD is for metrics, which are in USD.
const nanoPerUSD = 1e9
