package billing

import (
	"context"
	"errors"
	"sync"
	"time"
)

// bank is a till in memory that follows the rules of the one in Postgres.
type bank struct {
	mu      sync.Mutex
	wallets map[string]*wallet
	chunks  map[int64]*bankChunk
	last    int64
	tills   []*bankTill
	now     func() time.Time
	draws   int
}

type wallet struct{ balance, reserved, least int64 }

type bankChunk struct {
	node, replica string
	left          int64
	expires       time.Time
}

func newBank(balances map[string]int64) *bank {
	b := &bank{wallets: map[string]*wallet{}, chunks: map[int64]*bankChunk{}, now: time.Now}
	for node, nano := range balances {
		b.wallets[node] = &wallet{balance: nano, least: nano}
	}
	return b
}

// bankTill is one replica's way to the bank.
type bankTill struct {
	bank    *bank
	replica string
	ttl     time.Duration
	heard   func(tenant, node string) // guarded by bank.mu
	away    bool                      // guarded by bank.mu
	deaf    bool                      // what is done isn't heard of; guarded by bank.mu
}

var errBankAway = errors.New("no answer")

func (b *bank) till(replica string) *bankTill {
	t := &bankTill{bank: b, replica: replica, ttl: 30 * time.Second}
	b.tills = append(b.tills, t)
	return t
}

// enter locks the bank; false: it is away.
func (t *bankTill) enter() bool {
	t.bank.mu.Lock()
	if t.away {
		t.bank.mu.Unlock()
		return false
	}
	return true
}

func (t *bankTill) setAway(away bool) {
	t.bank.mu.Lock()
	defer t.bank.mu.Unlock()
	t.away = away
}

func (t *bankTill) setDeaf(deaf bool) {
	t.bank.mu.Lock()
	defer t.bank.mu.Unlock()
	t.deaf = deaf
}

func (t *bankTill) draw(_ context.Context, _ string, nodes []string, least, want int64) ([]share, error) {
	if !t.enter() {
		return nil, errBankAway
	}
	b := t.bank
	defer b.mu.Unlock()
	b.draws++
	amount := want
	for _, node := range nodes {
		w := b.wallets[node]
		if w == nil {
			w = &wallet{}
		}
		free := w.balance - w.reserved
		if free < least {
			b.recall(node, t.replica)
			return nil, &Broke{Node: node, AvailableNano: free}
		}
		amount = min(amount, least+(free-least)/256)
	}
	var got []share
	for _, node := range nodes {
		id := int64(0)
		for known, c := range b.chunks {
			if c.node == node && c.replica == t.replica {
				id = known
			}
		}
		if id == 0 {
			b.last++
			id = b.last
			b.chunks[id] = &bankChunk{node: node, replica: t.replica}
		}
		b.wallets[node].reserved += amount
		b.chunks[id].left += amount
		b.chunks[id].expires = b.now().Add(t.ttl)
		got = append(got, share{node: node, chunk: id, nano: amount})
	}
	if t.deaf {
		return nil, errBankAway
	}
	return got, nil
}

func (t *bankTill) reserved(_ context.Context, _, node string) (int64, error) {
	if !t.enter() {
		return 0, errBankAway
	}
	defer t.bank.mu.Unlock()
	if w := t.bank.wallets[node]; w != nil {
		return w.reserved, nil
	}
	return 0, nil
}

func (t *bankTill) renew(_ context.Context, ids []int64) (alive []int64, err error) {
	if !t.enter() {
		return nil, errBankAway
	}
	defer t.bank.mu.Unlock()
	for _, id := range ids {
		if c := t.bank.chunks[id]; c != nil {
			c.expires = t.bank.now().Add(t.ttl)
			alive = append(alive, id)
		}
	}
	return alive, nil
}

func (t *bankTill) giveBack(_ context.Context, ids, keep []int64) error {
	if !t.enter() {
		return errBankAway
	}
	defer t.bank.mu.Unlock()
	for i, id := range ids {
		c := t.bank.chunks[id]
		if c == nil {
			continue
		}
		back := max(c.left-max(keep[i], 0), 0)
		c.left -= back
		t.bank.wallets[c.node].reserved -= back
		if keep[i] <= 0 {
			delete(t.bank.chunks, id)
		}
	}
	if t.deaf {
		return errBankAway
	}
	return nil
}

// recall tells everybody, where others than the replica have some of the node's
// money. It holds mu.
func (b *bank) recall(node, replica string) {
	elsewhere := false
	for _, c := range b.chunks {
		elsewhere = elsewhere || c.node == node && c.replica != replica && c.left > 0
	}
	for _, t := range b.tills {
		if elsewhere && t.heard != nil {
			go t.heard("ten_a", node)
		}
	}
}

func (t *bankTill) listen(ctx context.Context, heard func(tenant, node string)) error {
	t.bank.mu.Lock()
	t.heard = heard
	t.bank.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

// settle books a receipt's cost.
func (b *bank) settle(nodes []string, chunks []int64, cost int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, node := range nodes {
		w := b.wallets[node]
		w.balance -= cost
		w.least = min(w.least, w.balance)
		for _, id := range chunks {
			if c := b.chunks[id]; c != nil && c.node == node {
				part := min(cost, c.left)
				c.left -= part
				w.reserved -= part
			}
		}
	}
}

// closeExpired closes the chunks that nobody renewed.
func (b *bank) closeExpired() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, c := range b.chunks {
		if b.now().After(c.expires) {
			b.wallets[c.node].reserved -= c.left
			delete(b.chunks, id)
		}
	}
}

func (b *bank) wallet(node string) wallet {
	b.mu.Lock()
	defer b.mu.Unlock()
	return *b.wallets[node]
}
