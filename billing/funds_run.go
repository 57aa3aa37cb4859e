package billing

import (
	"context"
	"maps"
	"sync"
	"time"
)

const (
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
			f.away.Store(0) // this is the last try
			f.giveBack(ctx, f.all(), everything)
			return nil
		case <-renew.C:
			f.renew(ctx)
		case <-sweep.C:
			f.giveBack(ctx, f.all(), f.unused)
			f.forget()
		case <-f.wake:
			f.linger(ctx)
			f.giveBack(ctx, f.scarce.take(), f.tight)
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

// scarceSet are the accounts with a wallet of which everything idle is to go back.
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

// returnSoon has Run return what the account doesn't need of scarce money.
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

// renew keeps our chunks ours. One that isn't renewed in time is not used any
// more; one that Postgres has closed is forgotten.
func (f *Funds) renew(ctx context.Context) {
	accounts := f.all()
	var ids []int64
	for _, a := range accounts {
		a.mu.Lock()
		for _, p := range a.pots {
			if p.chunk != 0 {
				ids = append(ids, p.chunk)
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
	lost := 0
	for _, a := range accounts {
		a.mu.Lock()
		for _, p := range a.pots {
			switch {
			case !asked[p.chunk]:
			case !alive[p.chunk]:
				p.lose()
				lost++
			case until.After(p.until):
				p.until = until
			}
		}
		a.mu.Unlock()
	}
	if lost > 0 {
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

// forget drops the accounts of which nothing is held.
func (f *Funds) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for tenant, a := range f.accounts {
		a.mu.Lock()
		maps.DeleteFunc(a.pots, func(_ string, p *pot) bool { return p.users == 0 && p.chunk == 0 && !p.tight(f.now) })
		if a.idle() {
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

// recalled returns what is idle of a wallet's money, and keeps none for a while.
func (f *Funds) recalled(tenant, node string) {
	f.mu.RLock()
	a := f.accounts[tenant]
	f.mu.RUnlock()
	if a == nil {
		return
	}
	a.mu.Lock()
	p := a.pots[node]
	if p != nil {
		f.tighten(p)
	}
	a.mu.Unlock()
	if p != nil {
		f.returnSoon(a)
	}
}
