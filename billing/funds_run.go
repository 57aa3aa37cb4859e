package billing

import (
	"context"
	"maps"
	"sync"
	"time"
)

const (
	// maxReturn bounds the chunks of one question to Postgres.
	maxReturn = 1000
	// gather is how long returns of scarce money wait for one another.
	gather = 10 * time.Millisecond
	// stopTime is for returning all at the end.
	stopTime = 5 * time.Second
)

// Run renews chunks, returns what isn't needed, and follows recalls. When ctx
// ends it returns everything that no hold needs, and nil. The holds have to be
// over by then: nobody renews what is left.
func (f *Funds) Run(ctx context.Context) error {
	listening := make(chan struct{})
	go func() { defer close(listening); f.follow(ctx) }()
	defer func() { <-listening }()

	renew := time.NewTicker(f.cfg.ChunkTTL / 6)
	defer renew.Stop()
	sweep := time.NewTicker(f.cfg.Idle)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
			defer cancel()
			f.giveBack(ctx, f.all(), everything)
			return nil
		case <-renew.C:
			f.renew(ctx)
		case <-sweep.C:
			f.giveBack(ctx, f.all(), f.unused)
			f.forget()
		case <-f.wake:
			f.linger(ctx)
			f.giveBack(ctx, f.scarce.take(), everything)
		}
	}
}

// linger lets others join a return.
func (f *Funds) linger(ctx context.Context) {
	timer := time.NewTimer(gather)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// scarceSet are the accounts of which everything idle is to go back.
type scarceSet struct {
	mu   sync.Mutex
	list map[*account]bool
}

func (s *scarceSet) take() (all []*account) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for a := range s.list {
		all = append(all, a)
	}
	clear(s.list)
	return all
}

// returnSoon has Run return what the account doesn't need.
func (f *Funds) returnSoon(a *account) {
	f.scarce.mu.Lock()
	f.scarce.list[a] = true
	f.scarce.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default: // it is awake
	}
}

// all are the accounts.
func (f *Funds) all() []*account {
	f.mu.RLock()
	defer f.mu.RUnlock()
	list := make([]*account, 0, len(f.accounts))
	for _, a := range f.accounts {
		list = append(list, a)
	}
	return list
}

// everything spares nothing.
func everything(*account, *pot) int64 { return 0 }

// unused spares what was needed since the last sweep, and makes the next draws
// smaller where something wasn't.
func (f *Funds) unused(a *account, p *pot) (spare int64) {
	free := max(p.free(f.now()), 0)
	idle := max(0, min(p.low, free))
	if idle > 0 {
		a.size /= 2
	}
	p.low = free - idle
	return free - idle
}

// renew keeps our chunks ours. One that isn't renewed in time is not used any
// more; one that Postgres has closed is forgotten.
func (f *Funds) renew(ctx context.Context) {
	var ids []int64
	accounts := f.all()
	for _, a := range accounts {
		a.mu.Lock()
		for _, p := range a.pots {
			for _, c := range p.chunks {
				ids = append(ids, c.id)
			}
		}
		a.mu.Unlock()
	}
	if len(ids) == 0 {
		return
	}
	until := f.now().Add(f.cfg.ChunkTTL - f.cfg.margin())
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	list, err := f.till.renew(ctx, ids)
	if err != nil {
		f.log.WarnContext(ctx, "chunks not renewed", "error", err, "chunks", len(ids))
		return
	}
	alive, asked := setOf(list), setOf(ids)
	for _, a := range accounts {
		a.mu.Lock()
		for _, p := range a.pots {
			p.drop(func(c *chunk) bool { return asked[c.id] && !alive[c.id] })
			for _, c := range p.chunks {
				if alive[c.id] && until.After(c.until) {
					c.until = until
				}
			}
		}
		a.mu.Unlock()
	}
	if lost := len(ids) - len(list); lost > 0 {
		f.log.WarnContext(ctx, "chunks were closed before they were renewed", "chunks", lost)
		f.metrics.lost.Add(float64(lost))
	}
}

func setOf(ids []int64) map[int64]bool {
	set := make(map[int64]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// giveBack returns what the accounts' holds don't need. Receipts that wait to be
// stored are still to be taken out of our chunks in Postgres, so that nothing
// can be returned then: it goes with a later return.
func (f *Funds) giveBack(ctx context.Context, accounts []*account, spare func(a *account, p *pot) int64) {
	var back returns
	for _, a := range accounts {
		if len(back.chunks) >= maxReturn {
			break // the next sweep has the rest
		}
		a.mu.Lock()
		for _, p := range a.pots {
			back.add(a, p.giveBack(spare(a, p)))
		}
		a.mu.Unlock()
	}
	if len(back.chunks) == 0 || f.cfg.Behind() { // asked after the chunks were read
		return
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	if err := f.till.giveBack(ctx, back.ids, back.keep); err != nil {
		f.log.WarnContext(ctx, "chunks not returned", "error", err, "chunks", len(back.ids))
		return // they stay marked
	}
	back.done()
}

// returns are chunks on their way back.
type returns struct {
	owners []*account
	chunks []*chunk
	ids    []int64
	keep   []int64
}

// add holds the owner's mu.
func (r *returns) add(owner *account, chunks []*chunk) {
	for _, c := range chunks {
		r.owners, r.chunks = append(r.owners, owner), append(r.chunks, c)
		r.ids, r.keep = append(r.ids, c.id), append(r.keep, c.left)
	}
}

// done forgets what is closed now.
func (r *returns) done() {
	for i, a := range r.owners {
		a.mu.Lock()
		c := r.chunks[i]
		c.lent, c.closed = false, r.keep[i] == 0
		if c.closed {
			for _, p := range a.pots {
				p.drop(func(c *chunk) bool { return c.closed })
			}
		}
		a.mu.Unlock()
	}
}

// forget drops the accounts of which nothing is held.
func (f *Funds) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for tenant, a := range f.accounts {
		a.mu.Lock()
		maps.DeleteFunc(a.pots, func(_ string, p *pot) bool { return p.users == 0 && len(p.chunks) == 0 })
		if a.idle(f.now) {
			a.gone = true
			delete(f.accounts, tenant)
		}
		a.mu.Unlock()
	}
}

// follow hears of recalls, over a connection of its own, and takes a new one
// whenever that is lost.
func (f *Funds) follow(ctx context.Context) {
	const shortest, longest = 100 * time.Millisecond, 3 * time.Second
	pause := shortest
	for {
		began := f.now()
		err := f.till.listen(ctx, f.recalled)
		if ctx.Err() != nil {
			return
		}
		if f.now().Sub(began) > longest {
			pause = shortest
		}
		f.log.WarnContext(ctx, "recalls are not heard, trying again", "error", err, "pause_ms", pause.Milliseconds())
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
	}
}

// recalled returns what is idle of a tenant's money, and keeps none for a while.
func (f *Funds) recalled(tenant string) {
	f.mu.RLock()
	a := f.accounts[tenant]
	f.mu.RUnlock()
	if a == nil {
		return
	}
	f.tighten(a)
	f.returnSoon(a)
}
