package billing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	// pace is what a chunk is sized for: draws that come faster double it.
	pace = time.Second
	// scarceFor is how long a wallet's money counts as scarce after a refusal or a
	// recall.
	scarceFor       = 5 * time.Second
	shortestRefusal = 250 * time.Millisecond
	longestRefusal  = 2 * time.Second
	// uncappedFor is how long a node without a wallet is believed to have none,
	// where its caller asked for one.
	uncappedFor = time.Second
	// awayFor is how long Postgres isn't asked after it didn't answer.
	awayFor = 500 * time.Millisecond
)

// patience is how long a hold waits, in all, for what other processes return.
// They hear of a recall within a few milliseconds.
func patience() [3]time.Duration {
	return [...]time.Duration{15 * time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond}
}

// claim is a hold on its way: what it has of each pot so far. Nobody else can
// take that, so that a draw of the rest completes it.
type claim struct {
	hold  *Hold
	nano  int64
	got   [MaxNodes]int64
	lacks [MaxNodes]int64 // more than the rest where the pot's holds lost their chunk
}

// begin takes what is free, and returns the nodes that lack something and the
// most that one of them lacks.
func (c *claim) begin(now time.Time) (short []string, most int64) {
	c.hold.account.mu.Lock()
	defer c.hold.account.mu.Unlock()
	for i, p := range c.hold.pots[:c.hold.n] {
		c.lacks[i] = p.short(c.nano, now)
		free := p.free(now)
		c.got[i] = max(0, min(free, c.nano))
		p.hold(c.got[i], free)
		if c.lacks[i] > 0 {
			short, most = append(short, p.node), max(most, c.lacks[i])
		}
	}
	return short, most
}

// end turns the claim into a part of the hold, or gives back what it has. It
// holds account.mu.
func (c *claim) end(complete bool) {
	if complete {
		c.hold.nano += c.nano
		return
	}
	for i, p := range c.hold.pots[:c.hold.n] {
		p.held -= c.got[i]
	}
}

// fetch draws for a hold that found too little here, while others wait.
//
// The first draw asks for more than the hold, at all wallets at once. Where one
// of them refuses, money is scarce: each wallet is asked for exactly what is
// missing there, what others hold idle is recalled (by the refusal itself), and
// only then the hold is refused.
func (f *Funds) fetch(ctx context.Context, h *Hold, nano int64, t *turn) error {
	// What is drawn is for others too, whether or not this caller stays.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*f.cfg.Timeout)
	defer cancel()
	c := &claim{hold: h, nano: nano}
	err := f.draw(ctx, c)
	if b, short := errors.AsType[*Broke](err); short {
		t, err = f.scrape(ctx, c, b, t)
	}
	broke, refused := errors.AsType[*Broke](err)
	if err != nil && !refused {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if t != nil {
		if !refused {
			t.err = err
		}
		f.endTurn(h, t)
	}
	switch {
	case refused:
		return f.refuse(broke)
	case err != nil:
		return f.unavailable(err)
	default:
		return nil
	}
}

// endTurn lets the next one have it. A return that was due meanwhile was put
// off.
func (f *Funds) endTurn(h *Hold, t *turn) {
	a := h.account
	a.mu.Lock()
	due := a.putOff || h.tight()
	a.turn, a.putOff = nil, false
	a.mu.Unlock()
	close(t.done)
	if due {
		f.returnSoon(a)
	}
}

// draw asks all wallets that are short at once.
func (f *Funds) draw(ctx context.Context, c *claim) error {
	a := c.hold.account
	short, least := c.begin(f.now())
	var err error
	if least > 0 { // else something came back meanwhile
		a.mu.Lock()
		want := least
		if !c.tight(short) {
			want = a.want(least, f.cfg.ChunkMax, f.now())
		}
		a.mu.Unlock()
		err = f.fill(ctx, c, short, least, want)
	}
	a.mu.Lock()
	c.end(err == nil)
	a.mu.Unlock()
	return err
}

// want sizes a draw. It holds mu.
func (a *account) want(least, most int64, now time.Time) int64 {
	a.size = max(a.size, least)
	if now.Sub(a.drawnAt) < pace {
		a.size *= 2
	}
	a.size = min(a.size, most)
	a.drawnAt = now
	return max(a.size, min(least+a.waiting, most), least)
}

// fill adds a draw to the pots, of which the claim has its part at once.
func (f *Funds) fill(ctx context.Context, c *claim, nodes []string, least, want int64) error {
	asked := f.now()
	if asked.UnixNano() < f.away.Load() {
		return errAway
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	got, err := f.till.draw(ctx, c.hold.account.tenant, nodes, least, want)
	f.metrics.drew(err)
	c.hold.account.mu.Lock()
	defer c.hold.account.mu.Unlock()
	if err != nil {
		if !isBroke(err) {
			f.away.Store(f.now().Add(awayFor).UnixNano())
			for _, p := range c.hold.pots[:c.hold.n] {
				p.dirty = p.dirty || slices.Contains(nodes, p.node)
			}
		}
		return err
	}
	for _, d := range got {
		for i, p := range c.hold.pots[:c.hold.n] {
			if p.node == d.node {
				p.refused = refusal{} // the wallet has changed
				f.fillPot(p, d, asked)
				p.hold(c.nano-c.got[i], p.free(f.now()))
				c.got[i] = c.nano
			}
		}
	}
	return nil
}

// fillPot holds account.mu.
func (f *Funds) fillPot(p *pot, d share, asked time.Time) {
	if d.chunk == 0 {
		p.lose()
		p.uncapp = asked.Add(uncappedFor)
		return
	}
	p.add(d.chunk, d.nano, asked.Add(f.cfg.ChunkTTL-f.cfg.margin()))
}

var errAway = errors.New("postgres did not answer a moment ago")

// scrape gets a hold together near the floor of a wallet, which refused it:
// exactly what is missing at each, and what others return. While it waits for
// that, others of the tenant may have the turn; who lacks the same wallet's money
// waits with it. It returns the turn, nil where it has none any more.
func (f *Funds) scrape(ctx context.Context, c *claim, refused *Broke, t *turn) (*turn, error) {
	c.refused(refused, f.tighten)
	err := f.drawExactly(ctx, c)
	broke, ok := errors.AsType[*Broke](err)
	if !ok {
		return t, err
	}
	// Another process may be short of the same money, and lack what is here.
	f.returnTight(ctx, c.hold.account)
	if c.refusedLately(err) { // nobody has returned anything since: it is all spent
		f.remember(ctx, c, err)
		return t, err
	}
	wait := newTurn()
	c.refused(broke, func(p *pot) { p.scraped = wait })
	defer func() {
		c.refused(broke, func(p *pot) { p.scraped = nil })
		close(wait.done)
	}()
	for _, pause := range patience() {
		var left error
		if t, left = f.pause(ctx, c.hold, t, pause); left != nil {
			return t, left
		}
		if err = f.drawExactly(ctx, c); !isBroke(err) {
			return t, err
		}
		f.returnTight(ctx, c.hold.account) // what was recalled meanwhile
	}
	f.remember(ctx, c, err)
	return t, err
}

// pause gives the turn to others for a while. It returns the next one.
func (f *Funds) pause(ctx context.Context, h *Hold, t *turn, pause time.Duration) (*turn, error) {
	f.endTurn(h, t)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for a := h.account; ; {
		a.mu.Lock()
		before := a.turn
		if before == nil {
			t = newTurn()
			a.turn = t
		}
		a.mu.Unlock()
		if before == nil {
			return t, nil
		}
		select {
		case <-before.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func isBroke(err error) bool {
	_, ok := errors.AsType[*Broke](err)
	return ok
}

// tighten keeps a wallet's money from lying idle here. It holds account.mu.
func (f *Funds) tighten(p *pot) { p.scarce = f.now().Add(scarceFor) }

// tight reports that money is scarce at one of the nodes. It holds account.mu.
func (c *claim) tight(nodes []string) bool {
	return slices.ContainsFunc(c.hold.pots[:c.hold.n], func(p *pot) bool {
		return p.tight(c.hold.funds.now) && slices.Contains(nodes, p.node)
	})
}

// refused does something with the pot of the wallet that lacks the money.
func (c *claim) refused(b *Broke, do func(*pot)) {
	c.hold.account.mu.Lock()
	defer c.hold.account.mu.Unlock()
	for _, p := range c.hold.pots[:c.hold.n] {
		if p.node == b.Node {
			do(p)
		}
	}
}

// drawExactly asks the wallets one by one for what is missing there. The money of
// one that refuses is scarce; what was drawn of others is idle then, and goes back
// as such.
func (f *Funds) drawExactly(ctx context.Context, c *claim) (err error) {
	short, _ := c.begin(f.now())
	defer func() {
		c.hold.account.mu.Lock()
		defer c.hold.account.mu.Unlock()
		c.end(err == nil)
	}()
	for i, p := range c.hold.pots[:c.hold.n] {
		if !slices.Contains(short, p.node) {
			continue
		}
		here := c.got[i]
		err := f.fill(ctx, c, []string{p.node}, c.lacks[i], c.lacks[i])
		if broke, refused := errors.AsType[*Broke](err); refused {
			c.refused(broke, f.tighten)
			there := max(broke.AvailableNano, 0)
			return &Broke{Node: p.node, AvailableNano: there + here, there: there}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// refusedLately reports that the wallet refused the last question, too.
func (c *claim) refusedLately(err error) (lately bool) {
	if broke, refused := errors.AsType[*Broke](err); refused {
		c.refused(broke, func(p *pot) { lately = p.refused.times > 0 })
	}
	return lately
}

// remember keeps a refusal for those who ask next, with what others hold of the
// wallet.
func (f *Funds) remember(ctx context.Context, c *claim, err error) {
	broke, refused := errors.AsType[*Broke](err)
	if !refused {
		return
	}
	if reserved, err := f.till.reserved(ctx, c.hold.account.tenant, broke.Node); err == nil { // else it counts as spent
		broke.HeldNano = max(reserved-(broke.AvailableNano-broke.there), 0)
	}
	c.refused(broke, func(p *pot) {
		until := f.now().Add(p.refused.believe())
		p.refused = refusal{available: broke.there, held: broke.HeldNano, times: p.refused.times + 1, until: until}
	})
}
