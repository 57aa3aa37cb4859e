package billing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// FundsConfig sets a Funds. Zero fields but Replica take the default that is
// named with them.
type FundsConfig struct {
	Replica  string        // whose chunks these are; no two live processes have the same
	ChunkTTL time.Duration // how long Postgres keeps a chunk that isn't renewed; 30s
	// ChunkMax bounds one draw, in nano-USD; 5 USD. Postgres gives less where
	// less is left.
	ChunkMax int64
	Timeout  time.Duration // of one question to Postgres; 1s
	Idle     time.Duration // after which what wasn't needed goes back; 5s
	// Behind reports that receipts wait to be stored. Their costs are still on
	// our chunks in Postgres, so that nothing may be given back; nil: never.
	Behind  func() bool
	Metrics prometheus.Registerer // nil: none are kept
}

func (c FundsConfig) withDefaults() FundsConfig {
	c.ChunkTTL = positive(c.ChunkTTL, 30*time.Second)
	c.Timeout = positive(c.Timeout, time.Second)
	c.Idle = positive(c.Idle, 5*time.Second)
	if c.ChunkMax <= 0 {
		c.ChunkMax = 5 * nanoPerUSD
	}
	if c.Behind == nil {
		c.Behind = func() bool { return false }
	}
	return c
}

// margin is how long before Postgres a chunk counts as expired here.
func (c *FundsConfig) margin() time.Duration { return c.ChunkTTL / 10 }

// Funds holds parts of wallets in process, so that an exchange is admitted
// without asking anybody: chunks, which Postgres has set apart for this process
// alone. Money is never spent that a wallet doesn't have, however many
// processes spend it. It is safe for concurrent use, and needs Run.
//
// While a wallet is full, a draw fetches more than is needed, and most holds
// cost a lock in process. Near its floor each draw is for exactly one hold, what
// isn't needed goes back at once, and processes that hold something idle are
// told to return it: see fetch.
type Funds struct {
	log     *slog.Logger
	till    till
	cfg     FundsConfig
	now     func() time.Time
	metrics *fundsMetrics

	mu       sync.RWMutex
	accounts map[string]*account // by tenant

	open   atomic.Int64
	away   atomic.Int64 // until when Postgres isn't asked, in Unix nanoseconds
	scarce scarceSet
	wake   chan struct{} // there is something in it
}

// till is where the wallets are: Postgres.
type till interface {
	// draw takes between least and want nano-USD out of each of the wallets, the
	// same everywhere, or nothing: then the error is a *Broke. It adds to the
	// chunk that this process has of a wallet.
	draw(ctx context.Context, tenant string, nodes []string, least, want int64) ([]share, error)
	// reserved is how much of a wallet is in chunks.
	reserved(ctx context.Context, tenant, node string) (nano int64, err error)
	// renew returns which of the chunks are still ours.
	renew(ctx context.Context, chunks []int64) (alive []int64, err error)
	// giveBack lowers each chunk to what it keeps, where it has more, and closes
	// those that keep nothing.
	giveBack(ctx context.Context, chunks, keep []int64) error
	// listen calls heard for each wallet whose money is scarce while several
	// processes hold some of it, until ctx ends or the connection fails. Draws
	// that are refused announce it.
	listen(ctx context.Context, heard func(tenant, node string)) error
}

// share is what a draw gave of one wallet.
type share struct {
	node  string
	chunk int64 // 0: the node has no wallet, and so no limit of its own
	nano  int64
}

// NewFunds makes a Funds on the worker's pool.
func NewFunds(log *slog.Logger, worker *pgxpool.Pool, cfg FundsConfig, now func() time.Time) *Funds {
	cfg = cfg.withDefaults()
	return newFunds(log, &postgresTill{pool: worker, replica: cfg.Replica, ttl: cfg.ChunkTTL}, cfg, now)
}

func newFunds(log *slog.Logger, t till, cfg FundsConfig, now func() time.Time) *Funds {
	f := &Funds{
		log: log, till: t, cfg: cfg.withDefaults(), now: now,
		accounts: make(map[string]*account), wake: make(chan struct{}, 1),
	}
	f.scarce.list = make(map[*account]bool)
	f.metrics = newFundsMetrics(cfg.Metrics, f)
	return f
}

// Open is how many holds have not ended.
func (f *Funds) Open() int { return int(f.open.Load()) }

// Hold sets money aside at every node of the request, or at none. The error is
// a *Broke, ErrUnavailable while Postgres can't be asked and the chunks here
// don't suffice, ErrNodes, or that of ctx.
func (f *Funds) Hold(ctx context.Context, r HoldRequest) (*Hold, error) {
	if len(r.Nodes) == 0 || len(r.Nodes) > MaxNodes || r.Nano < 0 {
		return nil, ErrNodes
	}
	h := &Hold{funds: f, n: len(r.Nodes)}
	f.enter(h, r)
	err := f.take(ctx, h, r.Nano)
	if err != nil {
		h.Release()
		return nil, err
	}
	return h, nil
}

// enter gives the hold its account, which can't be forgotten while it is open.
func (f *Funds) enter(h *Hold, r HoldRequest) {
	for {
		a := f.account(r.Tenant)
		a.mu.Lock()
		if a.gone { // between the look-up and the lock
			a.mu.Unlock()
			continue
		}
		a.open++
		for i, node := range r.Nodes {
			h.pots[i] = a.pot(node)
			h.pots[i].users++
		}
		a.mu.Unlock()
		h.account = a
		f.open.Add(1)
		return
	}
}

func (f *Funds) account(tenant string) *account {
	f.mu.RLock()
	a := f.accounts[tenant]
	f.mu.RUnlock()
	if a != nil {
		return a
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if a = f.accounts[tenant]; a == nil {
		a = &account{tenant: tenant, pots: make(map[string]*pot, 1)}
		f.accounts[tenant] = a
	}
	return a
}

// take adds to a hold: out of the chunks that are here, or else by a draw of
// its own or of somebody else who is at it already.
func (f *Funds) take(ctx context.Context, h *Hold, nano int64) error {
	a := h.account
	for {
		a.mu.Lock()
		now := f.now()
		if h.ended || h.grab(nano, now) {
			a.mu.Unlock()
			return nil
		}
		if b := h.known(nano, now); b != nil {
			a.mu.Unlock()
			return f.refuse(b)
		}
		t := h.scraped(nano, now)
		if t == nil {
			t = a.turn
		}
		if t != nil {
			a.waiting += nano
			a.mu.Unlock()
			if err := a.wait(ctx, t, nano); err != nil {
				return f.unavailable(err)
			}
			continue
		}
		t = newTurn()
		a.turn = t
		a.mu.Unlock()
		return f.fetch(ctx, h, nano, t)
	}
}

// grab takes what is here. It holds account.mu.
func (h *Hold) grab(nano int64, now time.Time) bool {
	var free [MaxNodes]int64
	for i, p := range h.pots[:h.n] {
		if free[i] = p.free(now); free[i] < nano {
			return false
		}
	}
	for i, p := range h.pots[:h.n] {
		p.hold(nano, free[i])
	}
	h.nano += nano
	return true
}

// known is a refusal of a moment ago that settles this question too: it spares
// Postgres what callers without money would ask. It holds account.mu.
func (h *Hold) known(nano int64, now time.Time) *Broke {
	for _, p := range h.pots[:h.n] {
		if !p.refused.until.Before(now) && p.short(nano, now) > p.refused.available {
			return &Broke{Node: p.node, AvailableNano: p.refused.available + max(p.free(now), 0), HeldNano: p.refused.held}
		}
	}
	return nil
}

// scraped is somebody's wait for what others return of a wallet that this hold is
// short of, too. It holds account.mu.
func (h *Hold) scraped(nano int64, now time.Time) *turn {
	for _, p := range h.pots[:h.n] {
		if p.scraped != nil && p.short(nano, now) > 0 {
			return p.scraped
		}
	}
	return nil
}

// wait waits for somebody else's turn to end.
func (a *account) wait(ctx context.Context, t *turn, nano int64) error {
	defer func() {
		a.mu.Lock()
		a.waiting -= nano
		a.mu.Unlock()
	}()
	select {
	case <-t.done:
		return t.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refuse counts a refusal.
func (f *Funds) refuse(b *Broke) error {
	f.metrics.refusals.WithLabelValues(scopeOf(b.Node)).Inc()
	return b
}

// scopeOf tells the kinds of wallets apart by their ids.
func scopeOf(node string) string {
	switch {
	case strings.HasPrefix(node, "key_"):
		return "key"
	case strings.HasPrefix(node, "prj_"):
		return "project"
	default:
		return "tenant"
	}
}

func (f *Funds) unavailable(err error) error {
	if errors.Is(err, ErrUnavailable) {
		f.metrics.refusals.WithLabelValues("unavailable").Inc()
	}
	return fmt.Errorf("hold: %w", err)
}
