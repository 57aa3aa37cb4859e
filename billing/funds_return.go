package billing

import "context"

// maxReturn bounds the chunks of one question to Postgres.
const maxReturn = 1000

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

// giveBack returns what the accounts' holds don't need, beyond what spare says.
// Receipts that wait to be stored are still to be taken out of our chunks in
// Postgres, so that nothing can be returned then; nor while Postgres is away.
func (f *Funds) giveBack(ctx context.Context, accounts []*account, spare func(*account, *pot) int64) {
	if f.cfg.Behind() || f.now().UnixNano() < f.away.Load() {
		return
	}
	back := returns{turn: newTurn()}
	for _, a := range accounts {
		if len(back.pots) >= maxReturn {
			break // the next sweep has the rest
		}
		a.mu.Lock()
		if a.turn == nil && back.add(a, spare) {
			a.turn = back.turn
		}
		a.mu.Unlock()
	}
	f.send(ctx, &back)
	for _, a := range back.owners {
		a.mu.Lock()
		a.turn = nil
		a.mu.Unlock()
	}
	close(back.turn.done)
}

// returnAll is giveBack for whoever has the account's turn.
func (f *Funds) returnAll(ctx context.Context, a *account) {
	if f.cfg.Behind() {
		return
	}
	var back returns
	a.mu.Lock()
	back.add(a, everything)
	a.mu.Unlock()
	f.send(ctx, &back)
}

// returns are parts of chunks on their way back.
type returns struct {
	turn   *turn
	owners []*account
	of     []*account // of each pot
	pots   []*pot
	ids    []int64
	keep   []int64
}

// add holds the account's mu. It reports whether there is something.
func (r *returns) add(a *account, spare func(*account, *pot) int64) bool {
	before := len(r.pots)
	for _, p := range a.pots {
		if p.giveBack(spare(a, p)) {
			r.of, r.pots = append(r.of, a), append(r.pots, p)
			r.ids, r.keep = append(r.ids, p.chunk), append(r.keep, p.left)
		}
	}
	if len(r.pots) == before {
		return false
	}
	r.owners = append(r.owners, a)
	return true
}

// send tells Postgres. Whether receipts wait is asked again, now that the chunks
// are read: one that was spooled since the first look may be out of them.
func (f *Funds) send(ctx context.Context, r *returns) {
	if len(r.pots) == 0 || f.cfg.Behind() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	if err := f.till.giveBack(ctx, r.ids, r.keep); err != nil {
		f.log.WarnContext(ctx, "chunks not returned", "error", err, "chunks", len(r.ids))
		return // they stay marked
	}
	for i, p := range r.pots {
		r.of[i].mu.Lock()
		p.dirty = false
		r.of[i].forgive(p.node)
		if r.keep[i] == 0 && p.chunk == r.ids[i] {
			p.lose()
		}
		r.of[i].mu.Unlock()
	}
}
