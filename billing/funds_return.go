package billing

import "context"

// maxReturn bounds the chunks of one question to Postgres.
const maxReturn = 1000

// sparing says what of a pot is not to go back beyond what holds need, and
// whether anything is. It holds account.mu.
type sparing func(*account, *pot) (spare int64, due bool)

// everything spares nothing.
func everything(*account, *pot) (int64, bool) { return 0, true }

// tight spares the pots whose money isn't scarce.
func (f *Funds) tight(_ *account, p *pot) (int64, bool) { return 0, p.tight(f.now) }

// unused spares what was needed since the last sweep, and makes the next draws
// smaller where something wasn't.
func (f *Funds) unused(a *account, p *pot) (int64, bool) {
	free := max(p.free(f.now()), 0)
	idle := max(0, min(p.low, free))
	if idle > 0 {
		a.size /= 2
	}
	p.low = free - idle
	return free - idle, true
}

// giveBack returns what the accounts' holds don't need, beyond what spare says.
// Receipts that wait to be stored are still to be taken out of our chunks in
// Postgres, so that nothing can be returned then; nor while Postgres is away.
func (f *Funds) giveBack(ctx context.Context, accounts []*account, spare sparing) {
	if f.cfg.Behind() || f.now().UnixNano() < f.away.Load() {
		return
	}
	back := returns{turn: newTurn()}
	for _, a := range accounts {
		if len(back.pots) >= maxReturn {
			break // the next sweep has the rest
		}
		a.mu.Lock()
		switch {
		case a.turn != nil:
			a.putOff = true
		case back.add(a, spare):
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

// returnTight is giveBack of scarce money for whoever has the account's turn.
func (f *Funds) returnTight(ctx context.Context, a *account) {
	if f.cfg.Behind() {
		return
	}
	var back returns
	a.mu.Lock()
	back.add(a, f.tight)
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
func (r *returns) add(a *account, spare sparing) bool {
	before := len(r.pots)
	for _, p := range a.pots {
		if beyond, due := spare(a, p); due && p.giveBack(beyond) {
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
		p.refused = refusal{} // the wallet has changed
		if r.keep[i] == 0 && p.chunk == r.ids[i] {
			p.lose()
		}
		r.of[i].mu.Unlock()
	}
}
